//! One client connection: collects the request from the bytes that arrive, and sends the response as far as the client
//! reads it. Only `send_all` blocks.

use crate::agent_status;
use gybe_plugin::facts::wire::{self, FactsRequest, MAX_REQUEST_BYTES, WireError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a client may take to send its request, and to read the response if the request names no deadline.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The longest deadline that a request may name.
const MAX_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection of an authorized client.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    /// The deadline of the request, and then of the response.
    until: Instant,
}

/// A client's request.
pub(super) enum Request {
    Pod(FactsRequest),
    /// The agent's status.
    Status,
}

/// The result of a read.
pub(super) enum Received {
    Incomplete,
    Request(Result<Request, WireError>),
    /// The client closed the connection, or its request is too long.
    Nothing,
}

impl Connection {
    pub(super) fn new(stream: UnixStream, now: Instant) -> Self {
        Self { stream, received: Vec::new(), until: now + TIMEOUT }
    }

    /// Reads what has arrived. A request ends with a newline, or where the client shuts down its sending side.
    pub(super) fn receive(&mut self) -> Received {
        let mut buffer = [0; MAX_REQUEST_BYTES];
        let has_ended = match recv(self.stream.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => {
                self.received.extend(buffer.iter().take(length));
                length == 0 || self.received.contains(&b'\n')
            }
            Err(Errno::EAGAIN | Errno::EINTR) => return Received::Incomplete,
            Err(_) => return Received::Nothing,
        };
        match (has_ended, self.received.len()) {
            (true, 1..) => Received::Request(self.parse()),
            (false, ..=MAX_REQUEST_BYTES) => Received::Incomplete,
            _ => Received::Nothing,
        }
    }

    /// Parses the request, and sets the deadline of its response.
    fn parse(&mut self) -> Result<Request, WireError> {
        let request = wire::decode_request(&self.received);
        let timeout = request.as_ref().ok().and_then(|request| request.timeout).unwrap_or(TIMEOUT);
        self.until = Instant::now() + timeout.min(MAX_TIMEOUT);
        match request {
            Err(_) if agent_status::is_request(&self.received) => Ok(Request::Status),
            request => request.map(Request::Pod),
        }
    }

    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Returns the time until the deadline.
    pub(super) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    pub(super) fn has_time(&self) -> bool {
        !self.left().is_zero()
    }

    pub(super) fn is_closed(&self) -> bool {
        let mut hung_up = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        matches!(poll(&mut hung_up, PollTimeout::ZERO), Ok(1..))
    }

    /// Sends what the socket takes without blocking; returns the number of bytes.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match send(self.stream.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(0),
            sent => sent,
        }
    }

    /// Sends all bytes before the deadline.
    pub(super) fn send_all(&self, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            let sent = self.send(bytes)?;
            bytes = bytes.get(sent..).unwrap_or_default();
            let timeout = PollTimeout::try_from(self.left()).map_err(|_| Errno::EINVAL)?;
            let mut writable = [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)];
            if !bytes.is_empty() && poll(&mut writable, timeout) == Ok(0) {
                return Err(Errno::ETIMEDOUT);
            }
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
