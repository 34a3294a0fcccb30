//! Findings about the node agent: whether its sockets answer, and its own status.

use super::observe::{AgentContact, LogSocketContact, Observation};
use super::{About, Finding, of_security};
use crate::host::agent_status::AgentStatus;
use crate::host::entries::OurEntries;
use gybe_plugin::facts::{AgentFault, FactsError};
use nix::errno::Errno;

pub(super) fn examine(sight: &Observation, ours: &OurEntries<'_>) -> Vec<Finding> {
    let Some(agent) = &sight.agent else {
        let directory = ours.plugin_conf().and_then(|conf| conf.facts.directory);
        let says = match directory {
            Some(directory) => {
                format!(
                    "the plugin queries no agent: it reads pods from the manifests in {}",
                    directory.display()
                )
            }
            None => return Vec::new(),
        };
        return vec![Finding::note(About::Agent, says, None)];
    };
    let mut found = vec![facts(sight, ours, agent)];
    // Without the agent its other socket is missing too, which needs no second finding.
    if agent.fault.is_none() {
        found.extend(sight.log.as_ref().map(log));
    }
    found.extend(agent.status.iter().flat_map(own_word));
    found
}

/// The agent's own status, as `/readyz` reports it.
fn own_word(status: &AgentStatus) -> Vec<Finding> {
    let AgentStatus { ready, leaves, reasons, settings, conflicts, notes, plugin_dir_confirmed: _ } = status;
    let leaving = leaves.then(|| {
        let says =
            format!("the node agent removes Gybe from this node (mode: leave): {}", reasons.join("; "));
        Finding::note(About::Agent, says, None)
    });
    let reasons = reasons.iter().filter(|_| !leaves).map(|reason| {
        let says = format!("the node agent is not ready: {reason}");
        Finding::wrong(
            About::Agent,
            says,
            "see docs/AGENT.md for the meaning of each reason, and the agent's log for what it tried",
        )
    });
    let settings = settings.iter().map(|why| {
        let says = format!("the node agent rejects the ConfigMap and keeps the previous settings: {why}");
        Finding::wrong(
            About::Agent,
            says,
            "correct the ConfigMap gybe-config; the agent reads it again at once",
        )
    });
    let conflicts = conflicts.iter().map(|conflict| {
        let says = format!("another program keeps undoing the node agent's changes: {conflict}");
        Finding::wrong(
            About::Agent,
            says,
            "stop the other writer: until then new pods may start without redirection",
        )
    });
    let notes =
        notes.iter().map(|note| Finding::note(About::Agent, format!("the node agent notes: {note}"), None));
    let is_ready = ready.then(|| Finding::well(About::Agent, "the node agent is ready"));
    is_ready.into_iter().chain(leaving).chain(reasons).chain(settings).chain(conflicts).chain(notes).collect()
}

fn facts(sight: &Observation, ours: &OurEntries<'_>, agent: &AgentContact) -> Finding {
    let socket = agent.socket.display();
    let Some(fault) = &agent.fault else {
        let says = format!("the node agent answers at {socket}");
        return Finding::well(About::Agent, says);
    };
    let away = match fault {
        FactsError::Agent(agent) => match agent.fault {
            AgentFault::Unreachable(Errno::ENOENT) => "is not there",
            AgentFault::Unreachable(Errno::ECONNREFUSED) => "is gone",
            AgentFault::Unreachable(Errno::EACCES | Errno::EPERM) => "refuses the connection",
            _ => "does not answer correctly",
        },
        _ => "does not answer correctly",
    };
    let remedy = if away == "refuses the connection" { of_security(sight) } else { RUNNING.to_owned() };
    if !ours.is_anywhere() && !agent.is_running() {
        let says = format!(
            "the node agent at {socket} {away}, and no conf file names gybe-cni, so new pods are not redirected: {fault}"
        );
        let remedy = format!("{remedy}; if Gybe was removed on purpose, run gybe uninstall to finish");
        return Finding::wrong(About::Agent, says, remedy);
    }
    let says =
        format!("the node agent at {socket} {away}, so the plugin refuses new pods of the mesh: {fault}");
    Finding::wrong(About::Agent, says, remedy)
}

const RUNNING: &str = "check that the pod of DaemonSet gybe-node runs on this node, and look at its log; pods outside the mesh \
                       start without it";

fn log(LogSocketContact { socket, fault }: &LogSocketContact) -> Finding {
    match fault {
        None => Finding::well(
            About::Agent,
            format!("the agent receives the plugin's log at {}", socket.display()),
        ),
        Some(why) => {
            let says =
                format!("no process receives the plugin's log at {}: {}", socket.display(), why.desc());
            Finding::note(
                About::Agent,
                says,
                Some("read the plugin's log lines in the runtime's journal, where its stderr goes"),
            )
        }
    }
}
