//! Facts from the node agent, over its unix socket. What is said there is in `wire`.

use super::wire::{self, Answer, LONGEST_ANSWER, Question, WireError};
use crate::args::PodRef;
use crate::intake::{self, Cut};
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

/// Why the agent told nothing.
#[derive(Debug, thiserror::Error)]
#[error("the node agent at {} {fault}", .socket.display())]
pub struct AgentError {
    /// Its socket.
    pub socket: PathBuf,
    /// What is wrong with it.
    pub fault: AgentFault,
}

/// What is wrong with the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentFault {
    /// Nobody is there, or nobody that lets us in.
    #[error("cannot be asked: {}", .0.desc())]
    Away(Errno),
    /// Somebody is there and says nothing.
    #[error("did not answer in time")]
    Late,
    /// Not root, and not who we are.
    #[error("is run by user {0}, whom nobody should believe")]
    Stranger(u32),
    /// More than any pod.
    #[error("answered with more than {LONGEST_ANSWER} bytes")]
    TooLong,
    /// Nothing we understand.
    #[error("answered {0}")]
    Words(WireError),
    /// It says itself that it cannot say.
    #[error("cannot say: {0:?}")]
    Fault(String),
}

/// Asks the agent; `None` when it knows no such pod.
pub(super) fn ask(path: &Path, pod: &PodRef, until: Instant) -> Result<Option<PodFacts>, AgentError> {
    talk(path, pod, until).map_err(|fault| AgentError { socket: path.to_owned(), fault })
}

fn talk(path: &Path, pod: &PodRef, until: Instant) -> Result<Option<PodFacts>, AgentFault> {
    let question = |left| wire::question(&Question { pod: pod.clone(), patience: Some(left) });
    let bytes = exchange(path, question, until)?;
    match wire::answered(&bytes).map_err(AgentFault::Words)? {
        Answer::Pod(facts) => Ok(Some(*facts)),
        Answer::Unknown => Ok(None),
        Answer::Fault(why) => Err(AgentFault::Fault(why)),
    }
}

/// Sends the agent one line and returns its answer, one line too. The line is made when the agent is
/// known to be one, from the time that is left for the answer.
///
/// # Errors
/// When no agent that can be trusted answers until then.
pub fn exchange(
    path: &Path,
    line: impl FnOnce(Duration) -> String,
    until: Instant,
) -> Result<Vec<u8>, AgentFault> {
    let agent = call(path, until)?;
    believable(&agent)?;
    let line = line(until.saturating_duration_since(Instant::now()));
    // A new socket's buffer holds far more than a question, so this never waits.
    write(&agent, line.as_bytes()).map_err(AgentFault::Away)?;
    intake::line(agent.as_fd(), LONGEST_ANSWER, until).map_err(|cut| match cut {
        Cut::Refused(fault) => AgentFault::Away(fault),
        Cut::TooLong => AgentFault::TooLong,
        Cut::Late => AgentFault::Late,
    })
}

/// Connects. With a full backlog connect(2) waits, and for no longer than `SO_SNDTIMEO` (unix(7)).
fn call(path: &Path, until: Instant) -> Result<OwnedFd, AgentFault> {
    let left = until.saturating_duration_since(Instant::now()).as_micros();
    let left = i64::try_from(left).ok().filter(|left| *left > 0).ok_or(AgentFault::Late)?;
    let agent = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let agent = agent.map_err(AgentFault::Away)?;
    let patience = TimeVal::new(left / 1_000_000, left % 1_000_000);
    setsockopt(&agent, sockopt::SendTimeout, &patience).map_err(AgentFault::Away)?;
    let address = UnixAddr::new(path).map_err(AgentFault::Away)?;
    match connect(agent.as_raw_fd(), &address) {
        Ok(()) => Ok(agent),
        Err(Errno::EAGAIN) => Err(AgentFault::Late),
        Err(fault) => Err(AgentFault::Away(fault)),
    }
}

/// Whoever listens decides what a pod's traffic does: only root, or the user we are, may.
fn believable(agent: &OwnedFd) -> Result<(), AgentFault> {
    let peer = getsockopt(agent, sockopt::PeerCredentials).map_err(AgentFault::Away)?.uid();
    let known = peer == 0 || peer == Uid::effective().as_raw();
    if known { Ok(()) } else { Err(AgentFault::Stranger(peer)) }
}
