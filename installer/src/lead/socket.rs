//! The agent's sockets, and their re-creation when another program removes them: without them every ADD of a pod in the
//! mesh is refused, and an uninstall, or a cleanup of `/run`, may remove them at any time.

use super::process::{Role, SharedRole};
use super::socket_file::{SocketError, SocketFile};
use crate::agent_status::{PortPurpose, TakenPort};
use crate::error::chain;
use crate::log::Log;
use gybe_plugin::conf::LOG_SOCKET;
use nix::sys::socket::{Backlog, SockType, getsockopt, listen, sockopt};
use nix::unistd::geteuid;
use serde_json::json;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a socket is idle before its file is checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a loop accepts no connection after accept(2) failed: without a free file descriptor the listener stays
/// readable, and the loop would spin.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The state that the threads of the sockets share.
#[derive(Clone, Copy)]
pub(crate) struct SocketContext<'a> {
    pub(crate) log: &'a Log,
    pub(crate) health: &'a SocketHealth,
    pub(crate) role: &'a SharedRole,
}

/// Why a socket is not served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve at {}", .path.display())]
pub struct ServeError {
    pub path: PathBuf,
    pub source: SocketError,
}

/// A non-blocking socket and its file. One thread serves it and checks its file.
#[derive(Debug)]
pub(crate) struct Socket<S> {
    pub(crate) open: S,
    file: SocketFile,
    path: PathBuf,
    kind: SockType,
}

impl<S: From<OwnedFd>> Socket<S> {
    /// Creates a socket at `path`; one with connections listens.
    pub(crate) fn open(path: &Path, kind: SockType) -> Result<Self, SocketError> {
        let (file, socket) = SocketFile::create(path, kind, |socket| match kind {
            // 110 pods may start at once; the kernel bounds this by net.core.somaxconn.
            SockType::Stream | SockType::SeqPacket => listen(socket, Backlog::MAXCONN),
            _ => Ok(()),
        })?;
        Ok(Self { open: socket.into(), file, path: path.to_owned(), kind })
    }

    /// Creates the socket again when its file was removed. Called while the socket is idle: connections in the old
    /// socket's queue are lost with it. If the mounted directory was deleted on the host, only a restart helps; other
    /// obstacles may go away, so every call tries. Only a leading agent changes the directory.
    pub(crate) fn restore(&mut self, context: SocketContext<'_>) {
        if !matches!(context.role.read(), Role::Leads { .. }) {
            return;
        }
        let socket = self.path.display().to_string();
        let mut why = None;
        if !self.file.is_served() {
            context.health.count_lost(&self.path);
            match Self::open(&self.path, self.kind) {
                Ok(created) => {
                    *self = created;
                    let message = "the socket was removed; it is created again";
                    context.log.warn(message, json!({ "socket": socket }));
                }
                Err(source) => why = Some(chain(&ServeError { path: self.path.clone(), source })),
            }
        }
        if context.health.has_changed(&self.path, why.as_ref())
            && let Some(why) = why
        {
            let fields = json!({ "socket": socket, "why": why });
            context.log.error("the socket was removed, and cannot be created again", fields);
        }
    }
}

impl<S: AsFd> AsFd for Socket<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.open.as_fd()
    }
}

/// Reports whether the peer of a connection is root or our own user; logs another one.
pub(crate) fn is_authorized(connection: &impl AsFd, log: &Log) -> bool {
    match getsockopt(connection, sockopt::PeerCredentials).map(|peer| peer.uid()) {
        Ok(uid) if uid == 0 || uid == geteuid().as_raw() => true,
        Ok(uid) => {
            log.warn("a connection was refused", json!({ "uid": uid }));
            false
        }
        Err(_) => false,
    }
}

/// Why a socket for the plugin is not served, by its path, how often each was removed, and the ports that cannot be
/// used. The agent's other sockets use a record that is not reported, because no ADD
/// needs them.
#[derive(Debug, Default)]
pub(crate) struct SocketHealth {
    problems: Mutex<BTreeMap<PathBuf, String>>,
    taken_ports: Mutex<BTreeMap<PortPurpose, TakenPort>>,
    facts_lost: AtomicU64,
    log_lost: AtomicU64,
}

impl SocketHealth {
    pub(crate) fn problems(&self) -> Vec<String> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn taken_ports(&self) -> Vec<TakenPort> {
        self.taken_ports.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Sets why the port of this purpose cannot be used; none if the agent listens, or has stopped to try it.
    pub(crate) fn set_port(&self, purpose: PortPurpose, taken: Option<TakenPort>) {
        let mut ports = self.taken_ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.remove(&purpose);
        ports.extend(taken.map(|taken| (purpose, taken)));
    }

    /// Returns how often each socket was removed since the start.
    pub(crate) fn lost(&self) -> [(&'static str, u64); 2] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [("facts", count(&self.facts_lost)), ("log", count(&self.log_lost))]
    }

    /// Counts a removed socket, once until it is served again.
    fn count_lost(&self, socket: &Path) {
        let is_counted = self.problems.lock().unwrap_or_else(PoisonError::into_inner).contains_key(socket);
        let is_log = socket.file_name().is_some_and(|name| name == LOG_SOCKET);
        let counter = if is_log { &self.log_lost } else { &self.facts_lost };
        if !is_counted {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets a socket's problem, and reports whether it differs from the one before.
    fn has_changed(&self, socket: &Path, why: Option<&String>) -> bool {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match why {
            Some(why) => problems.insert(socket.to_owned(), why.clone()),
            None => problems.remove(socket),
        };
        before.as_ref() != why
    }
}
