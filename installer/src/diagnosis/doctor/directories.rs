//! Findings about the runtime's directories: whether they exist, are those of the platform, are writable, and
//! have free space; and how our agent and the runtime learn of changes in the conf directory.

use super::chain::is_for_multus;
use super::observe::{FileSystem, FreeSpace, Observation};
use super::{About, DoctorFinding, Remedy, access_remedy};
use crate::host::entries::OurEntries;
use crate::host::observe::{DirectoryState, NodeDirectories};
use crate::host::runtimes::processes::{RuntimeProcess, RuntimeWatch};
use crate::host::watch::WatchMode;
use nix::errno::Errno;
use std::path::Path;

/// Bytes for both programs, twice: a new one is written next to the old one.
const PROGRAMS_NEED: u64 = 64 << 20;
/// Bytes for a conf file and its temporary copy.
const CONF_NEEDS: u64 = 1 << 20;

pub(super) fn examine(observation: &Observation) -> Vec<DoctorFinding> {
    let mut found = vec![node(observation)];
    let NodeDirectories { conf, programs, .. } = &observation.options.directories;
    found.push(directory_problems(observation, "conf", conf, observation.snapshot.conf.state));
    found.push(directory_problems(observation, "program", programs, observation.snapshot.programs.state));
    found.extend(elsewhere(observation));
    if let Some(to) = &observation.conf_link {
        let text = format!("{} is a link to {}", conf.display(), to.display());
        let remedy = "restart the runtime after changing the link: it watches the target that the link had when the runtime started";
        found.push(DoctorFinding::note(About::Directories, text, Some(remedy)));
    }
    found.extend(observation.file_systems.iter().filter_map(foreign));
    found.extend(observation.file_systems.iter().filter_map(open_to_all));
    found.extend(
        observation.file_systems.iter().flat_map(|file_system| of_file_system(observation, file_system)),
    );
    found
}

fn node(observation: &Observation) -> DoctorFinding {
    DoctorFinding::note(About::Node, format!("this is {}", observation.platform), observation.platform.hint())
}

fn directory_problems(
    observation: &Observation,
    of: &str,
    path: &Path,
    state: DirectoryState,
) -> DoctorFinding {
    let path = path.display();
    match state {
        DirectoryState::Present => DoctorFinding::well(About::Directories, format!("{of} directory {path}")),
        DirectoryState::Missing => {
            let text = format!("there is no {of} directory {path}");
            DoctorFinding::wrong(About::Directories, text, missing(observation))
        }
        DirectoryState::Deleted => {
            let text = format!("the {of} directory {path} was deleted while this process held it open");
            let remedy =
                "restart this pod and the container runtime: neither notices a directory that was made again";
            DoctorFinding::wrong(About::Directories, text, remedy)
        }
        DirectoryState::Unreadable(why) => {
            let text = format!("the {of} directory {path} cannot be read: {}", why.desc());
            DoctorFinding::wrong(About::Directories, text, refused(observation, why))
        }
    }
}

fn refused(observation: &Observation, why: Errno) -> Remedy {
    match why {
        Errno::EACCES | Errno::EPERM => access_remedy(observation),
        Errno::ENOTDIR => "name the directory with --conf-dir or --bin-dir: this is not a directory".into(),
        _ => "check the disk that it is on".into(),
    }
}

fn missing(observation: &Observation) -> String {
    let desired = observation.platform.directories();
    format!(
        "on {} the runtime uses {} and {}: name other directories with --conf-dir and --bin-dir; the primary plugin makes the conf directory",
        observation.platform, desired.conf, desired.programs
    )
}

/// Directories of another platform may exist on this node without a runtime that reads them (F37).
fn elsewhere(observation: &Observation) -> Option<DoctorFinding> {
    let desired = observation.platform.node_directories(&observation.options.root);
    let NodeDirectories { conf, programs, .. } = &observation.options.directories;
    if (&desired.conf, &desired.programs) == (conf, programs) {
        return None;
    }
    let directories = observation.platform.directories();
    let text = format!(
        "these are not the directories of {}, which has {} and {}",
        observation.platform, directories.conf, directories.programs
    );
    let remedy = "use the platform's overlay of the DaemonSet, or --conf-dir and --bin-dir, unless the runtime is configured otherwise";
    Some(DoctorFinding::note(About::Directories, text, Some(remedy)))
}

/// The agent runs as root without capabilities, and cannot write to another user's directory.
fn foreign(space: &FileSystem) -> Option<DoctorFinding> {
    let owner = space.other_owner?;
    let text = format!("the {} directory {} belongs to user {owner}", space.of, space.path.display());
    let remedy = "chown it to root, or add manifests/components/foreign-owner: an agent without capabilities cannot write there";
    Some(DoctorFinding::note(About::Directories, text, Some(remedy)))
}

/// Root runs the programs in these directories, or applies the configuration in them.
fn open_to_all(space: &FileSystem) -> Option<DoctorFinding> {
    let mode = space.open_to_all?;
    let path = space.path.display();
    let text = format!("every user may write to the {} directory {path}: mode {mode:04o}", space.of);
    let remedy =
        format!("chmod 0755 {path}, and find out what changed it: a user who writes there can become root");
    Some(DoctorFinding::wrong(About::Directories, text, remedy))
}

fn of_file_system(observation: &Observation, file_system: &FileSystem) -> Vec<DoctorFinding> {
    let FileSystem { of, path, mount, space, .. } = file_system;
    let wrong = |text: String, remedy: &str| DoctorFinding::wrong(About::Directories, text, remedy);
    let FreeSpace { bytes, inodes, read_only, no_exec } = match space {
        Ok(space) => *space,
        // The directory has its own finding; a missing run directory is normal before the first probe.
        Err(_) => return Vec::new(),
    };
    let mut found = Vec::new();
    let path = path.display();
    if read_only {
        let text = format!("the {of} directory {path} is on {mount}, which is read-only");
        found.push(wrong(text, &missing(observation)));
    }
    if no_exec && *of == "program" {
        let text = format!("the program directory {path} is on {mount}, which is mounted noexec");
        found.push(wrong(text, "mount it without noexec: no runtime can run plugins there"));
    }
    if bytes < need(of) && !read_only {
        let text = format!("{mount}, which holds the {of} directory {path}, has {} KiB left", bytes >> 10);
        found.push(wrong(text, "free space (df): existing files are kept, but no new one can be written"));
    }
    if inodes == Some(0) {
        let text = format!("{mount}, which holds the {of} directory {path}, has no inodes left");
        found.push(wrong(text, "remove files (df -i): no new one can be created"));
    }
    found
}

fn need(of: &str) -> u64 {
    if of == "program" { PROGRAMS_NEED } else { CONF_NEEDS }
}

/// Findings about how our agent and the runtime learn of changes in the conf directory.
pub(super) fn watching(observation: &Observation, ours: &OurEntries<'_>) -> Vec<DoctorFinding> {
    let mut found: Vec<DoctorFinding> = own(observation).into_iter().collect();
    // Multus reads a network's file for each call, and no runtime watches it.
    if !is_for_multus(ours, observation) {
        found.extend(observation.runtimes.iter().map(of_runtime));
    }
    found
}

fn own(observation: &Observation) -> Option<DoctorFinding> {
    match observation.watch {
        WatchMode::Inotify => Some(DoctorFinding::well(
            About::Watching,
            "inotify reports changes of the conf directory at once",
        )),
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
            Some(DoctorFinding::wrong(
                About::Watching,
                text,
                format!("raise {setting}, which the runtime needs too"),
            ))
        }
    }
}

fn of_runtime(RuntimeProcess { name, pid, watches, .. }: &RuntimeProcess) -> DoctorFinding {
    match watches {
        RuntimeWatch::ConfDirectory => {
            DoctorFinding::well(About::Watching, format!("{name} (process {pid}) watches the conf directory"))
        }
        RuntimeWatch::Others => {
            let text = format!(
                "{name} (process {pid}) does not watch this conf directory: it was removed and made again, or {name} is \
                 configured with another"
            );
            let remedy = format!(
                "restart {name}, which notices no change until then; or name its directory with --conf-dir"
            );
            DoctorFinding::wrong(About::Watching, text, remedy)
        }
        RuntimeWatch::Unknown => {
            let text = format!("it is unknown what {name} (process {pid}) watches");
            DoctorFinding::note(About::Watching, text, Some("run gybe doctor on the node"))
        }
    }
}
