//! The mounts of a mount namespace, as the kernel lists them (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

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
}
