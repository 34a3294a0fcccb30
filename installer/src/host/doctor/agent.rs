//! The node agent's sockets: alive, and answering.

use super::chain::Ours;
use super::sight::{AgentSeen, LogSocketSeen, Sight};
use super::{About, Finding, entry, of_security};
use crate::agent::agent_status::AgentStatus;
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
    let mut found = vec![facts(sight, ours, agent)];
    // Where the agent is away its other socket is too, and that is told already.
    if agent.fault.is_none() {
        found.extend(sight.log.as_ref().map(log));
    }
    found.extend(agent.status.iter().flat_map(own_word));
    found
}

/// What the agent says of itself, as its `/readyz` does.
fn own_word(status: &AgentStatus) -> Vec<Finding> {
    let AgentStatus { ready, leaves, reasons, settings, conflicts, notes, plugin_dir_confirmed: _ } = status;
    let leaving = leaves.then(|| {
        let says =
            format!("the node agent takes Gybe out of this node (mode: leave): {}", reasons.join("; "));
        Finding::note(About::Agent, says, None)
    });
    let reasons = reasons.iter().filter(|_| !leaves).map(|reason| {
        let says = format!("the node agent is not ready: {reason}");
        Finding::wrong(
            About::Agent,
            says,
            "docs/AGENT.md has what each reason means; the agent's log says what it tried",
        )
    });
    let settings = settings.iter().map(|why| {
        let says = format!("the node agent does not follow the ConfigMap, and keeps the one before: {why}");
        Finding::wrong(
            About::Agent,
            says,
            "correct the ConfigMap gybe-config; the agent reads it again at once",
        )
    });
    let conflicts = conflicts.iter().map(|conflict| {
        let says = format!("the node agent's changes are undone again and again: {conflict}");
        Finding::wrong(
            About::Agent,
            says,
            "new pods may start without the redirect meanwhile: stop the other writer",
        )
    });
    let notes =
        notes.iter().map(|note| Finding::note(About::Agent, format!("the node agent says: {note}"), None));
    let is_ready = ready.then(|| Finding::well(About::Agent, "the node agent is ready"));
    is_ready.into_iter().chain(leaving).chain(reasons).chain(settings).chain(conflicts).chain(notes).collect()
}

fn facts(sight: &Sight, ours: &Ours<'_>, agent: &AgentSeen) -> Finding {
    let socket = agent.socket.display();
    let Some(fault) = &agent.fault else {
        let says = format!("the node agent answers at {socket}");
        return Finding::well(About::Agent, says);
    };
    let away = match fault {
        FactsError::Agent(agent) => match agent.fault {
            AgentFault::Unreachable(Errno::ENOENT) => "is not there",
            AgentFault::Unreachable(Errno::ECONNREFUSED) => "is gone",
            AgentFault::Unreachable(Errno::EACCES | Errno::EPERM) => "may not be asked",
            _ => "does not answer as it should",
        },
        _ => "does not answer as it should",
    };
    let remedy = if away == "may not be asked" { of_security(sight) } else { RUNNING.to_owned() };
    if !ours.is_anywhere() && !agent.is_running() {
        let says = format!(
            "the node agent at {socket} {away}, and no conf file names gybe-cni: nothing puts the entry back, and new pods are \
             not redirected: {fault}"
        );
        let remedy = format!("{remedy}; if Gybe was taken out on purpose, gybe uninstall finishes it");
        return Finding::wrong(About::Agent, says, remedy);
    }
    let says =
        format!("the node agent at {socket} {away}, so new pods of the mesh are refused for now: {fault}");
    Finding::wrong(About::Agent, says, remedy)
}

const RUNNING: &str = "see that the pod of DaemonSet gybe-node runs on this node, and look at its log; unmeshed pods \
                       start without it";

fn log(LogSocketSeen { socket, fault }: &LogSocketSeen) -> Finding {
    match fault {
        None => Finding::well(About::Agent, format!("the plugin's log is heard at {}", socket.display())),
        Some(why) => {
            let says = format!("nobody hears the plugin's log at {}: {}", socket.display(), why.desc());
            Finding::note(About::Agent, says, Some("its lines are on stderr only, in the runtime's journal"))
        }
    }
}
