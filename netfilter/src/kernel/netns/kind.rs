//! The type of a namespace's file descriptor, by an ioctl that nix does not wrap.

use nix::errno::Errno;
use nix::sched::CloneFlags;
use nix::sys::statfs::{FsType, fstatfs};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `NSFS_MAGIC` of `include/uapi/linux/magic.h`: the file system of namespace files.
const NSFS: FsType = FsType(0x6e73_6673);

mod request {
    // `NS_GET_NSTYPE`, `_IO(0xb7, 3)` of `include/uapi/linux/nsfs.h`. Linux 4.11.
    nix::ioctl_none!(ns_get_nstype, 0xb7, 3);
}

/// Reports whether the descriptor is a namespace of any type.
pub(super) fn is_namespace(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(fstatfs(fd)?.filesystem_type() == NSFS)
}

/// The type of a namespace, as the flag that makes a new one.
#[expect(unsafe_code, reason = "nix makes every ioctl an unsafe function")]
pub(super) fn namespace_type(fd: BorrowedFd<'_>) -> Result<CloneFlags, Errno> {
    // SAFETY: the request takes no argument and touches no memory of ours; the descriptor is open,
    // because it is borrowed.
    let kind = unsafe { request::ns_get_nstype(fd.as_raw_fd())? };
    Ok(CloneFlags::from_bits_retain(kind))
}

/// The type's name, as in `/proc/PID/ns`.
pub(super) fn name(kind: CloneFlags) -> &'static str {
    match kind {
        CloneFlags::CLONE_NEWNS => "mnt",
        CloneFlags::CLONE_NEWCGROUP => "cgroup",
        CloneFlags::CLONE_NEWUTS => "uts",
        CloneFlags::CLONE_NEWIPC => "ipc",
        CloneFlags::CLONE_NEWUSER => "user",
        CloneFlags::CLONE_NEWPID => "pid",
        CloneFlags::CLONE_NEWNET => "net",
        // CLONE_NEWTIME has no flag in nix, and what comes later has no name here.
        _ => "time or unknown",
    }
}
