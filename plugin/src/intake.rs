//! Bytes from somebody who may be slow, or never end: so many, and until then.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Most calls fit into one piece, and a larger one would be zeroed for nothing: each page of it is a
/// page fault in every ADD.
const PIECE: usize = 8 * 1024;

/// Why they were not read to their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    /// The kernel refused.
    #[error("the kernel refused")]
    Refused(#[source] Errno),
    /// There are more.
    #[error("there is more than anybody would say")]
    TooLong,
    /// They did not end in time.
    #[error("it did not end in time")]
    Late,
}

/// Reads until the other side closes.
///
/// # Errors
/// When there are more than `most` bytes, or they do not end by then.
pub fn read(from: BorrowedFd<'_>, most: usize, until: Instant) -> Result<Vec<u8>, Cut> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; PIECE]);
    loop {
        wait(from, until)?;
        match nix::unistd::read(from, &mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend_from_slice(buffer.get(..length).unwrap_or_default()),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(fault) => return Err(Cut::Refused(fault)),
        }
        if bytes.len() > most {
            return Err(Cut::TooLong);
        }
    }
}

/// Returns when there is something to read, or the end.
fn wait(from: BorrowedFd<'_>, until: Instant) -> Result<(), Cut> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).map_err(|_| Cut::Refused(Errno::EINVAL))?;
        match poll(&mut [PollFd::new(from, PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(Cut::Late),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(fault) => return Err(Cut::Refused(fault)),
        }
    }
}
