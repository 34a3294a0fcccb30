//! What the agent tells on stderr, one JSON object a line: its own news, and what plugins sent.

use super::calls::Calls;
use super::place::{Place, PlaceError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, SockType, recv};
use serde_json::{Map, Value};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;

/// A plugin's line is shorter than a pipe's atomic write.
const LONGEST: usize = 4096;

/// After so many lines it is looked whether the agent ends.
const AT_ONCE: usize = 256;

/// Writes lines whole.
#[derive(Debug, Default)]
pub(crate) struct Journal(Mutex<()>);

impl Journal {
    /// Tells something of the agent's own.
    pub(crate) fn tell(&self, level: &str, message: &str, more: Value) {
        let mut line =
            Map::from_iter([("level".to_owned(), level.into()), ("msg".to_owned(), message.into())]);
        if let Value::Object(more) = more {
            line.extend(more);
        }
        self.write(&Value::Object(line));
    }

    fn write(&self, line: &Value) {
        // Formatted into stderr, which has no buffer, each of its words and commas is a write of its own.
        let line = format!("{line}\n");
        let _whole = self.0.lock();
        // There is nobody left to tell when stderr is closed.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

/// Where plugins send their lines.
#[derive(Debug)]
pub(crate) struct LogSocket {
    socket: OwnedFd,
    place: Place,
}

impl LogSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, PlaceError> {
        let (place, socket) = Place::take(path, SockType::Datagram, |_| Ok(()))?;
        Ok(Self { socket, place })
    }

    /// Whether a line sent there is heard.
    pub(crate) fn stands(&self) -> bool {
        self.place.stands()
    }

    /// Counts and tells lines until `end` wakes.
    pub(crate) fn serve(&self, end: BorrowedFd<'_>, journal: &Journal, calls: &Calls) -> Result<(), Errno> {
        loop {
            let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds = [readable(end), readable(self.socket.as_fd())];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(why) => return Err(why),
            }
            let [ended, lines] = fds.map(|fd| fd.any().unwrap_or(false));
            if lines {
                self.receive(journal, calls);
            }
            if ended {
                return Ok(());
            }
        }
    }

    /// Counts and tells what has arrived. What is no JSON object is not ours to print: it is dropped.
    /// A line without a message is below the plugin's level, and only to be counted.
    fn receive(&self, journal: &Journal, calls: &Calls) {
        let mut buffer = vec![0; LONGEST];
        for _ in 0..AT_ONCE {
            let Ok(length) = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) else {
                return;
            };
            if let Ok(Value::Object(line)) = serde_json::from_slice(buffer.get(..length).unwrap_or_default())
            {
                calls.heard(&line);
                if line.contains_key("msg") {
                    journal.write(&Value::Object(line));
                }
            }
        }
    }
}
