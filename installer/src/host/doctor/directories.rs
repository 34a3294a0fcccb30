//! The runtime's directories: whether they are there, are this platform's, can be written, and have room.

use super::sight::{Room, Sight, Space};
use super::{About, Finding, of_security};
use crate::host::install::seen::{Places, Standing};
use nix::errno::Errno;
use std::path::Path;

/// Both programs, twice: a new one is written beside the old.
const PROGRAMS_NEED: u64 = 64 << 20;
/// A conf file and its temporary one.
const CONF_NEEDS: u64 = 1 << 20;

pub(super) fn examine(sight: &Sight) -> Vec<Finding> {
    let mut found = vec![node(sight)];
    let Places { conf, programs, .. } = &sight.ground.places;
    found.push(standing(sight, ("conf", conf), sight.snapshot.conf.standing));
    found.push(standing(sight, ("program", programs), sight.snapshot.programs.standing));
    found.extend(elsewhere(sight));
    if let Some(to) = &sight.conf_link {
        let says = format!("{} is a link to {}", conf.display(), to.display());
        let remedy =
            "a runtime watches what the link led to when it started: restart it after the link is changed";
        found.push(Finding::note(About::Directories, says, Some(remedy)));
    }
    found.extend(sight.spaces.iter().filter_map(foreign));
    found.extend(sight.spaces.iter().filter_map(open_to_all));
    found.extend(sight.spaces.iter().flat_map(|space| of_space(sight, space)));
    found
}

fn node(sight: &Sight) -> Finding {
    Finding::note(About::Node, format!("this is {}", sight.platform), sight.platform.advice())
}

fn standing(sight: &Sight, (of, path): (&str, &Path), standing: Standing) -> Finding {
    let path = path.display();
    match standing {
        Standing::There => Finding::well(About::Directories, format!("{of} directory {path}")),
        Standing::Missing => {
            let says = format!("there is no {of} directory {path}");
            Finding::wrong(About::Directories, says, missing(sight))
        }
        Standing::Deleted => {
            let says = format!("the {of} directory {path} was deleted under this process");
            let remedy = "restart this pod, and the container runtime: neither sees a directory made anew";
            Finding::wrong(About::Directories, says, remedy)
        }
        Standing::Refused(why) => {
            let says = format!("the {of} directory {path} cannot be read: {}", why.desc());
            Finding::wrong(About::Directories, says, refused(sight, why))
        }
    }
}

fn refused(sight: &Sight, why: Errno) -> String {
    match why {
        Errno::EACCES | Errno::EPERM => of_security(sight),
        Errno::ENOTDIR => {
            "something else has its name: name the directory with --conf-dir or --bin-dir".to_owned()
        }
        _ => "look at the disk it is on".to_owned(),
    }
}

fn missing(sight: &Sight) -> String {
    let wanted = sight.platform.directories();
    format!(
        "on {} the runtime looks in {} and {}: name others with --conf-dir and --bin-dir; the conf directory comes with the primary plugin",
        sight.platform, wanted.conf, wanted.programs
    )
}

/// Directories of another platform may even be there, and no runtime looks into them (F37).
fn elsewhere(sight: &Sight) -> Option<Finding> {
    let wanted = sight.platform.places(&sight.ground.root);
    let Places { conf, programs, .. } = &sight.ground.places;
    if (&wanted.conf, &wanted.programs) == (conf, programs) {
        return None;
    }
    let directories = sight.platform.directories();
    let says = format!(
        "these are not the directories of {}: it has {} and {}",
        sight.platform, directories.conf, directories.programs
    );
    let remedy = "unless its runtime is set up otherwise, use the platform's overlay of the DaemonSet, or --conf-dir and --bin-dir";
    Some(Finding::note(About::Directories, says, Some(remedy)))
}

/// To root without capabilities, as the agent is, the user is a stranger there like any other.
fn foreign(space: &Space) -> Option<Finding> {
    let owner = space.stranger?;
    let says = format!("the {} directory {} belongs to user {owner}", space.of, space.path.display());
    let remedy = "an agent without capabilities cannot write there: give it to root, or add manifests/components/foreign-owner";
    Some(Finding::note(About::Directories, says, Some(remedy)))
}

/// A file put there is run, or decides what is run, as root.
fn open_to_all(space: &Space) -> Option<Finding> {
    let mode = space.open_to_all?;
    let path = space.path.display();
    let says = format!("every user may write in the {} directory {path}: mode {mode:04o}", space.of);
    let remedy =
        format!("whoever writes there is root on this node: chmod 0755 {path}, and see what made it so");
    Some(Finding::wrong(About::Directories, says, remedy))
}

fn of_space(sight: &Sight, space: &Space) -> Vec<Finding> {
    let Space { of, path, mount, room, .. } = space;
    let wrong = |says: String, remedy: &str| Finding::wrong(About::Directories, says, remedy);
    let Room { bytes, inodes, read_only, no_exec } = match room {
        Ok(room) => *room,
        // Said of the directory itself already; without a run directory nobody has probed or served.
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
        found.push(wrong(says, "no runtime can run plugins there: mount it without noexec"));
    }
    if bytes < need(of) && !read_only {
        let says = format!("{mount} has {} KiB left, where the {of} directory {path} is", bytes >> 10);
        found.push(wrong(says, "what is there is kept, and nothing new can be written: make room (df)"));
    }
    if inodes == Some(0) {
        let says = format!("{mount} has no inodes left, where the {of} directory {path} is");
        found.push(wrong(says, "no file can be made there: remove some (df -i)"));
    }
    found
}

fn need(of: &str) -> u64 {
    if of == "program" { PROGRAMS_NEED } else { CONF_NEEDS }
}
