//! One caller: its question as its words come, and the answer as it takes it. Only `say_all` waits.

use crate::agent::agent_status;
use gybe_plugin::facts::wire::{self, FactsRequest, MAX_REQUEST_BYTES, WireError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a caller may take to ask; and to take its answer, if it does not say.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest anybody is waited with, whatever the caller says.
const MOST_PATIENCE: Duration = Duration::from_secs(5);

/// Somebody who called, and may.
#[derive(Debug)]
pub(super) struct Caller {
    stream: UnixStream,
    words: Vec<u8>,
    /// Until when it is listened to, and then until when it listens.
    until: Instant,
}

/// What a caller wants to know.
pub(super) enum Request {
    /// What a pod is.
    Pod(FactsRequest),
    /// How the agent stands.
    Status,
}

/// What came of listening.
pub(super) enum Heard {
    /// A question, or the beginning of one, that is not whole.
    Part,
    /// All it has to say.
    Request(Result<Request, WireError>),
    /// It left, or does not come to an end.
    Nothing,
}

impl Caller {
    pub(super) fn new(stream: UnixStream, now: Instant) -> Self {
        Self { stream, words: Vec::new(), until: now + PATIENCE }
    }

    /// Takes what was said by now: one line, or all until it stops talking.
    pub(super) fn hear(&mut self) -> Heard {
        let mut buffer = [0; MAX_REQUEST_BYTES];
        let ended = match recv(self.stream.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => {
                self.words.extend(buffer.iter().take(length));
                length == 0 || self.words.contains(&b'\n')
            }
            Err(Errno::EAGAIN | Errno::EINTR) => return Heard::Part,
            Err(_) => return Heard::Nothing,
        };
        match (ended, self.words.len()) {
            (true, 1..) => Heard::Request(self.asked()),
            (false, ..=MAX_REQUEST_BYTES) => Heard::Part,
            _ => Heard::Nothing,
        }
    }

    /// It waits for its answer from now on.
    fn asked(&mut self) -> Result<Request, WireError> {
        let asked = wire::decode_request(&self.words);
        let patience = asked.as_ref().ok().and_then(|question| question.timeout).unwrap_or(PATIENCE);
        self.until = Instant::now() + patience.min(MOST_PATIENCE);
        match asked {
            Err(_) if agent_status::is_request(&self.words) => Ok(Request::Status),
            asked => asked.map(Request::Pod),
        }
    }

    /// Until when it listens.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// How long it is listened to.
    pub(super) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    pub(super) fn has_time(&self) -> bool {
        !self.left().is_zero()
    }

    /// Whether it has hung up.
    pub(super) fn has_left(&self) -> bool {
        let mut hung_up = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        matches!(poll(&mut hung_up, PollTimeout::ZERO), Ok(1..))
    }

    /// Says what it takes without being waited for; gives how much that is.
    pub(super) fn say(&self, words: &[u8]) -> Result<usize, Errno> {
        match send(self.stream.as_raw_fd(), words, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
            said => said,
        }
    }

    /// Says everything, in the time it has.
    pub(super) fn say_all(&self, mut words: &[u8]) -> Result<(), Errno> {
        while !words.is_empty() {
            let said = self.say(words)?;
            words = words.get(said..).unwrap_or_default();
            let timeout = PollTimeout::try_from(self.left()).map_err(|_| Errno::EINVAL)?;
            let mut ready = [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)];
            if !words.is_empty() && poll(&mut ready, timeout) == Ok(0) {
                return Err(Errno::ETIMEDOUT);
            }
        }
        Ok(())
    }
}

impl AsFd for Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
