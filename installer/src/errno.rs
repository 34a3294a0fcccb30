//! The kernel's number in an error of std's.

use nix::errno::Errno;
use std::io::Error;

/// What std found wrong by itself, such as a source that ended too soon, has none: it counts as `EIO`,
/// and never as 0, which would be success.
pub(crate) fn errno(why: &Error) -> Errno {
    why.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
