//! The socket at which the plugin queries facts about pods. The protocol is in `gybe_plugin`'s `facts::wire`; the pods
//! come from a [`PodLookup`]. `gybe_plugin`'s `facts::ambient` is the request that hands over the network namespace of an
//! ambient pod.
//!
//! One thread reads all connections and responds at once if the pod is in the cache, which it nearly always is: a
//! thread for each connection costs more than the response. Queries that have to wait are in `dispatcher`. Idle
//! connections are bounded; the oldest is dropped.

mod dispatcher;
#[cfg(test)]
mod tests;

use crate::agent::pods::PodLookup;
use crate::agent::ztunnel::AmbientPods;
use crate::agent_status::{self, AgentStatus};
use crate::lead::socket::{
    ACCEPT_PAUSE, CHECK_INTERVAL, ServedSocket, SocketContext, SocketFileError, is_authorized,
};
pub(super) use dispatcher::MAX_REQUEST_FILES;
use dispatcher::{Dispatcher, JobQueue};
use gybe_netfilter::kernel::netns::{Netns, NetnsError};
use gybe_plugin::facts::ambient::{self, AmbientPod, HandOverBy, HandOverRequest, LeaveStep, PodUid};
use gybe_plugin::facts::wire::{self, FactsRequest, MAX_REQUEST_BYTES, WireError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, SockType, send};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{iter, thread};

/// The maximum number of connections without a complete query. The plugin sends as soon as it is connected, and a node
/// has 110 pods, or some hundreds.
const MAX_IDLE: usize = 256;

/// At the end of the agent all waiting connections are accepted: as many as a backlog holds (net.core.somaxconn).
const BACKLOG: usize = 4096;

#[derive(Debug)]
pub(crate) struct FactsSocket {
    socket: ServedSocket<UnixListener>,
    /// Until when no connection is accepted.
    paused_until: Option<Instant>,
    /// None where ambient mode is off.
    ambient: Option<Arc<AmbientPods>>,
}

/// What poll(2) reported.
struct ReadyDescriptors {
    stop: bool,
    listener: bool,
    /// One for each idle connection.
    connections: Vec<bool>,
    timed_out: bool,
}

impl FactsSocket {
    /// Opens the socket. `ambient` has the pods that are handed over; none where ambient mode is off.
    pub(crate) fn open(path: &Path, ambient: Option<Arc<AmbientPods>>) -> Result<Self, SocketFileError> {
        let socket = ServedSocket::open(path, SockType::Stream)?;
        Ok(Self { socket, paused_until: None, ambient })
    }

    /// Responds to queries until `stop` is readable. Queries that have arrived by then, and those that wait for a pod,
    /// still get a response within their deadlines.
    pub(crate) fn serve(
        &mut self,
        stop: BorrowedFd<'_>,
        pods: &dyn PodLookup,
        status: &(dyn Fn() -> AgentStatus + Sync),
        context: SocketContext<'_>,
    ) -> Result<(), Errno> {
        let (lookups, hand_overs, mut idle) = (JobQueue::default(), JobQueue::default(), VecDeque::new());
        let ambient = self.ambient.clone();
        let ambient = ambient.as_deref();
        thread::scope(|scope| {
            let dispatcher = Dispatcher {
                pods,
                ambient,
                status,
                log: context.log,
                lookups: &lookups,
                hand_overs: &hand_overs,
                scope,
            };
            loop {
                let ready = self.wait(stop, &idle)?;
                let waited = idle.drain(..).zip(ready.connections);
                let still_idle = waited.filter_map(|(connection, is_readable)| {
                    if is_readable { dispatcher.receive(connection) } else { Some(connection) }
                });
                idle = still_idle.filter(FactsConnection::has_time).collect();
                let most = if ready.stop { BACKLOG } else { usize::from(ready.listener) };
                let accepted: Vec<_> = iter::from_fn(|| self.accept()).take(most).collect();
                let authorized = accepted.into_iter().filter(|stream| is_authorized(stream, context.log));
                let connections = authorized.map(|stream| FactsConnection::new(stream, Instant::now()));
                idle.extend(connections.filter_map(|connection| dispatcher.receive(connection)));
                idle.drain(..idle.len().saturating_sub(MAX_IDLE));
                if ready.stop {
                    return Ok(());
                }
                if ready.timed_out {
                    self.socket.restore(context);
                }
            }
        })
    }

    /// Waits for a connection, for data, or for the first deadline of an idle connection.
    fn wait(
        &self,
        stop: BorrowedFd<'_>,
        idle: &VecDeque<FactsConnection>,
    ) -> Result<ReadyDescriptors, Errno> {
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let pause = self.paused_until.map(|until| until.saturating_duration_since(Instant::now()));
        let pause = pause.filter(|pause| !pause.is_zero());
        let events = if pause.is_some() { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds = vec![readable(stop), PollFd::new(self.socket.as_fd(), events)];
        fds.extend(idle.iter().map(|connection| readable(connection.as_fd())));
        // All connections have the same timeout, so the first one's deadline comes first; poll(2) counts whole
        // milliseconds.
        let left = idle.front().map_or(CHECK_INTERVAL, |first| first.left() + Duration::from_millis(1));
        let left = left.min(pause.unwrap_or(CHECK_INTERVAL)).min(CHECK_INTERVAL);
        let timed_out = match poll(&mut fds, PollTimeout::try_from(left).map_err(|_| Errno::EINVAL)?) {
            Err(Errno::EINTR) => false,
            ready => ready? == 0 && pause.is_none(),
        };
        let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
        let [stop, listener] = [ready.next(), ready.next()].map(Option::unwrap_or_default);
        Ok(ReadyDescriptors { stop, listener, connections: ready.collect(), timed_out })
    }

    fn accept(&mut self) -> Option<UnixStream> {
        match self.socket.open.accept() {
            Ok((stream, _)) => Some(stream),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => None,
            Err(_) => {
                self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                None
            }
        }
    }
}

/// How long a client may take to send its request, and to read the response if the request names no deadline.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The longest deadline that a request may name.
const MAX_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest deadline of a hand-over: a newest ztunnel that hangs is disconnected after
/// [`crate::agent::ztunnel::TIMEOUT`], and the one before it then has nearly as long.
const MAX_HAND_OVER: Duration = Duration::from_secs(10);

/// The least part of a request's time that is reserved for its response.
const SEND_TIME: Duration = Duration::from_millis(50);

/// A connection of an authorized client.
#[derive(Debug)]
pub(super) struct FactsConnection {
    stream: UnixStream,
    received: Vec<u8>,
    /// The descriptors that came with the request. The second one is kept as the proof that there are too many.
    descriptors: Vec<OwnedFd>,
    /// Whether the kernel closed a descriptor.
    is_truncated: bool,
    /// The deadline of the request, and then of the response.
    until: Instant,
}

/// A client's request.
pub(super) enum ClientRequest {
    Pod(FactsRequest),
    /// The agent's status.
    Status,
    /// An ambient pod with its network namespace.
    Ambient(AmbientPod, Netns, HandOverBy),
    /// An ambient pod leaves the mesh.
    AmbientLeaves(PodUid, LeaveStep),
}

/// Why a request is invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the request comes without a network namespace")]
    NoDescriptor,
    #[error("the request comes with more than one descriptor")]
    ManyDescriptors,
    #[error(
        "the kernel closed descriptors of the request: it comes with more than one, or the agent has too many \
         open files"
    )]
    Truncated,
    #[error("the descriptor of the request cannot be used")]
    Netns(#[from] NetnsError),
}

/// The result of a read.
pub(super) enum ReceivedBytes {
    Incomplete,
    Request(Result<ClientRequest, RequestError>),
    /// The client closed the connection, or its request is too long.
    Nothing,
}

impl FactsConnection {
    pub(super) fn new(stream: UnixStream, now: Instant) -> Self {
        let (received, descriptors) = (Vec::new(), Vec::new());
        Self { stream, received, descriptors, is_truncated: false, until: now + TIMEOUT }
    }

    /// Reads what has arrived. A request ends with a newline, or where the client shuts down its sending side.
    pub(super) fn receive(&mut self) -> ReceivedBytes {
        let mut buffer = [0; MAX_REQUEST_BYTES];
        // The kernel closes descriptors for which there is no room.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let (mut parts, flags) =
            ([IoSliceMut::new(&mut buffer)], RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC);
        let (length, flags) = match recvmsg(&self.stream, &mut parts, &mut control, flags) {
            Ok(read) => (read.bytes, read.flags),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return ReceivedBytes::Incomplete,
            Err(_) => return ReceivedBytes::Nothing,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
                self.descriptors.truncate(2);
            }
        }
        self.is_truncated |= flags.contains(ReturnFlags::CTRUNC);
        self.received.extend(buffer.iter().take(length));
        let has_ended = length == 0 || self.received.contains(&b'\n');
        match (has_ended, self.received.len()) {
            (true, 1..) => ReceivedBytes::Request(self.parse()),
            (false, ..=MAX_REQUEST_BYTES) => ReceivedBytes::Incomplete,
            _ => ReceivedBytes::Nothing,
        }
    }

    /// Parses the request, and sets the deadline of its response.
    fn parse(&mut self) -> Result<ClientRequest, RequestError> {
        let json = wire::parse_request(&self.received);
        if let Some(request) = json.as_ref().ok().and_then(ambient::decode_request) {
            let HandOverRequest { pod, by, timeout } = request?;
            self.until = Instant::now() + timeout.min(MAX_HAND_OVER);
            let descriptor = match (self.descriptors.pop(), self.descriptors.is_empty()) {
                _ if self.is_truncated => return Err(RequestError::Truncated),
                (None, _) => return Err(RequestError::NoDescriptor),
                (Some(_), false) => return Err(RequestError::ManyDescriptors),
                (Some(descriptor), true) => descriptor,
            };
            return Ok(ClientRequest::Ambient(pod, Netns::received(descriptor)?, by));
        }
        if let Some(leaves) = json.as_ref().ok().and_then(ambient::decode_leave) {
            return leaves.map(|(pod, step)| ClientRequest::AmbientLeaves(pod, step)).map_err(Into::into);
        }
        let request = json.as_ref().map_err(Clone::clone).and_then(wire::request_of);
        let timeout = request.as_ref().ok().and_then(|request| request.timeout).unwrap_or(TIMEOUT);
        self.until = Instant::now() + timeout.min(MAX_TIMEOUT);
        match request {
            Err(_) if agent_status::is_request(&self.received) => Ok(ClientRequest::Status),
            request => Ok(ClientRequest::Pod(request?)),
        }
    }

    /// Returns the time by which the response has to be ready. The rest is for sending it, and for a client on a busy
    /// node to read it.
    pub(super) fn ready_by(&self) -> Instant {
        self.until - (self.left() / 10).clamp(SEND_TIME, SEND_TIME * 10)
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

impl AsFd for FactsConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
