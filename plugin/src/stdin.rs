//! The bytes a runtime writes to us: never more than fit, never waited for without end.

use crate::intake::{self, Cut};
use nix::errno::Errno;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// No entry is larger: a pod's annotations, which are the most of it, come to 256 KiB.
const MOST: usize = 16 * 1024 * 1024;

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
    intake::read(stdin, MOST, Instant::now() + patience).map_err(|cut| match cut {
        Cut::Refused(fault) => StdinError::Read(fault),
        Cut::TooLong => StdinError::TooLong,
        Cut::Late => StdinError::Late(patience),
    })
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
    fn f34_a_side_that_never_closes_is_not_waited_for() {
        let (reader, mut writer) = pipe().unwrap();
        writer.write_all(b"{").unwrap();
        let patience = Duration::from_millis(20);
        assert_eq!(read(reader.as_fd(), patience), Err(StdinError::Late(patience)));
    }

    #[test]
    fn f34_a_side_that_never_ends_is_cut_off() {
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
