//! The socket at which the plugin queries facts about pods. The protocol is in `gybe_plugin`'s `facts::wire`; the pods
//! come from a [`PodLookup`].
//!
//! One thread reads all connections and responds at once if the pod is in the cache, which it nearly always is: a
//! thread for each connection costs more than the response. Queries that have to wait are in `dispatcher`. Idle
//! connections are bounded; the oldest is dropped.

mod connection;
mod dispatcher;

use crate::agent::pods::PodLookup;
use crate::agent_status::AgentStatus;
use crate::lead::socket::SocketContext;
use crate::lead::socket::{ACCEPT_PAUSE, CHECK_INTERVAL, Socket, is_authorized};
use crate::lead::socket_file::SocketError;
use connection::Connection;
use dispatcher::{Dispatcher, JobQueue};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockType;
use std::collections::VecDeque;
use std::io;
use std::iter;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The maximum number of connections without a complete query. The plugin sends as soon as it is connected, and a node
/// has 110 pods, or some hundreds.
const MAX_IDLE: usize = 256;

/// At the end of the agent all waiting connections are accepted: as many as a backlog holds (net.core.somaxconn).
const BACKLOG: usize = 4096;

#[derive(Debug)]
pub(crate) struct FactsSocket {
    socket: Socket<UnixListener>,
    /// Until when no connection is accepted.
    paused_until: Option<Instant>,
}

/// What poll(2) reported.
struct Ready {
    stop: bool,
    listener: bool,
    /// One for each idle connection.
    connections: Vec<bool>,
    timed_out: bool,
}

impl FactsSocket {
    pub(crate) fn open(path: &Path) -> Result<Self, SocketError> {
        let socket = Socket::open(path, SockType::Stream)?;
        Ok(Self { socket, paused_until: None })
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
        let (queue, mut idle) = (JobQueue::default(), VecDeque::new());
        thread::scope(|scope| {
            let dispatcher = Dispatcher { pods, status, log: context.log, queue: &queue, scope };
            loop {
                let ready = self.wait(stop, &idle)?;
                let waited = idle.drain(..).zip(ready.connections);
                let still_idle = waited.filter_map(|(connection, is_readable)| {
                    if is_readable { dispatcher.receive(connection) } else { Some(connection) }
                });
                idle = still_idle.filter(Connection::has_time).collect();
                let most = if ready.stop { BACKLOG } else { usize::from(ready.listener) };
                let accepted: Vec<_> = iter::from_fn(|| self.accept()).take(most).collect();
                let authorized = accepted.into_iter().filter(|stream| is_authorized(stream, context.log));
                let connections = authorized.map(|stream| Connection::new(stream, Instant::now()));
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
    fn wait(&self, stop: BorrowedFd<'_>, idle: &VecDeque<Connection>) -> Result<Ready, Errno> {
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
        Ok(Ready { stop, listener, connections: ready.collect(), timed_out })
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
