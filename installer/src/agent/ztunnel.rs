//! The server from which the node's ztunnel receives its ambient pods: ZDS over a `SOCK_SEQPACKET` socket. Each pod's
//! open network namespace goes with its request, so ztunnel listens inside the pod. This module accepts connections;
//! `connection` has the exchange on one of them, `pods` what each ztunnel receives, `messages` the bytes.
//!
//! Each connection has a thread. A ztunnel may read every ambient pod's traffic by what it receives, so only root and the
//! agent's own user may connect.

mod connection;
pub mod messages;
mod pods;
mod status;

pub(super) use pods::PodState;
pub use pods::{AddError, AmbientPods, HandOver};
pub use status::{ZtunnelCounts, ZtunnelStatus};

use crate::error::chain;
use crate::lead::process::{Role, Shared};
use crate::lead::socket::{
    ACCEPT_PAUSE, CHECK_INTERVAL, ServeError, ServedSocket, SocketContext, SocketHealth, is_authorized,
};
use crate::log::Log;
use connection::{Connection, ConnectionEnd};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockType;
use serde_json::json;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

/// How long a ztunnel may take for its hello and for each response.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The connections that are served in a second: a ztunnel that connects again and again takes little processor time from
/// the node.
const ACCEPTED_PER_SECOND: usize = 5;

/// The connections at the same time, with or without a hello; a node has one ztunnel, and two while it is upgraded.
/// Further ones wait in the socket's backlog.
const MAX_CONNECTIONS: usize = 16;

/// The socket at which ztunnel connects.
#[derive(Debug)]
pub(crate) struct ZtunnelServer {
    socket: ServedSocket<UnixListener>,
    timeout: Duration,
    /// When the latest connections were accepted.
    accepted: VecDeque<Instant>,
    /// Until when no connection is accepted after accept(2) failed.
    paused_until: Option<Instant>,
}

/// Serves `pods` at `path` until `end` is readable, without an agent around it.
///
/// # Errors
/// When the socket cannot be created, or waiting fails.
pub fn serve(
    path: &Path,
    pods: &AmbientPods,
    timeout: Duration,
    end: BorrowedFd<'_>,
) -> Result<(), ServeError> {
    let (health, role, log) = (SocketHealth::default(), Shared::default(), Log::default());
    role.set(Role::leads());
    let context = SocketContext { log: &log, health: &health, role: &role };
    let mut server = ZtunnelServer::open(path, timeout)?;
    server.serve(pods, end, context).map_err(|why| ServeError { path: path.to_owned(), source: why.into() })
}

impl ZtunnelServer {
    pub(crate) fn open(path: &Path, timeout: Duration) -> Result<Self, ServeError> {
        let socket = ServedSocket::open(path, SockType::SeqPacket);
        let socket = socket.map_err(|source| ServeError { path: path.to_owned(), source })?;
        Ok(Self { socket, timeout, accepted: VecDeque::new(), paused_until: None })
    }

    /// Serves until `end` is readable; then all connections are closed.
    pub(crate) fn serve(
        &mut self,
        pods: &AmbientPods,
        end: BorrowedFd<'_>,
        context: SocketContext<'_>,
    ) -> Result<(), Errno> {
        let open = AtomicUsize::new(0);
        thread::scope(|scope| {
            loop {
                let pause = self.pause(open.load(Ordering::Relaxed));
                let events = if pause.is_some() { PollFlags::empty() } else { PollFlags::POLLIN };
                let mut fds = [PollFd::new(end, PollFlags::POLLIN), PollFd::new(self.socket.as_fd(), events)];
                let timeout = pause.unwrap_or(CHECK_INTERVAL).min(CHECK_INTERVAL) + Duration::from_millis(1);
                let ready = match poll(&mut fds, PollTimeout::try_from(timeout).map_err(|_| Errno::EINVAL)?) {
                    Err(Errno::EINTR) => continue,
                    ready => ready?,
                };
                let [has_ended, has_connection] = fds.map(|fd| fd.any().unwrap_or(false));
                if has_ended {
                    return Ok(());
                }
                if has_connection && let Some(stream) = self.accept(context.log) {
                    let (socket, timeout, log) = (stream.into(), self.timeout, context.log);
                    start(scope, Connection { socket, pods, end, timeout, log }, &open);
                }
                if ready == 0 {
                    self.socket.restore(context);
                }
            }
        })
    }

    /// Returns how long no connection is accepted.
    fn pause(&self, open: usize) -> Option<Duration> {
        let now = Instant::now();
        let full = (open >= MAX_CONNECTIONS).then_some(ACCEPT_PAUSE);
        let rate = self.accepted.front().filter(|_| self.accepted.len() >= ACCEPTED_PER_SECOND);
        let until = rate.map(|first| *first + Duration::from_secs(1)).max(self.paused_until);
        let left = until.map(|until| until.saturating_duration_since(now)).filter(|left| !left.is_zero());
        left.max(full)
    }

    fn accept(&mut self, log: &Log) -> Option<UnixStream> {
        match self.socket.open.accept() {
            // It does not count: otherwise a peer that connects in a loop would fill the backlog before another one.
            Ok((stream, _)) if is_hung_up(&stream) || !is_authorized(&stream, log) => None,
            Ok((stream, _)) => {
                self.accepted.push_back(Instant::now());
                self.accepted.drain(..self.accepted.len().saturating_sub(ACCEPTED_PER_SECOND));
                Some(stream)
            }
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => None,
            Err(_) => {
                self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                None
            }
        }
    }
}

/// Reports whether the peer has closed the connection already.
fn is_hung_up(stream: &UnixStream) -> bool {
    let mut hung_up = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    matches!(poll(&mut hung_up, PollTimeout::ZERO), Ok(1..))
}

/// Serves a connection on a thread of its own.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    connection: Connection<'scope>,
    open: &'scope AtomicUsize,
) {
    open.fetch_add(1, Ordering::Relaxed);
    let log = connection.log;
    let serve = move || {
        let end = connection.serve();
        open.fetch_sub(1, Ordering::Relaxed);
        let fields = json!({ "why": chain(&end) });
        match end {
            ConnectionEnd::Stopped | ConnectionEnd::Closed => {
                connection.log.info("gybe node: a connection of ztunnel has ended", fields);
            }
            _ => connection.log.warn("gybe node: a connection of ztunnel was closed", fields),
        }
    };
    if let Err(why) = thread::Builder::new().name("ztunnel".to_owned()).spawn_scoped(scope, serve) {
        open.fetch_sub(1, Ordering::Relaxed);
        log.error("gybe node: cannot start a thread for ztunnel", json!({ "why": why.to_string() }));
    }
}
