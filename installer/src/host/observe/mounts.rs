//! Detects a mounted directory that was renamed on the host.
//!
//! A mount refers to an inode and not to a path (F13). A directory that was renamed on the host looks
//! complete from here, but the primary plugin writes to another one. The mount's root in mountinfo is the path
//! on its file system and follows the rename (proc_pid_mountinfo(5), field 4).

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::mounts::{self, Mount};

use super::{ConfDirectory, DirectoryState, NodeDirectories, ObservedState, ProgramDirectory};

/// The mount and root of each directory at its first observation.
#[derive(Debug, Default)]
pub struct MountRoots(HashMap<PathBuf, Mount>);

impl MountRoots {
    /// Reports a directory that was renamed since the first observation as deleted.
    pub fn judge(&mut self, directories: &NodeDirectories, observed: &mut ObservedState) {
        if observed.conf.state == DirectoryState::Present && self.is_renamed(&directories.conf) {
            observed.conf = ConfDirectory::not_there(DirectoryState::Deleted);
        }
        if observed.programs.state == DirectoryState::Present && self.is_renamed(&directories.programs) {
            observed.programs = ProgramDirectory::not_there(DirectoryState::Deleted);
        }
    }

    fn is_renamed(&mut self, path: &Path) -> bool {
        let Some(now) = mount_of(path) else { return false };
        match self.0.get(path) {
            Some(then) if then.id == now.id => then.root != now.root,
            // The first observation, or the path leads to another mount now.
            _ => {
                self.0.insert(path.to_owned(), now);
                false
            }
        }
    }
}

/// The root of the mount at `path`, as a path on its file system.
pub(super) fn root(path: &Path) -> Option<PathBuf> {
    mount_of(path).map(|mount| mount.root)
}

/// Returns the mount; none if the kernel does not report it.
fn mount_of(path: &Path) -> Option<Mount> {
    let fd = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    let id = id_of(&fd)?;
    mounts::of_this_thread().into_iter().find(|mount| mount.id == id)
}

fn id_of(fd: &OwnedFd) -> Option<u64> {
    let about = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    about.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}
