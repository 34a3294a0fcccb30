//! Reads that another program cannot prolong: at most so many bytes, until a deadline, and never from a FIFO
//! that waits for its writer.

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most requests fit into one buffer of this size; each page of a larger one costs every ADD a page fault,
/// because the buffer is zeroed.
const BUFFER: usize = 4 * 1024;

/// The largest network configuration that is read from stdin; a pod's annotations, most of it, come to
/// 256 KiB.
const MAX_STDIN: usize = 16 * 1024 * 1024;

/// A runtime writes stdin at once; the time is for an overloaded node.
pub(crate) const STDIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the input was not read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// A system call failed.
    #[error("it cannot be read")]
    Kernel(#[source] Errno),
    /// More bytes than allowed.
    #[error("it is longer than allowed")]
    TooLong,
    /// The deadline passed before the end.
    #[error("it did not end in time")]
    Timeout,
}

/// Why stdin could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StdinError {
    /// A system call failed.
    #[error("stdin cannot be read")]
    Kernel(#[source] Errno),
    /// More bytes than allowed.
    #[error("stdin holds more than {MAX_STDIN} bytes")]
    TooLong,
    /// The caller did not close it in time.
    #[error("stdin did not end within {0:?}")]
    Timeout(Duration),
}

/// Reads until the other side closes.
///
/// # Errors
/// When there are more than `max` bytes, or the other side does not close before the deadline.
pub fn to_end(from: BorrowedFd<'_>, max: usize, deadline: Instant) -> Result<Vec<u8>, ReadError> {
    read(from, max, deadline, |_| false)
}

/// Reads one line from a peer that sends nothing else, so that its close need not be awaited. Without a
/// line feed it is what came until the other side closed.
///
/// # Errors
/// When there are more than `max` bytes, or the line does not end before the deadline.
pub fn line(from: BorrowedFd<'_>, max: usize, deadline: Instant) -> Result<Vec<u8>, ReadError> {
    read(from, max, deadline, |bytes| bytes.ends_with(b"\n"))
}

/// Reads the network configuration.
///
/// # Errors
/// When it is too long, or does not end within `timeout`.
pub(crate) fn stdin(stdin: BorrowedFd<'_>, timeout: Duration) -> Result<Vec<u8>, StdinError> {
    to_end(stdin, MAX_STDIN, Instant::now() + timeout).map_err(|error| match error {
        ReadError::Kernel(errno) => StdinError::Kernel(errno),
        ReadError::TooLong => StdinError::TooLong,
        ReadError::Timeout => StdinError::Timeout(timeout),
    })
}

/// Opens a regular file, and returns its length in bytes, which another program may be about to change.
///
/// # Errors
/// When it cannot be opened, or is a directory, a FIFO or a device.
pub fn open_file(path: &Path) -> io::Result<(File, u64)> {
    // Without O_NONBLOCK the open of a FIFO waits for a writer, and ADD with it (fifo(7)).
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => Ok((file, metadata.len())),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Reads until `is_complete`, or until the other side closes.
fn read(
    from: BorrowedFd<'_>,
    max: usize,
    deadline: Instant,
    is_complete: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, ReadError> {
    let (mut bytes, mut length) = (vec![0; BUFFER], 0);
    loop {
        wait_readable(from, deadline)?;
        match nix::unistd::read(from, bytes.get_mut(length..).unwrap_or_default()) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(errno) => return Err(ReadError::Kernel(errno)),
        }
        if length > max {
            return Err(ReadError::TooLong);
        }
        if is_complete(bytes.get(..length).unwrap_or_default()) {
            break;
        }
        if length == bytes.len() {
            // A full buffer would make read(2) return 0, like the end of the input.
            bytes.resize(length * 2, 0);
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

fn wait_readable(from: BorrowedFd<'_>, deadline: Instant) -> Result<(), ReadError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).map_err(|_| ReadError::Kernel(Errno::EINVAL))?;
        match poll(&mut [PollFd::new(from, PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(ReadError::Timeout),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(ReadError::Kernel(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Write, pipe};
    use std::os::fd::AsFd;

    #[test]
    fn input_written_in_pieces_is_read_whole() {
        let (reader, mut writer) = pipe().unwrap();
        let writing = std::thread::spawn(move || {
            for _ in 0..100 {
                writer.write_all(&[b' '; 3000]).unwrap();
            }
        });
        assert_eq!(stdin(reader.as_fd(), STDIN_TIMEOUT).unwrap().len(), 300_000);
        writing.join().unwrap();
    }

    #[test]
    fn f34_stdin_that_is_never_closed_ends_in_a_timeout() {
        let (reader, mut writer) = pipe().unwrap();
        writer.write_all(b"{").unwrap();
        let timeout = Duration::from_millis(20);
        assert_eq!(stdin(reader.as_fd(), timeout), Err(StdinError::Timeout(timeout)));
    }

    #[test]
    fn f34_endless_stdin_is_refused_at_its_maximum_length() {
        let endless = File::open("/dev/zero").unwrap();
        assert_eq!(stdin(endless.as_fd(), STDIN_TIMEOUT), Err(StdinError::TooLong));
    }

    #[test]
    fn empty_stdin_is_read_and_a_directory_is_an_error() {
        assert_eq!(stdin(File::open("/dev/null").unwrap().as_fd(), STDIN_TIMEOUT), Ok(Vec::new()));
        let directory = File::open("/").unwrap();
        assert_eq!(stdin(directory.as_fd(), STDIN_TIMEOUT), Err(StdinError::Kernel(Errno::EISDIR)));
    }
}
