//! Findings about how our agent and the runtime learn of changes in the conf directory.

use super::chain::is_for_multus;
use super::observe::Observation;
use super::{About, Finding};
use crate::host::entries::OurEntries;
use crate::host::observe::DirectoryState;
use crate::host::runtimes::processes::{RuntimeProcess, RuntimeWatch};
use crate::host::watch::WatchMode;
use nix::errno::Errno;

pub(super) fn examine(observation: &Observation, ours: &OurEntries<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = own(observation).into_iter().collect();
    // Multus reads a network's file for each call, and no runtime watches it.
    if !is_for_multus(ours, observation) {
        found.extend(observation.runtimes.iter().map(of_runtime));
    }
    found
}

fn own(observation: &Observation) -> Option<Finding> {
    match observation.watch {
        WatchMode::Inotify => {
            Some(Finding::well(About::Watching, "inotify reports changes of the conf directory at once"))
        }
        // A missing or unreadable directory has its own finding.
        WatchMode::Polling(_) if observation.snapshot.conf.state != DirectoryState::Present => None,
        WatchMode::Polling(why) => {
            let setting = match why {
                Errno::EMFILE => "fs.inotify.max_user_instances",
                Errno::ENOSPC => "fs.inotify.max_user_watches",
                _ => "the sysctls fs.inotify.*",
            };
            let text = format!(
                "inotify is exhausted ({}), so the agent polls {} every second",
                why.desc(),
                observation.options.directories.conf.display()
            );
            Some(Finding::wrong(
                About::Watching,
                text,
                format!("raise {setting}, which the runtime needs too"),
            ))
        }
    }
}

fn of_runtime(RuntimeProcess { name, pid, watches, .. }: &RuntimeProcess) -> Finding {
    match watches {
        RuntimeWatch::ConfDirectory => {
            Finding::well(About::Watching, format!("{name} (process {pid}) watches the conf directory"))
        }
        RuntimeWatch::Others => {
            let text = format!(
                "{name} (process {pid}) does not watch this conf directory: it was removed and made again, or {name} is \
                 configured with another"
            );
            let remedy = format!(
                "restart {name}, which notices no change until then; or name its directory with --conf-dir"
            );
            Finding::wrong(About::Watching, text, remedy)
        }
        RuntimeWatch::Unknown => {
            let text = format!("it is unknown what {name} (process {pid}) watches");
            Finding::note(About::Watching, text, Some("run gybe doctor on the node"))
        }
    }
}
