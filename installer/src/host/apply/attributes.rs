//! Extended attributes that a rewritten conf file keeps: labels of security modules, access control lists, and
//! the `user` namespace. Attributes that depend on the content (IMA's hash) are not kept.

use std::os::fd::AsFd;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};

/// The kernel's limit for a list of names and for a value, in bytes (xattr(7)).
const MAX_SIZE: usize = 64 << 10;

const KEPT: [&[u8]; 3] = [b"security.selinux", b"security.SMACK64", b"system.posix_acl_access"];

/// Copies the attributes that can be read from `from` and set on `to`. Skips the others: an unrepaired chain is
/// worse than a missing attribute. Call it after setting the mode, which changes an access control list.
pub(super) fn copy(from: impl AsFd, to: impl AsFd) {
    let (from, to) = (from.as_fd(), to.as_fd());
    let (mut names, mut value) = (vec![0; MAX_SIZE], vec![0; MAX_SIZE]);
    let length = flistxattr(from, names.as_mut_slice()).unwrap_or_default();
    names.truncate(length);
    for name in names.split(|byte| *byte == 0).filter(|name| is_kept(name)) {
        if let Ok(length) = fgetxattr(from, name, value.as_mut_slice()) {
            let _ = fsetxattr(to, name, value.get(..length).unwrap_or_default(), XattrFlags::empty());
        }
    }
}

fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") || KEPT.contains(&name)
}
