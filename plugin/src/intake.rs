//! Bytes from somebody who may be slow, or never end: so many, and until then.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// Why they were not read to their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The kernel refused.
    Refused(Errno),
    /// There are more.
    TooLong,
    /// They did not end in time.
    Late,
}

/// Reads until the other side closes.
pub(crate) fn read(from: BorrowedFd<'_>, most: usize, until: Instant) -> Result<Vec<u8>, Cut> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        wait(from, until)?;
        match nix::unistd::read(from, &mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend(buffer.iter().take(length)),
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
