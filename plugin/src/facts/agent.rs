//! Facts from the node agent, over its unix socket. The messages are in `wire`, the wait for a socket that is away
//! in `socket_watch`.

use super::ambient::{self, AmbientPod, HandOverBy, HandOverFault, LeaveStep, PodUid};
use super::socket_watch::SocketWatch;
use super::wire::{self, FactsRequest, FactsResponse, MAX_RESPONSE_BYTES, WireError};
use crate::args::PodRef;
use crate::bounded_read::{self, ReadError};
use crate::pod::PodFacts;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, getsockopt, sendmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use nix::unistd::{Uid, write};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why the node agent gave no facts.
#[derive(Debug, thiserror::Error)]
#[error("the node agent at {} {fault}", .socket.display())]
pub struct AgentError {
    /// The path of its socket.
    pub socket: PathBuf,
    /// What went wrong.
    pub fault: AgentFault,
}

/// What went wrong with the node agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentFault {
    /// The socket does not exist, is not listened on, or denies access.
    #[error("cannot be reached: {}", .0.desc())]
    Unreachable(Errno),
    /// The agent ended, or dropped the connection, before its response was complete.
    #[error("closed the connection without a complete answer")]
    Closed,
    /// No agent served the socket until the deadline; with the fault of the last attempt. The text is the same at each
    /// attempt of the kubelet, which counts equal events.
    #[error("{0}; the plugin waited for it until facts.deadline_ms")]
    Away(Box<AgentFault>),
    /// No response before the deadline.
    #[error("did not answer in time")]
    Timeout,
    /// The listening process runs neither as root nor as the plugin's user.
    #[error("runs as user {0}, which is neither root nor the plugin's user")]
    UntrustedUser(u32),
    /// A response that is larger than any pod.
    #[error("answered with more than {MAX_RESPONSE_BYTES} bytes")]
    TooLong,
    /// A malformed response.
    #[error("answered {0}")]
    Invalid(WireError),
    /// An error that the agent reports.
    #[error("reports: {0:?}")]
    Reported(String),
    /// An ambient pod is not in the mesh.
    #[error(transparent)]
    HandOver(HandOverFault),
    /// A manifest of the agent's directory that may be the pod's.
    #[error("cannot use a manifest: {0:?}")]
    Manifest(String),
}

impl AgentFault {
    fn is_away(&self) -> bool {
        match self {
            Self::Closed => true,
            Self::Unreachable(errno) => {
                matches!(errno, Errno::ENOENT | Errno::ECONNREFUSED | Errno::ECONNRESET | Errno::EPIPE)
            }
            _ => false,
        }
    }
}

impl AgentError {
    /// Reports whether no agent serves the socket, which a restarted agent will serve again.
    pub(super) fn is_away(&self) -> bool {
        self.fault.is_away()
    }
}

/// A query about one pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct AgentQuery<'a> {
    pub(super) socket: &'a Path,
    pub(super) pod: &'a PodRef,
    pub(super) deadline: Instant,
    pub(super) knows_ambient: bool,
}

/// A connection that the agent's backlog accepted without waiting, with the request sent; none when the backlog is
/// full.
#[derive(Debug)]
pub(super) struct SentRequest(Option<OwnedFd>);

impl AgentQuery<'_> {
    /// Connects and sends the request, and waits for nothing.
    pub(super) fn send(self) -> Result<SentRequest, AgentError> {
        let sent = match connect_to(self.socket, None) {
            Ok(agent) => self.request(agent).map(Some),
            Err(AgentFault::Timeout) => Ok(None),
            Err(fault) => Err(fault),
        };
        sent.map(SentRequest).map_err(|fault| self.error(fault))
    }

    /// Receives the response; `None` when the agent does not know the pod.
    pub(super) fn receive(self, sent: SentRequest) -> Result<Option<PodFacts>, AgentError> {
        let received = match sent.0 {
            Some(agent) => self.response(&agent),
            None => self.attempt(),
        };
        received.map_err(|fault| self.error(fault))
    }

    /// Waits for an agent that serves the socket, and queries it.
    pub(super) fn await_agent(self) -> Result<Option<PodFacts>, AgentError> {
        awaited(self.socket, self.deadline, || self.attempt()).map_err(|fault| self.error(fault))
    }

    fn attempt(self) -> Result<Option<PodFacts>, AgentFault> {
        let agent = connect_to(self.socket, Some(self.deadline))?;
        self.response(&self.request(agent)?)
    }

    fn request(self, agent: OwnedFd) -> Result<OwnedFd, AgentFault> {
        let Self { knows_ambient, .. } = self;
        let request = |left| {
            wire::encode_request(&FactsRequest { pod: self.pod.clone(), timeout: Some(left), knows_ambient })
        };
        send_request(&agent, request, self.deadline).map(|()| agent)
    }

    fn response(self, agent: &OwnedFd) -> Result<Option<PodFacts>, AgentFault> {
        let bytes = receive_response(agent, self.deadline)?;
        match wire::decode_response(&bytes) {
            Ok(FactsResponse::Pod(facts)) => Ok(Some(*facts)),
            Ok(FactsResponse::Unknown) => Ok(None),
            Ok(FactsResponse::Error(why)) => Err(AgentFault::Reported(why)),
            Ok(FactsResponse::BrokenManifest(why)) => Err(AgentFault::Manifest(why)),
            Err(WireError::Incomplete) => Err(AgentFault::Closed),
            Err(error) => Err(AgentFault::Invalid(error)),
        }
    }

    fn error(self, fault: AgentFault) -> AgentError {
        AgentError { socket: self.socket.to_owned(), fault }
    }
}

/// Sends the agent one line, and returns its response, which is one line too. `request` gets the time that
/// is left for the response, and is called once the peer is known to be trusted.
///
/// # Errors
/// When no trusted agent responds before the deadline.
pub fn exchange(
    socket: &Path,
    request: impl FnOnce(Duration) -> String,
    deadline: Instant,
) -> Result<Vec<u8>, AgentFault> {
    let agent = connect_to(socket, Some(deadline))?;
    send_request(&agent, request, deadline)?;
    receive_response(&agent, deadline)
}

/// Repeats an attempt, while no agent serves the socket, until the deadline: the agent restarts, or its pod is replaced.
fn awaited<T>(
    socket: &Path,
    deadline: Instant,
    attempt: impl Fn() -> Result<T, AgentFault>,
) -> Result<T, AgentFault> {
    let watch = SocketWatch::start(socket);
    loop {
        let fault = match attempt() {
            Err(fault) if fault.is_away() => fault,
            done => return done,
        };
        if !watch.wait(deadline) {
            return Err(AgentFault::Away(Box::new(fault)));
        }
    }
}

/// Hands over the open network namespace of an ambient pod, and waits until ztunnel has acknowledged the pod. Waits for
/// an agent that is away, and hands over again to one that took the place of an agent that ended: a second hand-over
/// of a namespace changes nothing.
///
/// # Errors
/// When no trusted agent responds before the deadline, or the agent reports why the pod is not in the mesh.
pub fn hand_over(
    socket: &Path,
    pod: &AmbientPod,
    netns: BorrowedFd<'_>,
    by: HandOverBy,
    deadline: Instant,
) -> Result<(), AgentFault> {
    let attempt = || hand_over_once(socket, pod, netns, by, deadline);
    match attempt() {
        Err(fault) if fault.is_away() => awaited(socket, deadline, attempt),
        done => done,
    }
}

/// Reports how far an ambient pod is that leaves the mesh and runs on: the agent removes its annotation, and then
/// ztunnel ends its proxy of the pod. A second report changes nothing.
///
/// # Errors
/// When no trusted agent that serves ztunnel responds before the deadline.
pub fn leave(socket: &Path, pod: &PodUid, step: LeaveStep, deadline: Instant) -> Result<(), AgentFault> {
    hand_over_response(&exchange(socket, |_| ambient::encode_leave(pod, step), deadline)?)
}

fn hand_over_once(
    socket: &Path,
    pod: &AmbientPod,
    netns: BorrowedFd<'_>,
    by: HandOverBy,
    deadline: Instant,
) -> Result<(), AgentFault> {
    let agent = connect_to(socket, Some(deadline))?;
    check_peer(&agent)?;
    let timeout = deadline.saturating_duration_since(Instant::now());
    let request = ambient::encode_request(pod, by, timeout);
    let (parts, descriptor) = ([IoSlice::new(request.as_bytes())], [netns.as_raw_fd()]);
    let control = [ControlMessage::ScmRights(&descriptor)];
    sendmsg::<UnixAddr>(agent.as_raw_fd(), &parts, &control, MsgFlags::MSG_NOSIGNAL, None)
        .map_err(AgentFault::Unreachable)?;
    hand_over_response(&receive_response(&agent, deadline)?)
}

fn hand_over_response(bytes: &[u8]) -> Result<(), AgentFault> {
    match ambient::decode_response(bytes) {
        Ok(response) => response.map_err(AgentFault::HandOver),
        Err(WireError::Incomplete) => Err(AgentFault::Closed),
        Err(error) => Err(AgentFault::Invalid(error)),
    }
}

fn send_request(
    agent: &OwnedFd,
    request: impl FnOnce(Duration) -> String,
    deadline: Instant,
) -> Result<(), AgentFault> {
    check_peer(agent)?;
    let request = request(deadline.saturating_duration_since(Instant::now()));
    // A new socket's buffer is far larger than a request, so this never waits.
    write(agent, request.as_bytes()).map(drop).map_err(AgentFault::Unreachable)
}

fn receive_response(agent: &OwnedFd, deadline: Instant) -> Result<Vec<u8>, AgentFault> {
    bounded_read::line(agent.as_fd(), MAX_RESPONSE_BYTES, deadline).map_err(|error| match error {
        ReadError::Kernel(errno) => AgentFault::Unreachable(errno),
        ReadError::TooLong => AgentFault::TooLong,
        ReadError::Timeout => AgentFault::Timeout,
    })
}

/// Connects. With a full backlog connect(2) waits until the deadline, by `SO_SNDTIMEO`, and not at all on a
/// nonblocking socket (unix(7)), which is made without a deadline.
fn connect_to(path: &Path, deadline: Option<Instant>) -> Result<OwnedFd, AgentFault> {
    let nonblocking = if deadline.is_some() { SockFlag::empty() } else { SockFlag::SOCK_NONBLOCK };
    let agent = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC | nonblocking, None);
    let agent = agent.map_err(AgentFault::Unreachable)?;
    if let Some(deadline) = deadline {
        let left = deadline.saturating_duration_since(Instant::now()).as_micros();
        // A timeout of zero would wait without end.
        let left = i64::try_from(left).ok().filter(|left| *left > 0).ok_or(AgentFault::Timeout)?;
        let timeout = TimeVal::new(left / 1_000_000, left % 1_000_000);
        setsockopt(&agent, sockopt::SendTimeout, &timeout).map_err(AgentFault::Unreachable)?;
    }
    let address = UnixAddr::new(path).map_err(AgentFault::Unreachable)?;
    match connect(agent.as_raw_fd(), &address) {
        Ok(()) => Ok(agent),
        Err(Errno::EAGAIN) => Err(AgentFault::Timeout),
        Err(errno) => Err(AgentFault::Unreachable(errno)),
    }
}

/// Checks that the listening process runs as root or as the plugin's user: it decides about a pod's traffic.
fn check_peer(agent: &OwnedFd) -> Result<(), AgentFault> {
    let peer = getsockopt(agent, sockopt::PeerCredentials).map_err(AgentFault::Unreachable)?.uid();
    let is_trusted = peer == 0 || peer == Uid::effective().as_raw();
    if is_trusted { Ok(()) } else { Err(AgentFault::UntrustedUser(peer)) }
}
