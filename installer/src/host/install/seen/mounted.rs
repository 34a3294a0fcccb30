//! Whether a directory that is mounted here still has, on the host, the name it was mounted by.
//!
//! A mount holds an inode, whatever becomes of its path (F13). One that was renamed on the host is whole
//! from here and nobody's there: the primary writes to another. The mount's root, as the kernel tells it,
//! is the path on its file system, and that follows the rename (proc_pid_mountinfo(5), field 4).

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::{ConfDirectory, Places, ProgramDirectory, Snapshot, Standing};

/// What each directory was mounted by, when it was first looked at.
#[derive(Debug, Default)]
pub struct Mounts(HashMap<PathBuf, Mount>);

/// A mount, and its root on the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    id: u64,
    root: String,
}

impl Mounts {
    /// Of a directory that was renamed since the first look nothing is seen: it is as good as deleted.
    pub fn judge(&mut self, places: &Places, seen: &mut Snapshot) {
        if seen.conf.standing == Standing::There && self.is_renamed(&places.conf) {
            seen.conf = ConfDirectory::not_there(Standing::Deleted);
        }
        if seen.programs.standing == Standing::There && self.is_renamed(&places.programs) {
            seen.programs = ProgramDirectory::not_there(Standing::Deleted);
        }
    }

    fn is_renamed(&mut self, path: &Path) -> bool {
        let Some(now) = mount_of(path) else { return false };
        match self.0.get(path) {
            Some(then) if then.id == now.id => then.root != now.root,
            // The first look, or a path that leads to another mount now.
            _ => {
                self.0.insert(path.to_owned(), now);
                false
            }
        }
    }
}

/// What is mounted where `path` is, as a path on its file system.
pub(super) fn root(path: &Path) -> Option<PathBuf> {
    mount_of(path).map(|mount| PathBuf::from(mount.root))
}

/// None where the kernel does not tell. A thread may have mounts of its own.
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
    fn the_root_of_a_mount_is_found_by_its_number() {
        let mounts = "21 1 254:1 / / rw - ext4 /dev/vda1 rw\n\
                      121 21 254:1 /etc/cni/net.d /host/etc/cni/net.d rw shared:1 - ext4 /dev/vda1 rw\n";
        assert_eq!(root_of(mounts, 121).as_deref(), Some("/etc/cni/net.d"));
        assert_eq!(root_of(mounts, 21).as_deref(), Some("/"));
        assert_eq!(root_of(mounts, 1), None);
        assert_eq!(mount_of(Path::new("/proc")).unwrap().root, "/");
    }
}
