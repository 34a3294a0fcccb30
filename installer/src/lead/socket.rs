//! The agent's sockets, and their re-creation when another program removes them: without them every ADD of a pod in the
//! mesh is refused, and an uninstall, or a cleanup of `/run`, may remove them at any time.
//!
//! A socket's file is created atomically with mode 0600, in a directory that only its owner may write to, and removed
//! only while the path still is this process's socket.

use crate::agent_status::{PortPurpose, TakenPort};
use crate::error::chain;
use crate::host::istio_cni::is_served;
use crate::lead::process::{Role, Shared};
use crate::log::Log;
use gybe_netfilter::model::Hint;
use gybe_plugin::conf::LOG_SOCKET;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockopt, listen, socket, sockopt,
};
use nix::unistd::geteuid;
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
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
    pub(crate) role: &'a Shared<Role>,
}

/// Why a socket is not served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve at {}", .path.display())]
pub struct ServeError {
    pub path: PathBuf,
    pub source: SocketFileError,
}

/// A non-blocking socket and its file. One thread serves it and checks its file.
#[derive(Debug)]
pub(crate) struct ServedSocket<S> {
    pub(crate) open: S,
    file: SocketFile,
    path: PathBuf,
    kind: SockType,
}

impl<S: From<OwnedFd>> ServedSocket<S> {
    /// Creates a socket at `path`; one with connections listens.
    pub(crate) fn open(path: &Path, kind: SockType) -> Result<Self, SocketFileError> {
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

impl<S: AsFd> AsFd for ServedSocket<S> {
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
    pub(crate) fn has_changed(&self, socket: &Path, why: Option<&String>) -> bool {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match why {
            Some(why) => problems.insert(socket.to_owned(), why.clone()),
            None => problems.remove(socket),
        };
        before.as_ref() != why
    }
}

/// Why a socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketFileError {
    #[error("its directory {} cannot be created or read", .directory.display())]
    Directory { directory: PathBuf, source: io::Error },
    #[error("its directory {} belongs to user {owner} and has mode {mode:o}; other users could replace the socket", .directory.display())]
    WritableDirectory { directory: PathBuf, owner: u32, mode: u32 },
    #[error("another file that is not a socket has its name")]
    Occupied,
    #[error("the kernel refused the socket")]
    Socket(#[from] Errno),
    #[error("its file cannot be put in place")]
    File(#[from] io::Error),
}

impl Hint for SocketFileError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::WritableDirectory { .. } => {
                Some("chown the directory to root, and chmod it 0755".into())
            }
            Self::Occupied => {
                Some("find out what it is, and remove it; or serve elsewhere: CNI_AGENT_RUN_DIR, --socket".into())
            }
            Self::Directory { .. } => Some(
                "mount the host's /run/gybe there, writable; or serve elsewhere: CNI_AGENT_RUN_DIR, --socket".into(),
            ),
            Self::Socket(Errno::ENAMETOOLONG) => Some(
                "shorten its path: with the suffix it has while it is created it may have 107 bytes (unix(7))".into(),
            ),
            Self::Socket(_) | Self::File(_) => None,
        }
    }
}

/// The file of a socket; dropping it removes the file.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    kind: SockType,
    inode: (u64, u64),
}

impl SocketFile {
    /// Binds a new socket, calls `prepare` (listen) with it, and renames it to `path`, replacing the socket of an
    /// earlier agent. Until it is prepared no process can connect to it (unix(7)), so no client sees it with another
    /// mode.
    pub(crate) fn create(
        path: &Path,
        kind: SockType,
        prepare: impl FnOnce(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<(Self, OwnedFd), SocketFileError> {
        directory(path.parent().unwrap_or(Path::new("/")))?;
        match fs::symlink_metadata(path) {
            Ok(file) if !file.file_type().is_socket() => return Err(SocketFileError::Occupied),
            _ => {}
        }
        let temporary = path.with_extension(format!("{}.new", std::process::id()));
        let _ = fs::remove_file(&temporary);
        let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
        bind(fd.as_raw_fd(), &UnixAddr::new(&temporary)?)?;
        let placed = place(&temporary, path, || prepare(&fd));
        if placed.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        Ok((Self { path: path.to_owned(), kind, inode: placed? }, fd))
    }

    /// Reports whether a process serves this path: ours, or an agent that replaced our socket.
    pub(crate) fn is_served(&self) -> bool {
        self.is_ours() || is_served(&self.path, self.kind)
    }

    /// The kernel does not reuse the inode number while the socket is open.
    fn is_ours(&self) -> bool {
        let file = fs::symlink_metadata(&self.path).map(|file| (file.dev(), file.ino()));
        file.is_ok_and(|inode| inode == self.inode)
    }
}

fn place(
    temporary: &Path,
    path: &Path,
    prepare: impl FnOnce() -> Result<(), Errno>,
) -> Result<(u64, u64), SocketFileError> {
    fs::set_permissions(temporary, Permissions::from_mode(0o600))?;
    let file = fs::symlink_metadata(temporary)?;
    prepare()?;
    fs::rename(temporary, path)?;
    Ok((file.dev(), file.ino()))
}

/// Creates the directory, or checks that only its owner, root or our user, writes to it.
pub(super) fn directory(directory: &Path) -> Result<(), SocketFileError> {
    let failed = |source| SocketFileError::Directory { directory: directory.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
    let metadata = fs::metadata(directory).map_err(failed)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let is_ours = owner == 0 || owner == geteuid().as_raw();
    if is_ours && mode & 0o022 == 0 {
        return Ok(());
    }
    Err(SocketFileError::WritableDirectory { directory: directory.to_owned(), owner, mode })
}

impl Drop for SocketFile {
    /// Leaves the socket of an agent that replaced ours.
    fn drop(&mut self) {
        if self.is_ours() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
