//! Queries the node agent as the plugin does, about a pod that does not exist.

use crate::agent_status::{self, AgentStatus};
use crate::error::errno;
use gybe_plugin::args::{Namespace, PodName, PodRef};
use gybe_plugin::conf::FactsConf;
use gybe_plugin::facts::{self, AgentFault, FactsError};
use nix::errno::Errno;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit of an ADD's query.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The agent's answer.
#[derive(Debug)]
pub struct AgentContact {
    /// The path of its socket.
    pub socket: PathBuf,
    /// None if it answered correctly: that it does not know the pod.
    pub fault: Option<FactsError>,
    /// The agent's own status; none if it does not report one.
    pub status: Option<AgentStatus>,
}

impl AgentContact {
    /// Reports whether an agent runs there and answers, possibly with an error of its own. A listener of
    /// another user, or one that does not answer in time, is not a usable agent.
    pub(crate) fn is_running(&self) -> bool {
        match &self.fault {
            None => true,
            Some(FactsError::Agent(error)) => {
                use AgentFault::{Invalid, Manifest, Reported, TooLong};
                matches!(error.fault, Reported(_) | Manifest(_) | Invalid(_) | TooLong)
            }
            Some(_) => false,
        }
    }

    /// Reports whether no process serves the socket. An agent that hangs, or is another user's, is there.
    pub(crate) fn is_absent(&self) -> bool {
        let fault = match &self.fault {
            Some(FactsError::Agent(error)) => &error.fault,
            _ => return false,
        };
        matches!(fault, AgentFault::Unreachable(Errno::ENOENT | Errno::ECONNREFUSED))
    }

    /// Reports whether the agent removes Gybe from this node, or has done so.
    pub(crate) fn leaves(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.leaves)
    }
}

/// The socket for log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSocketContact {
    pub socket: PathBuf,
    /// Why no process receives there.
    pub fault: Option<Errno>,
}

pub(crate) fn query(socket: &Path) -> AgentContact {
    let conf =
        FactsConf { socket: Some(socket.to_owned()), directory: None, kubeconfig: None, deadline: TIMEOUT };
    let fault = absent_pod().and_then(|pod| match facts::look_up(&conf, &pod) {
        Ok(_) | Err(FactsError::Unknown(_)) => None,
        Err(fault) => Some(fault),
    });
    let mut observed = AgentContact { socket: socket.to_owned(), fault, status: None };
    if observed.is_running() {
        observed.status = agent_status::query(socket, TIMEOUT).ok().flatten();
    }
    observed
}

/// A pod that does not exist: a valid name, because the agent accepts no other, with a uid that no pod has.
fn absent_pod() -> Option<PodRef> {
    let namespace = Namespace::parse("gybe-doctor").ok()?;
    let name = PodName::parse("a-pod-that-there-is-not").ok()?;
    Some(PodRef { namespace, name, uid: Some("00000000-0000-0000-0000-000000000000".to_owned()) })
}

/// Connects to a datagram socket, which succeeds if a process receives there; sends nothing.
pub(super) fn connect_log(path: &Path) -> LogSocketContact {
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    let fault = connected.err().map(|why| errno(&why));
    LogSocketContact { socket: path.to_owned(), fault }
}
