//! An error with all its layers in one line, and the kernel's number in an error of std's.

use nix::errno::Errno;
use std::error::Error;
use std::io;

/// Joins each layer's sentence, the outermost first.
pub(crate) fn chain(error: &dyn Error) -> String {
    let below = std::iter::successors(error.source(), |cause: &&dyn Error| (*cause).source());
    below.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

/// An error that std found by itself, such as a source that ended too soon, has no number: it counts as `EIO`,
/// and never as 0, which would be success.
pub(crate) fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
