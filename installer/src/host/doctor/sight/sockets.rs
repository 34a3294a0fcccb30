//! The node agent, asked as the plugin asks it: about a pod that there is not.

use crate::agent::agent_status::{self, AgentStatus};
use crate::error::errno;
use gybe_plugin::args::{Namespace, PodName, PodRef};
use gybe_plugin::conf::FactsConf;
use gybe_plugin::facts::{self, AgentFault, FactsError};
use nix::errno::Errno;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// As long as an ADD waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the agent says.
#[derive(Debug)]
pub struct AgentSeen {
    /// Its socket.
    pub socket: PathBuf,
    /// None when it answered as it should: that it knows no such pod.
    pub fault: Option<FactsError>,
    /// How the agent stands by its own word; none where it does not say.
    pub status: Option<AgentStatus>,
}

impl AgentSeen {
    /// Reports whether an agent runs there and answers, be it with an error of its own. A listener of
    /// another user, or one that does not answer in time, is no agent that can be relied on.
    pub(crate) fn is_running(&self) -> bool {
        match &self.fault {
            None => true,
            Some(FactsError::Agent(error)) => {
                matches!(error.fault, AgentFault::Reported(_) | AgentFault::Invalid(_) | AgentFault::TooLong)
            }
            Some(_) => false,
        }
    }

    /// Reports whether the agent takes the node out of the chain, or has.
    pub(crate) fn leaves(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.leaves)
    }
}

/// The socket for log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSocketSeen {
    /// Its path.
    pub socket: PathBuf,
    /// Why nobody hears there.
    pub fault: Option<Errno>,
}

pub(crate) fn ask(socket: &Path) -> AgentSeen {
    let conf =
        FactsConf { socket: Some(socket.to_owned()), directory: None, kubeconfig: None, deadline: PATIENCE };
    let fault = nobody().and_then(|pod| match facts::look_up(&conf, &pod) {
        Ok(_) | Err(FactsError::Unknown(_)) => None,
        Err(fault) => Some(fault),
    });
    let mut seen = AgentSeen { socket: socket.to_owned(), fault, status: None };
    if seen.is_running() {
        seen.status = agent_status::ask(socket, PATIENCE).ok().flatten();
    }
    seen
}

/// A name that Kubernetes would take and nobody gives, since the agent understands no other; and no
/// pod has that uid.
fn nobody() -> Option<PodRef> {
    let namespace = Namespace::parse("gybe-doctor").ok()?;
    let name = PodName::parse("a-pod-that-there-is-not").ok()?;
    Some(PodRef { namespace, name, uid: Some("00000000-0000-0000-0000-000000000000".to_owned()) })
}

/// A datagram socket that is connected to has somebody to hear; nothing is sent.
pub(super) fn knock(path: &Path) -> LogSocketSeen {
    let knocked = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    let fault = knocked.err().map(|why| errno(&why));
    LogSocketSeen { socket: path.to_owned(), fault }
}
