//! Which agent of a node leads. During an upgrade or a rollback two agents run on the node, and only the one that leads
//! changes anything there.
//!
//! The agent that holds the lock file leads; the kernel releases the lock when the process ends, also after a crash.
//! The leader also listens at a socket. Every other agent of the node stays connected to it, so it notices at once when
//! the leader ends, and requests the lead as soon as it is prepared: it knows the node's pods and has valid settings.
//! The leader hands over only to an agent of a newer pod: to the pod that replaces it, in an upgrade as in a rollback.
//!
//! | What happens | Which agent leads then |
//! |---|---|
//! | a newer pod's agent starts | the old one, until the new one is prepared; then the new one |
//! | the new agent ends before it leads, or is never prepared | the old one, without a change |
//! | the new agent ends while the lead passes, or afterwards | the old one, at once, while it runs |
//! | the leader ends or crashes | the other one, at once, prepared or not |
//! | the container of the old pod restarts | the new one: the pod's start counts, not the process'. Of two containers `repair`, which have no directory of their pod, the one that started last |
//! | an agent without this protocol runs, too | the one with it; the other changes the node until it ends |

use super::socket::{
    self, ACCEPT_PAUSE, CHECK_INTERVAL, ServedSocket, SocketContext, SocketFileError, SocketHealth,
};
use crate::host::settings::LeaderFiles;
use crate::retry::since_boot;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::SockType;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The version of the request. A leader hands over to any version: two agents that cannot agree would both wait.
const VERSION: u64 = 1;
/// The longest request: a number and a pod's name.
const MAX_REQUEST: usize = 1024;
/// Agents that wait at the same time; a node has two.
const MAX_CLIENTS: usize = 16;
/// How often an agent checks whether it is prepared to lead, or connects again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How long the former leader waits until the next one holds the lock.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(5);
/// The file in the pod's own directory that contains the pod's start.
const POD_START: &str = "started";

/// An agent that can lead.
#[derive(Debug)]
pub(crate) struct Candidate {
    lock: PathBuf,
    socket: PathBuf,
    /// When its pod started, in nanoseconds since the boot.
    started: u64,
    /// Its name in the log of another agent.
    name: String,
}

/// The right to change the node, until dropped.
#[derive(Debug)]
pub(crate) struct Lead {
    lock: Flock<File>,
    path: PathBuf,
    requests: ServedSocket<UnixListener>,
    clients: Vec<Client>,
    started: u64,
}

/// A connection of an agent that waits.
#[derive(Debug)]
struct Client {
    stream: UnixStream,
    received: Vec<u8>,
}

/// An agent to which the lead passes.
#[derive(Debug)]
pub(crate) struct Successor {
    stream: UnixStream,
    pub(crate) name: String,
}

/// Why a leader's wait ended.
#[derive(Debug)]
pub(crate) enum LeadEnd {
    /// One of the given descriptors is readable.
    Stopped,
    /// An agent of a newer pod requested the lead.
    Requested(Successor),
    /// Another process removed the lock file, and another agent has made and locked a new one.
    Lost,
}

/// How an attempt to follow a leader ended.
enum FollowEnd {
    Stopped,
    /// The leader ended, or released the lock and waits until this connection is closed.
    Released(Option<UnixStream>),
}

impl Candidate {
    /// An agent whose lock file and socket have these names in `directory`.
    pub(crate) fn new(directory: &Path, names: LeaderFiles, started: u64, name: &str) -> Self {
        let [lock, socket] = [names.lock, names.socket].map(|file| directory.join(file));
        Self { lock, socket, started, name: name.to_owned() }
    }

    /// Waits until this agent leads; returns none once `stop` is readable. While another agent leads, `waits` is called
    /// once, and the lead is requested as soon as `is_prepared`.
    pub(crate) fn wait(
        &self,
        stop: BorrowedFd<'_>,
        is_prepared: &mut dyn FnMut() -> bool,
        waits: impl FnOnce(),
    ) -> Result<Option<Lead>, SocketFileError> {
        let (mut waits, mut released) = (Some(waits), None);
        loop {
            let lead = self.take()?;
            if lead.is_some() {
                return Ok(lead);
            }
            drop(released.take());
            if let Some(waits) = waits.take() {
                waits();
            }
            match self.follow(stop, is_prepared)? {
                FollowEnd::Stopped => return Ok(None),
                FollowEnd::Released(connection) => released = connection,
            }
        }
    }

    /// Takes the lock and listens; returns none while another agent holds the lock.
    fn take(&self) -> Result<Option<Lead>, SocketFileError> {
        let Some(lock) = lock(&self.lock)? else { return Ok(None) };
        let requests = ServedSocket::open(&self.socket, SockType::Stream)?;
        let (path, started) = (self.lock.clone(), self.started);
        Ok(Some(Lead { lock, path, requests, clients: Vec::new(), started }))
    }

    /// Stays connected to the leader until it ends or hands over.
    fn follow(
        &self,
        stop: BorrowedFd<'_>,
        is_prepared: &mut dyn FnMut() -> bool,
    ) -> Result<FollowEnd, Errno> {
        let Ok(mut stream) = UnixStream::connect(&self.socket) else {
            // A leader listens a moment after it took the lock.
            let has_stopped = wait(&[stop], RETRY_INTERVAL)?.contains(&true);
            return Ok(if has_stopped { FollowEnd::Stopped } else { FollowEnd::Released(None) });
        };
        let mut has_requested = false;
        loop {
            if !has_requested && is_prepared() {
                let request = json!({ "version": VERSION, "started": self.started, "agent": self.name });
                if stream.write_all(format!("{request}\n").as_bytes()).is_err() {
                    return Ok(FollowEnd::Released(None));
                }
                has_requested = true;
            }
            let interval = if has_requested { CHECK_INTERVAL } else { RETRY_INTERVAL };
            match *wait(&[stop, stream.as_fd()], interval)? {
                [true, _] => return Ok(FollowEnd::Stopped),
                [_, true] => {
                    let is_handed_over = matches!(stream.read(&mut [0; MAX_REQUEST]), Ok(1..));
                    return Ok(FollowEnd::Released(is_handed_over.then_some(stream)));
                }
                _ => {}
            }
        }
    }
}

impl Lead {
    /// Waits until one of `ends` is readable, or this agent has to stop leading.
    pub(crate) fn wait(
        &mut self,
        ends: &[BorrowedFd<'_>],
        context: SocketContext<'_>,
    ) -> Result<LeadEnd, Errno> {
        let health = SocketHealth::default();
        let context = SocketContext { health: &health, ..context };
        loop {
            let clients = self.clients.iter().map(|client| client.stream.as_fd());
            let all: Vec<_> = ends.iter().copied().chain([self.requests.as_fd()]).chain(clients).collect();
            let ready = wait(&all, CHECK_INTERVAL)?;
            if ready.iter().take(ends.len()).any(|ready| *ready) {
                return Ok(LeadEnd::Stopped);
            }
            let mut readable = ready.into_iter().skip(ends.len());
            let has_new = readable.next().unwrap_or_default();
            if let Some(successor) = self.receive(&readable.collect::<Vec<_>>()) {
                return Ok(LeadEnd::Requested(successor));
            }
            if has_new {
                match self.requests.open.accept() {
                    Ok((stream, _)) => {
                        self.clients.push(Client { stream, received: Vec::new() });
                        let excess = self.clients.len().saturating_sub(MAX_CLIENTS);
                        self.clients.drain(..excess);
                    }
                    // Without free descriptors the listener stays readable.
                    Err(_) if wait(ends, ACCEPT_PAUSE)?.contains(&true) => return Ok(LeadEnd::Stopped),
                    Err(_) => {}
                }
            }
            if !is_in_place(&self.lock, &self.path) {
                match lock(&self.path) {
                    Ok(Some(lock)) => self.lock = lock,
                    Ok(None) => return Ok(LeadEnd::Lost),
                    // No other agent can lead either.
                    Err(_) => {}
                }
            }
            self.requests.restore(context);
        }
    }

    /// Reports whether another agent of this node waits for the lead, or is connecting.
    pub(crate) fn is_awaited(&self) -> bool {
        let connects = wait(&[self.requests.as_fd()], Duration::ZERO);
        !self.clients.is_empty() || connects.map_or(true, |ready| ready.contains(&true))
    }

    /// Removes the lock file while its lock is held, unless another agent has made a new one. An agent that starts
    /// meanwhile makes a new one.
    pub(crate) fn remove_lock_file(&self) -> Result<(), (PathBuf, io::Error)> {
        if is_in_place(&self.lock, &self.path) {
            fs::remove_file(&self.path).map_err(|why| (self.path.clone(), why))?;
        }
        Ok(())
    }

    /// Reads from the clients, and returns the first that is newer. The other ones stay connected until this agent
    /// ends.
    fn receive(&mut self, readable: &[bool]) -> Option<Successor> {
        let mut found = None;
        for (mut client, is_readable) in std::mem::take(&mut self.clients).into_iter().zip(readable) {
            match is_readable.then(|| client.receive()).transpose() {
                Ok(Some(Some((started, name)))) if found.is_none() && started > self.started => {
                    found = Some(Successor { stream: client.stream, name });
                }
                Ok(_) => self.clients.push(client),
                Err(_) => {}
            }
        }
        found
    }

    /// Releases the lock and reports it to the successor; waits until the successor leads, or has ended. The other
    /// clients are disconnected after that, so that none of them takes the lock before the successor.
    pub(crate) fn hand_over(self, successor: Successor, stop: BorrowedFd<'_>) {
        let Self { lock, requests, clients, .. } = self;
        drop(requests);
        drop(lock);
        let Successor { mut stream, .. } = successor;
        if stream.write_all(b"released\n").is_ok() {
            // Nothing is sent on it: it is readable when the successor has closed it.
            let _ = wait(&[stop, stream.as_fd()], HAND_OVER_TIMEOUT);
        }
        drop(clients);
    }
}

impl Client {
    /// Reads what has arrived; returns the start and the name of an agent that requested the lead.
    fn receive(&mut self) -> io::Result<Option<(u64, String)>> {
        let mut buffer = [0; MAX_REQUEST];
        let length = self.stream.read(&mut buffer)?;
        self.received.extend(buffer.iter().take(length));
        if length == 0 || self.received.len() > MAX_REQUEST {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !self.received.ends_with(b"\n") {
            return Ok(None);
        }
        let request: Value = serde_json::from_slice(&std::mem::take(&mut self.received))?;
        let name = request.get("agent").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(request.get("started").and_then(Value::as_u64).map(|started| (started, name)))
    }
}

/// Locks the file; returns none while another process holds it.
fn lock(path: &Path) -> Result<Option<Flock<File>>, SocketFileError> {
    socket::directory(path.parent().unwrap_or(Path::new("/")))?;
    loop {
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC;
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let file = options.open(path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // Another process may have removed or replaced the file since it was opened.
            Ok(lock) if is_in_place(&lock, path) => return Ok(Some(lock)),
            Ok(_) => {}
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, why)) => return Err(why.into()),
        }
    }
}

fn is_in_place(lock: &File, path: &Path) -> bool {
    let ours = lock.metadata().map(|file| (file.dev(), file.ino()));
    let there = fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()));
    ours.is_ok_and(|ours| there.is_ok_and(|there| ours == there))
}

/// Waits until a descriptor is readable; returns which are.
fn wait(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> Result<Vec<bool>, Errno> {
    let until = Instant::now() + timeout;
    loop {
        let mut fds: Vec<_> = descriptors.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        let left = until.saturating_duration_since(Instant::now());
        match poll(&mut fds, PollTimeout::try_from(left).map_err(|_| Errno::EINVAL)?) {
            Err(Errno::EINTR) => {}
            ready => return ready.map(|_| fds.iter().map(|fd| fd.any().unwrap_or(false)).collect()),
        }
    }
}

/// Returns when the pod started, in nanoseconds since the boot. `directory` is the pod's own, which outlives its
/// containers; without one, the process' start counts.
pub(crate) fn pod_start(directory: Option<&Path>) -> u64 {
    let file = directory.map(|directory| directory.join(POD_START));
    let kept = file.as_ref().and_then(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    kept.unwrap_or_else(|| {
        let now = u64::try_from(since_boot().as_nanos()).unwrap_or(u64::MAX);
        // Where it cannot be kept, the process' start counts.
        let _ = file.map(|file| fs::write(file, format!("{now}\n")));
        now
    })
}
