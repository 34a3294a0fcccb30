//! Facts from the node agent, over its unix socket. The messages are in `wire`.

use super::wire::{self, FactsRequest, FactsResponse, MAX_RESPONSE_BYTES, WireError};
use crate::args::PodRef;
use crate::bounded_read::{self, ReadError};
use crate::pod::PodFacts;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use nix::unistd::{Uid, write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
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
}

/// Queries the agent; `None` when it does not know the pod.
pub(super) fn query(socket: &Path, pod: &PodRef, deadline: Instant) -> Result<Option<PodFacts>, AgentError> {
    request_pod(socket, pod, deadline).map_err(|fault| AgentError { socket: socket.to_owned(), fault })
}

fn request_pod(socket: &Path, pod: &PodRef, deadline: Instant) -> Result<Option<PodFacts>, AgentFault> {
    let request = |left| wire::encode_request(&FactsRequest { pod: pod.clone(), timeout: Some(left) });
    let bytes = exchange(socket, request, deadline)?;
    match wire::decode_response(&bytes).map_err(AgentFault::Invalid)? {
        FactsResponse::Pod(facts) => Ok(Some(*facts)),
        FactsResponse::Unknown => Ok(None),
        FactsResponse::Error(why) => Err(AgentFault::Reported(why)),
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
    let agent = connect_to(socket, deadline)?;
    check_peer(&agent)?;
    let request = request(deadline.saturating_duration_since(Instant::now()));
    // A new socket's buffer is far larger than a request, so this never waits.
    write(&agent, request.as_bytes()).map_err(AgentFault::Unreachable)?;
    bounded_read::line(agent.as_fd(), MAX_RESPONSE_BYTES, deadline).map_err(|error| match error {
        ReadError::Kernel(errno) => AgentFault::Unreachable(errno),
        ReadError::TooLong => AgentFault::TooLong,
        ReadError::Timeout => AgentFault::Timeout,
    })
}

/// Connects. With a full backlog connect(2) waits, for no longer than `SO_SNDTIMEO` (unix(7)).
fn connect_to(path: &Path, deadline: Instant) -> Result<OwnedFd, AgentFault> {
    let left = deadline.saturating_duration_since(Instant::now()).as_micros();
    let left = i64::try_from(left).ok().filter(|left| *left > 0).ok_or(AgentFault::Timeout)?;
    let agent = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let agent = agent.map_err(AgentFault::Unreachable)?;
    let timeout = TimeVal::new(left / 1_000_000, left % 1_000_000);
    setsockopt(&agent, sockopt::SendTimeout, &timeout).map_err(AgentFault::Unreachable)?;
    let address = UnixAddr::new(path).map_err(AgentFault::Unreachable)?;
    match connect(agent.as_raw_fd(), &address) {
        Ok(()) => Ok(agent),
        Err(Errno::EAGAIN) => Err(AgentFault::Timeout),
        Err(errno) => Err(AgentFault::Unreachable(errno)),
    }
}

/// The listening process decides about a pod's traffic, so it must run as root or as the plugin's user.
fn check_peer(agent: &OwnedFd) -> Result<(), AgentFault> {
    let peer = getsockopt(agent, sockopt::PeerCredentials).map_err(AgentFault::Unreachable)?.uid();
    let is_trusted = peer == 0 || peer == Uid::effective().as_raw();
    if is_trusted { Ok(()) } else { Err(AgentFault::UntrustedUser(peer)) }
}
