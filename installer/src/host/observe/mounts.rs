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

use super::{ConfDirectory, DirectoryState, NodeDirectories, ObservedState, ProgramDirectory};

/// The mount and root of each directory at its first observation.
#[derive(Debug, Default)]
pub struct MountRoots(HashMap<PathBuf, Mount>);

/// A mount's id, and its root on the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    id: u64,
    root: String,
}

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
    mount_of(path).map(|mount| PathBuf::from(mount.root))
}

/// Returns the mount; none if the kernel does not report it. A thread may have a mount namespace of its own.
fn mount_of(path: &Path) -> Option<Mount> {
    let fd = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).ok()?;
    let id = id_of(&fd)?;
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").ok()?;
    Some(Mount { id, root: root_of(&mounts, id)? })
}

fn id_of(fd: &OwnedFd) -> Option<u64> {
    let about = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    about.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

/// `1051 1048 254:1 /etc/cni/net.d /host/etc/cni/net.d rw,relatime - ext4 …`
fn root_of(mounts: &str, id: u64) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let is_it = fields.next()?.parse() == Ok(id);
        is_it.then(|| fields.nth(2).map(str::to_owned))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_a_mount_is_found_by_its_id() {
        let mounts = "21 1 254:1 / / rw - ext4 /dev/vda1 rw\n\
                      121 21 254:1 /etc/cni/net.d /host/etc/cni/net.d rw shared:1 - ext4 /dev/vda1 rw\n";
        assert_eq!(root_of(mounts, 121).as_deref(), Some("/etc/cni/net.d"));
        assert_eq!(root_of(mounts, 21).as_deref(), Some("/"));
        assert_eq!(root_of(mounts, 1), None);
        assert_eq!(mount_of(Path::new("/proc")).unwrap().root, "/");
    }
}
