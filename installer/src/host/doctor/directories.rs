//! Findings about the runtime's directories: whether they exist, are this platform's, are writable, and have
//! room.

use super::observe::{FileSystem, FreeSpace, Observation};
use super::{About, Finding, of_security};
use crate::host::observe::{DirectoryState, NodeDirectories};
use nix::errno::Errno;
use std::path::Path;

/// Bytes for both programs, twice: a new one is written next to the old one.
const PROGRAMS_NEED: u64 = 64 << 20;
/// Bytes for a conf file and its temporary copy.
const CONF_NEEDS: u64 = 1 << 20;

pub(super) fn examine(sight: &Observation) -> Vec<Finding> {
    let mut found = vec![node(sight)];
    let NodeDirectories { conf, programs, .. } = &sight.ground.places;
    found.push(standing(sight, ("conf", conf), sight.snapshot.conf.standing));
    found.push(standing(sight, ("program", programs), sight.snapshot.programs.standing));
    found.extend(elsewhere(sight));
    if let Some(to) = &sight.conf_link {
        let says = format!("{} is a link to {}", conf.display(), to.display());
        let remedy =
            "restart the runtime after changing the link: it watches the target from when it started";
        found.push(Finding::note(About::Directories, says, Some(remedy)));
    }
    found.extend(sight.spaces.iter().filter_map(foreign));
    found.extend(sight.spaces.iter().filter_map(open_to_all));
    found.extend(sight.spaces.iter().flat_map(|space| of_space(sight, space)));
    found
}

fn node(sight: &Observation) -> Finding {
    Finding::note(About::Node, format!("this is {}", sight.platform), sight.platform.advice())
}

fn standing(sight: &Observation, (of, path): (&str, &Path), standing: DirectoryState) -> Finding {
    let path = path.display();
    match standing {
        DirectoryState::Present => Finding::well(About::Directories, format!("{of} directory {path}")),
        DirectoryState::Missing => {
            let says = format!("there is no {of} directory {path}");
            Finding::wrong(About::Directories, says, missing(sight))
        }
        DirectoryState::Deleted => {
            let says = format!("the {of} directory {path} was deleted while this process held it open");
            let remedy =
                "restart this pod and the container runtime: neither sees a directory that was made again";
            Finding::wrong(About::Directories, says, remedy)
        }
        DirectoryState::Unreadable(why) => {
            let says = format!("the {of} directory {path} cannot be read: {}", why.desc());
            Finding::wrong(About::Directories, says, refused(sight, why))
        }
    }
}

fn refused(sight: &Observation, why: Errno) -> String {
    match why {
        Errno::EACCES | Errno::EPERM => of_security(sight),
        Errno::ENOTDIR => {
            "name the directory with --conf-dir or --bin-dir: this is not a directory".to_owned()
        }
        _ => "check the disk that it is on".to_owned(),
    }
}

fn missing(sight: &Observation) -> String {
    let wanted = sight.platform.directories();
    format!(
        "on {} the runtime uses {} and {}: name others with --conf-dir and --bin-dir; the primary plugin makes the conf directory",
        sight.platform, wanted.conf, wanted.programs
    )
}

/// Directories of another platform may exist here, and no runtime reads them (F37).
fn elsewhere(sight: &Observation) -> Option<Finding> {
    let wanted = sight.platform.places(&sight.ground.root);
    let NodeDirectories { conf, programs, .. } = &sight.ground.places;
    if (&wanted.conf, &wanted.programs) == (conf, programs) {
        return None;
    }
    let directories = sight.platform.directories();
    let says = format!(
        "these are not the directories of {}, which has {} and {}",
        sight.platform, directories.conf, directories.programs
    );
    let remedy = "use the platform's overlay of the DaemonSet, or --conf-dir and --bin-dir, unless the runtime is configured otherwise";
    Some(Finding::note(About::Directories, says, Some(remedy)))
}

/// For root without capabilities, as the agent runs, another user's directory is not writable.
fn foreign(space: &FileSystem) -> Option<Finding> {
    let owner = space.stranger?;
    let says = format!("the {} directory {} belongs to user {owner}", space.of, space.path.display());
    let remedy = "chown it to root, or add manifests/components/foreign-owner: an agent without capabilities cannot write there";
    Some(Finding::note(About::Directories, says, Some(remedy)))
}

/// Root runs a file in these directories, or follows what it configures.
fn open_to_all(space: &FileSystem) -> Option<Finding> {
    let mode = space.open_to_all?;
    let path = space.path.display();
    let says = format!("every user may write to the {} directory {path}: mode {mode:04o}", space.of);
    let remedy =
        format!("chmod 0755 {path}, and find out what changed it: a user who writes there can become root");
    Some(Finding::wrong(About::Directories, says, remedy))
}

fn of_space(sight: &Observation, space: &FileSystem) -> Vec<Finding> {
    let FileSystem { of, path, mount, room, .. } = space;
    let wrong = |says: String, remedy: &str| Finding::wrong(About::Directories, says, remedy);
    let FreeSpace { bytes, inodes, read_only, no_exec } = match room {
        Ok(room) => *room,
        // The directory has its own finding; a missing run directory is normal before the first probe.
        Err(_) => return Vec::new(),
    };
    let mut found = Vec::new();
    let path = path.display();
    if read_only {
        let says = format!("the {of} directory {path} is on {mount}, which is read-only");
        found.push(wrong(says, &missing(sight)));
    }
    if no_exec && *of == "program" {
        let says = format!("the program directory {path} is on {mount}, which is mounted noexec");
        found.push(wrong(says, "mount it without noexec: no runtime can run plugins there"));
    }
    if bytes < need(of) && !read_only {
        let says = format!("{mount}, which holds the {of} directory {path}, has {} KiB left", bytes >> 10);
        found.push(wrong(says, "free space (df): existing files are kept, but no new one can be written"));
    }
    if inodes == Some(0) {
        let says = format!("{mount}, which holds the {of} directory {path}, has no inodes left");
        found.push(wrong(says, "remove files (df -i): no new one can be created"));
    }
    found
}

fn need(of: &str) -> u64 {
    if of == "program" { PROGRAMS_NEED } else { CONF_NEEDS }
}
