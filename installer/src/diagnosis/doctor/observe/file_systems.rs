//! The file system of a directory: free space, and what the mount forbids (statvfs(3), proc_pid_mountinfo(5)).

use crate::mounts::{self, Mount};
use nix::errno::Errno;
use nix::sys::stat::{major, minor, stat};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;
use std::path::{Path, PathBuf};

/// The file system of one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystem {
    /// `conf`, `program` or `run`.
    pub of: &'static str,
    pub path: PathBuf,
    /// Its mount point and type: `/opt (ext4)`.
    pub mount: String,
    /// Its owner, if neither root nor this process's user.
    pub other_owner: Option<u32>,
    /// Its mode, if every user may write there.
    pub open_to_all: Option<u32>,
    /// Its free space and restrictions.
    pub space: Result<FreeSpace, Errno>,
}

/// Free space and restrictions of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes that root can still write.
    pub bytes: u64,
    /// Files that can still be created; none if the file system does not count them.
    pub inodes: Option<u64>,
    pub read_only: bool,
    pub no_exec: bool,
}

pub(super) fn of(directories: [(&'static str, &PathBuf); 3]) -> Vec<FileSystem> {
    let mounts = mounts::of_this_thread();
    let file_system = |(of, path): (&'static str, &PathBuf)| FileSystem {
        of,
        path: path.clone(),
        mount: mount_of(&mounts, path).unwrap_or_else(|| "its file system".to_owned()),
        other_owner: other_owner(path),
        open_to_all: open_to_all(path),
        space: space(path),
    };
    directories.into_iter().map(file_system).collect()
}

fn other_owner(path: &Path) -> Option<u32> {
    let owner = stat(path).ok()?.st_uid;
    (![0, geteuid().as_raw()].contains(&owner)).then_some(owner)
}

fn open_to_all(path: &Path) -> Option<u32> {
    let mode = stat(path).ok()?.st_mode & 0o7777;
    (mode & 0o002 != 0).then_some(mode)
}

fn space(path: &Path) -> Result<FreeSpace, Errno> {
    let found = statvfs(path)?;
    Ok(FreeSpace {
        bytes: found.blocks_free().saturating_mul(found.fragment_size()),
        inodes: (found.files() > 0).then(|| found.files_free()),
        read_only: found.flags().contains(FsFlags::ST_RDONLY),
        no_exec: found.flags().contains(FsFlags::ST_NOEXEC),
    })
}

/// The mount with the directory's device and the longest path above it; the last of several with this path, which
/// hides the earlier ones.
fn mount_of(mounts: &[Mount], path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let device = stat(&real).ok()?.st_dev;
    let device = format!("{}:{}", major(device), minor(device));
    let above = mounts.iter().filter(|mount| mount.device == device && real.starts_with(&mount.point));
    let mount = above.max_by_key(|mount| mount.point.as_os_str().len())?;
    Some(format!("{} ({})", mount.point.display(), mount.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f11_the_mount_of_a_directory_is_named() {
        let mounts = mounts::of_this_thread();
        let proc = mount_of(&mounts, Path::new("/proc/self/net")).unwrap();
        assert_eq!(proc, "/proc (proc)");
        assert_eq!(mount_of(&mounts, Path::new("/nowhere")), None);
        assert!(space(Path::new("/nowhere")).is_err());
    }
}
