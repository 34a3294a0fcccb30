//! The bytes a runtime writes to us: never more than fit, never waited for without end.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// No entry is larger: a pod's annotations, which are the most of it, come to 256 KiB.
const MOST: usize = 16 * 1024 * 1024;

/// Most calls fit into one piece, and a larger one would be zeroed for nothing: each page of it is a
/// page fault in every ADD.
const PIECE: usize = 8 * 1024;

/// A runtime writes at once; the time is for a node that is short of it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(5);

/// Why stdin could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StdinError {
    /// The kernel refused.
    #[error("stdin cannot be read")]
    Read(#[source] Errno),
    /// Too much.
    #[error("stdin holds more than {MOST} bytes")]
    TooLong,
    /// Too late.
    #[error("stdin did not end within {0:?}")]
    Late(Duration),
}

/// Reads until the other side closes.
///
/// # Errors
/// When it holds too much, or does not end in time.
pub(crate) fn read(stdin: BorrowedFd<'_>, patience: Duration) -> Result<Vec<u8>, StdinError> {
    let until = Instant::now() + patience;
    let (mut bytes, mut buffer) = (Vec::new(), [0; PIECE]);
    loop {
        wait(stdin, until).map_err(|fault| match fault {
            Errno::ETIMEDOUT => StdinError::Late(patience),
            other => StdinError::Read(other),
        })?;
        match nix::unistd::read(stdin, &mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend_from_slice(buffer.get(..length).unwrap_or_default()),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(fault) => return Err(StdinError::Read(fault)),
        }
        if bytes.len() > MOST {
            return Err(StdinError::TooLong);
        }
    }
}

/// Returns when there is something to read, or the end.
fn wait(stdin: BorrowedFd<'_>, until: Instant) -> Result<(), Errno> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).map_err(|_| Errno::EINVAL)?;
        match poll(&mut [PollFd::new(stdin, PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(Errno::ETIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(fault) => return Err(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Write, pipe};
    use std::os::fd::AsFd;

    #[test]
    fn what_is_written_in_pieces_is_read_whole() {
        let (reader, mut writer) = pipe().unwrap();
        let wrote = std::thread::spawn(move || {
            for _ in 0..100 {
                writer.write_all(&[b' '; 3000]).unwrap();
            }
        });
        assert_eq!(read(reader.as_fd(), DEADLINE).unwrap().len(), 300_000);
        wrote.join().unwrap();
    }

    #[test]
    fn a_side_that_never_closes_is_not_waited_for() {
        let (reader, mut writer) = pipe().unwrap();
        writer.write_all(b"{").unwrap();
        let patience = Duration::from_millis(20);
        assert_eq!(read(reader.as_fd(), patience), Err(StdinError::Late(patience)));
    }

    #[test]
    fn a_side_that_never_ends_is_cut_off() {
        let endless = File::open("/dev/zero").unwrap();
        assert_eq!(read(endless.as_fd(), DEADLINE), Err(StdinError::TooLong));
    }

    #[test]
    fn nothing_at_all_is_an_empty_entry() {
        assert_eq!(read(File::open("/dev/null").unwrap().as_fd(), DEADLINE), Ok(Vec::new()));
        let directory = File::open("/").unwrap();
        assert_eq!(read(directory.as_fd(), DEADLINE), Err(StdinError::Read(Errno::EISDIR)));
    }
}
