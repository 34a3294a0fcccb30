//! How a change of the conf directory becomes known: to our agent, and to the runtime.

use super::chain::Ours;
use super::sight::{RuntimeSeen, Sight, Watches};
use super::{About, Finding};
use crate::host::install::seen::Standing;
use crate::host::install::watch::WatchMode;
use nix::errno::Errno;

pub(super) fn examine(sight: &Sight, ours: &Ours<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = own(sight).into_iter().collect();
    // Multus reads a network's file when it is asked for it, and no runtime watches for that.
    if !ours.is_for_multus(sight) {
        found.extend(sight.runtimes.iter().map(of_runtime));
    }
    found
}

fn own(sight: &Sight) -> Option<Finding> {
    match sight.watch {
        WatchMode::Told => {
            Some(Finding::well(About::Watching, "changes of the conf directory are told at once"))
        }
        // That it is not there, or not to be read, is said already.
        WatchMode::Asking(_) if sight.snapshot.conf.standing != Standing::There => None,
        WatchMode::Asking(why) => {
            let setting = match why {
                Errno::EMFILE => "fs.inotify.max_user_instances",
                Errno::ENOSPC => "fs.inotify.max_user_watches",
                _ => "the sysctls fs.inotify.*",
            };
            let says = format!(
                "inotify is exhausted ({}), so changes in {} are looked for every second",
                why.desc(),
                sight.ground.places.conf.display()
            );
            Some(Finding::wrong(About::Watching, says, format!("raise {setting}; the runtime needs it too")))
        }
    }
}

fn of_runtime(RuntimeSeen { name, pid, watches, .. }: &RuntimeSeen) -> Finding {
    match watches {
        Watches::ConfDirectory => {
            Finding::well(About::Watching, format!("{name} (process {pid}) watches the conf directory"))
        }
        Watches::Others => {
            let says = format!(
                "{name} (process {pid}) does not watch this conf directory: it was removed and made anew, or {name} is \
                 set up with another"
            );
            let remedy = format!(
                "restart {name}: it sees no change until then; or name its directory with --conf-dir"
            );
            Finding::wrong(About::Watching, says, remedy)
        }
        Watches::Unknown => {
            let says = format!("what {name} (process {pid}) watches cannot be told");
            Finding::note(About::Watching, says, Some("run gybe doctor as root on the node"))
        }
    }
}
