//! Joins the layers of an error in one line, and finds the errno of an `io::Error`.

use nix::errno::Errno;
use std::error::Error;
use std::io;

/// Joins the layers' texts, the outermost first.
pub(crate) fn chain(error: &dyn Error) -> String {
    let below = std::iter::successors(error.source(), |cause: &&dyn Error| (*cause).source());
    below.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

/// Returns the errno of an error; `EIO` for an error that std raised itself, such as an unexpected end of file.
pub(crate) fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// The hint when the kernel denies an access to another user.
pub(crate) const RUN_AS_ROOT: &str = "run as root";
