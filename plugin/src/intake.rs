//! Bytes from somebody who may be slow, or never end: so many, and until then.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Most calls fit into one piece, and a larger one would be zeroed for nothing: each page of it is a
/// page fault in every ADD.
const PIECE: usize = 4 * 1024;

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
    gather(from, (most, until), |_| false)
}

/// Reads one line, from somebody who says no more than that: nobody waits for the closing that follows.
/// Without an end of its line it is what came until the other side closed.
///
/// # Errors
/// When there are more than `most` bytes, or they do not end by then.
pub fn line(from: BorrowedFd<'_>, most: usize, until: Instant) -> Result<Vec<u8>, Cut> {
    gather(from, (most, until), |came| came.ends_with(b"\n"))
}

/// Reads until what came is whole, or the other side closes.
fn gather(
    from: BorrowedFd<'_>,
    (most, until): (usize, Instant),
    is_whole: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, Cut> {
    let (mut bytes, mut length) = (vec![0; PIECE], 0);
    loop {
        wait(from, until)?;
        match nix::unistd::read(from, bytes.get_mut(length..).unwrap_or_default()) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(fault) => return Err(Cut::Refused(fault)),
        }
        if length > most {
            return Err(Cut::TooLong);
        }
        if is_whole(bytes.get(..length).unwrap_or_default()) {
            break;
        }
        if length == bytes.len() {
            // Never full, or the end could not be told from a buffer without room.
            bytes.resize(length * 2, 0);
        }
    }
    bytes.truncate(length);
    Ok(bytes)
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
