//! The mounts of a mount namespace, as the kernel lists them (proc_pid_mountinfo(5)), and the file system of a directory:
//! its free space, and what the mount forbids (statvfs(3)).

use nix::errno::Errno;
use nix::sys::stat::{major, minor, stat};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) id: u64,
    /// The device of its file system, as `major:minor`.
    pub(crate) device: String,
    /// The directory of the file system that is mounted. It follows a rename on the file system.
    pub(crate) root: PathBuf,
    pub(crate) point: PathBuf,
    /// The type of the file system.
    pub(crate) kind: String,
}

/// Returns the mounts that the calling thread has, the earliest first; none where the kernel does not list them. A
/// thread may have a mount namespace of its own.
pub(crate) fn of_this_thread() -> Vec<Mount> {
    parse(&fs::read("/proc/thread-self/mountinfo").unwrap_or_default())
}

/// `1051 1048 254:1 /etc/cni/net.d /host/etc/cni/net.d rw,relatime shared:1 - ext4 /dev/vda1 rw`
pub(crate) fn parse(mountinfo: &[u8]) -> Vec<Mount> {
    let mount = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut next = || fields.next().map(unescaped);
        let text = |field: OsString| field.into_string().ok();
        let id = text(next()?)?.parse().ok()?;
        let device = next().and_then(|_parent| text(next()?))?;
        let (root, point) = (next()?.into(), next()?.into());
        // Optional fields, of which there may be none, end with a hyphen.
        fields.by_ref().find(|field| *field == b"-")?;
        let kind = text(unescaped(fields.next()?))?;
        Some(Mount { id, device, root, point, kind })
    };
    mountinfo.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// Decodes a field: blanks and backslashes are in octal, like `\040`.
fn unescaped(field: &[u8]) -> OsString {
    let mut parts = field.split(|byte| *byte == b'\\');
    let mut bytes = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(3).unwrap_or((part, b""));
        bytes.extend(std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 8).ok()));
        bytes.extend(rest);
    }
    OsString::from_vec(bytes)
}

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

pub(crate) fn file_systems(directories: [(&'static str, &PathBuf); 3]) -> Vec<FileSystem> {
    let mounts = of_this_thread();
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
    fn a_mount_has_the_fields_that_the_kernel_lists() {
        let mounts = parse(
            b"21 1 254:1 / / rw - ext4 /dev/vda1 rw\n\
              121 21 254:1 /etc/cni/net.d /host/with\\040blank rw shared:1 master:2 - ext4 /dev/vda1 rw\n\
              not a mount\n",
        );
        let of = |id, root: &str, point: &str| Mount {
            id,
            device: "254:1".to_owned(),
            root: root.into(),
            point: point.into(),
            kind: "ext4".to_owned(),
        };
        assert_eq!(mounts, [of(21, "/", "/"), of(121, "/etc/cni/net.d", "/host/with blank")]);
        assert!(of_this_thread().iter().any(|mount| mount.point.as_os_str() == "/proc"));
    }

    #[test]
    fn f11_the_mount_of_a_directory_is_named() {
        let mounts = of_this_thread();
        let proc = mount_of(&mounts, Path::new("/proc/self/net")).unwrap();
        assert_eq!(proc, "/proc (proc)");
        assert_eq!(mount_of(&mounts, Path::new("/nowhere")), None);
        assert!(space(Path::new("/nowhere")).is_err());
    }
}
