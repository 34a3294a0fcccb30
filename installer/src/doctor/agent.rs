//! The node agent's sockets: alive, and answering.

use super::chain::Ours;
use super::sight::{AgentSeen, LogSocketSeen, Sight};
use super::{About, Finding, entry, of_security};
use gybe_plugin::facts::{AgentFault, FactsError};
use nix::errno::Errno;

pub(super) fn examine(sight: &Sight, ours: &Ours<'_>) -> Vec<Finding> {
    let Some(agent) = &sight.agent else {
        let directory = entry::conf(ours).and_then(|conf| conf.facts.directory);
        let says = match directory {
            Some(directory) => {
                format!("no agent is asked: pods are known by the manifests in {}", directory.display())
            }
            None => return Vec::new(),
        };
        return vec![Finding::note(About::Agent, says, None)];
    };
    let mut found = vec![facts(sight, agent)];
    // Where the agent is away its other socket is too, and that is told already.
    if agent.fault.is_none() {
        found.extend(sight.log.as_ref().map(log));
    }
    found
}

fn facts(sight: &Sight, AgentSeen { socket, fault }: &AgentSeen) -> Finding {
    let socket = socket.display();
    let Some(fault) = fault else {
        let says = format!("the node agent answers at {socket}");
        return Finding::well(About::Agent, says);
    };
    let (away, remedy) = match fault {
        FactsError::Agent(agent) => match agent.fault {
            AgentFault::Away(Errno::ENOENT) => ("is not there", running()),
            AgentFault::Away(Errno::ECONNREFUSED) => ("is gone", running()),
            AgentFault::Away(Errno::EACCES | Errno::EPERM) => ("may not be asked", of_security(sight)),
            _ => ("does not answer as it should", running()),
        },
        _ => ("does not answer as it should", running()),
    };
    let says =
        format!("the node agent at {socket} {away}, so new pods of the mesh are refused for now: {fault}");
    Finding::wrong(About::Agent, says, remedy)
}

fn running() -> String {
    "see that the pod of DaemonSet gybe-node runs on this node, and look at its log; unmeshed pods start without it"
        .to_owned()
}

fn log(LogSocketSeen { socket, fault }: &LogSocketSeen) -> Finding {
    match fault {
        None => Finding::well(About::Agent, format!("the plugin's log is heard at {}", socket.display())),
        Some(why) => {
            let says = format!("nobody hears the plugin's log at {}: {}", socket.display(), why.desc());
            Finding::note(About::Agent, says, Some("its lines are on stderr only, in the runtime's journal"))
        }
    }
}
