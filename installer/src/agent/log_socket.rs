//! The socket to which plugins send their lines: each is counted, and told again.

use super::calls::Calls;
use super::place::PlaceError;
use super::sockets::{LOOK, Socket, UnsupportedPolicy};
use crate::log::Journal;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockType;
use serde_json::Value;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// A plugin's line is shorter than a pipe's atomic write.
const LONGEST: usize = 4096;

/// After so many lines it is looked whether the agent ends.
const AT_ONCE: usize = 256;

/// Where plugins send their lines.
#[derive(Debug)]
pub(crate) struct LogSocket(Socket<UnixDatagram>);

impl LogSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, PlaceError> {
        Socket::open(path, SockType::Datagram).map(Self)
    }

    /// Counts and tells lines until `end` wakes.
    pub(crate) fn serve(
        &mut self,
        end: BorrowedFd<'_>,
        calls: &Calls,
        (journal, unserved): (&Journal, &UnsupportedPolicy),
    ) -> Result<(), Errno> {
        let timeout = PollTimeout::try_from(LOOK).map_err(|_| Errno::EINVAL)?;
        loop {
            let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds = [readable(end), readable(self.0.as_fd())];
            let came = match poll(&mut fds, timeout) {
                Err(Errno::EINTR) => continue,
                came => came?,
            };
            let [ended, lines] = fds.map(|fd| fd.any().unwrap_or(false));
            if lines {
                self.receive(journal, calls);
            }
            if ended {
                return Ok(());
            }
            if came == 0 {
                self.0.keep(unserved, journal);
            }
        }
    }

    /// Counts and tells what has arrived. What is no JSON object is not ours to print: it is dropped.
    /// A line without a message is below the plugin's level, and only to be counted.
    fn receive(&self, journal: &Journal, calls: &Calls) {
        let mut buffer = vec![0; LONGEST];
        for _ in 0..AT_ONCE {
            let Ok(length) = self.0.open.recv(&mut buffer) else { return };
            if let Ok(Value::Object(line)) = serde_json::from_slice(buffer.get(..length).unwrap_or_default())
            {
                calls.heard(&line);
                if line.contains_key("msg") {
                    journal.relay(line);
                }
            }
        }
    }
}
