//! Findings about the node agent: whether its sockets answer, and its own status.

use super::observe::{AgentContact, LogSocketContact, Observation};
use super::{About, DoctorFinding, Section, access_remedy};
use crate::agent_status::{AgentStatus, PortPurpose, RUNNING_PODS, RefusedPod, TakenPort};
use crate::host::entries::OurEntries;
use crate::pod::validation::SocketOwner;
use gybe_plugin::facts::{AgentError, AgentFault, FactsError};
use nix::errno::Errno;

pub(super) fn examine(observation: &Observation, ours: &OurEntries<'_>) -> Vec<DoctorFinding> {
    let Some(agent) = &observation.agent else {
        let directory = ours.plugin_conf().and_then(|conf| conf.facts.directory);
        let text = match directory {
            Some(directory) => {
                format!(
                    "the plugin queries no agent: it reads pods from the manifests in {}",
                    directory.display()
                )
            }
            None => return Vec::new(),
        };
        return vec![DoctorFinding::note(About::Agent, text, None)];
    };
    let mut found = vec![facts_socket(observation, ours, agent)];
    // A fault of the agent also explains a missing log socket, which needs no second finding.
    if agent.fault.is_none() {
        found.extend(observation.log.as_ref().map(log_socket));
    }
    found.extend(agent.status.iter().flat_map(own_status));
    found.extend(observation.taken_ports.iter().map(|(port, owner)| taken_port(port, owner.as_ref())));
    found.extend(agent.status.iter().flat_map(|status| &status.refused).map(refused_pod));
    found
}

/// The findings of the agent's own status, which `/readyz` reports too.
fn own_status(status: &AgentStatus) -> Vec<DoctorFinding> {
    let AgentStatus { ready, leaves, reasons, unwatched, settings, repair, conflicts, notes, shape, .. } =
        status;
    let uninstall = leaves.then(|| {
        let text =
            format!("the node agent removes Gybe from this node (mode: leave): {}", reasons.join("; "));
        DoctorFinding::note(About::Agent, text, None)
    });
    let reasons = reasons.iter().filter(|_| !leaves).map(|reason| {
        let text = format!("the node agent is not ready: {reason}");
        DoctorFinding::wrong(
            About::Agent,
            text,
            "see docs/AGENT.md for the meaning of each reason, and the agent's log for what it tried",
        )
        .in_section(Section::NodeNotReady)
    });
    let unwatched = unwatched.iter().map(|why| {
        DoctorFinding::wrong(
            About::Agent,
            format!("the node agent does not learn of new pods: {why}"),
            REACH_API_SERVER,
        )
        .in_section(Section::PodsUnknown)
    });
    let settings = settings.iter().map(|why| {
        let text = format!("the node agent rejects the ConfigMap and keeps the previous settings: {why}");
        DoctorFinding::wrong(
            About::Agent,
            text,
            "correct the ConfigMap gybe-config; the agent reads it again at once",
        )
        .in_section(Section::SettingsRefused)
    });
    let conflicts = conflicts.iter().map(|conflict| {
        let text = format!("another program keeps undoing the node agent's changes: {conflict}");
        DoctorFinding::wrong(
            About::Agent,
            text,
            "stop the other writer: until then new pods may start without redirection",
        )
        .in_section(Section::Conflict)
    });
    let repair = repair.iter().map(|why| {
        let remedy = "read the log of the container repair of the node's gybe-node pod";
        DoctorFinding::wrong(About::Agent, format!("{RUNNING_PODS}: {why}"), remedy)
            .in_section(Section::PodsNotRedirected)
    });
    let notes = notes
        .iter()
        .map(|note| DoctorFinding::note(About::Agent, format!("the node agent notes: {note}"), None));
    let shape = shape.iter().map(|text| DoctorFinding::well(About::Agent, text));
    let is_ready = ready.then(|| DoctorFinding::well(About::Agent, "the node agent is ready"));
    is_ready
        .into_iter()
        .chain(uninstall)
        .chain(reasons)
        .chain(unwatched)
        .chain(settings)
        .chain(repair)
        .chain(conflicts)
        .chain(notes)
        .chain(shape)
        .collect()
}

fn taken_port(port: &TakenPort, owner: Option<&SocketOwner>) -> DoctorFinding {
    let owner = match owner {
        Some(SocketOwner { address, process: Some(process), .. }) => {
            format!("; process {process} listens at {address}")
        }
        Some(SocketOwner { address, uid, process: None }) => {
            format!("; a process of user {uid}, which is not visible here, listens at {address}")
        }
        None => String::new(),
    };
    let remedy = match port.purpose {
        PortPurpose::Metrics => {
            "end that process, or set another port: metrics.port of the chart, MONITORING_PORT"
        }
        PortPurpose::Health => "end that process, or set another port: HEALTH_PORT",
        PortPurpose::Unknown => "end that process, or set another port in the agent's settings",
    };
    DoctorFinding::wrong(About::Agent, format!("{port}{owner}"), remedy)
}

fn refused_pod(RefusedPod { pod, error, count, seconds }: &RefusedPod) -> DoctorFinding {
    let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
    let text = format!("pod {pod} was refused {times}, last {seconds} s ago: {error}");
    let remedy = "see the section of that id, unless the pod was deleted; its next ADD removes this finding";
    DoctorFinding::wrong(About::Pods, text, remedy).in_section(Section::PodsRefused)
}

fn facts_socket(observation: &Observation, ours: &OurEntries<'_>, agent: &AgentContact) -> DoctorFinding {
    let socket = agent.socket.display();
    let Some(fault) = &agent.fault else {
        let text = format!("the node agent answers at {socket}");
        return DoctorFinding::well(About::Agent, text);
    };
    let errno = match fault {
        FactsError::Agent(AgentError { fault: AgentFault::Unreachable(errno), .. }) => Some(*errno),
        _ => None,
    };
    let problem = match errno {
        Some(Errno::ENOENT) => "is not there",
        Some(Errno::ECONNREFUSED) => "is gone",
        Some(Errno::EACCES | Errno::EPERM) => "refuses the connection",
        _ => "does not answer correctly",
    };
    if let FactsError::Agent(AgentError { fault: AgentFault::Reported(why), .. }) = fault {
        // The status has the same reason as a finding of its own.
        let is_reported = agent.status.as_ref().is_some_and(|status| status.unwatched.is_some());
        let text = format!("the node agent at {socket} cannot look up new pods: {why}");
        return match is_reported {
            true => DoctorFinding::well(About::Agent, format!("the node agent answers at {socket}")),
            false => {
                DoctorFinding::wrong(About::Agent, text, REACH_API_SERVER).in_section(Section::PodsUnknown)
            }
        };
    }
    if let FactsError::Agent(AgentError { fault: AgentFault::Manifest(_), .. }) = fault {
        let remedy = "correct that file of the agent's --pods-from: until then a meshed pod that no other file has is refused";
        return DoctorFinding::wrong(About::Agent, fault.to_string(), remedy)
            .in_section(Section::BrokenManifest);
    }
    if !ours.is_anywhere() && errno == Some(Errno::ENOENT) {
        // A node may have no agent. The missing entry is a finding of its own.
        return DoctorFinding::note(
            About::Agent,
            format!("no node agent answers at {socket}"),
            Some(RUN_AGENT),
        );
    }
    let remedy = if matches!(errno, Some(Errno::EACCES | Errno::EPERM)) {
        access_remedy(observation)
    } else {
        RUN_AGENT.into()
    };
    if !ours.is_anywhere() && agent.is_absent() {
        let text = format!(
            "the node agent at {socket} {problem}, and no conf file names gybe-cni, so new pods are not redirected: {fault}"
        );
        let remedy = format!("{remedy}; if Gybe was removed on purpose, run gybe uninstall to finish");
        return DoctorFinding::wrong(About::Agent, text, remedy).in_section(Section::AgentDoesNotAnswer);
    }
    let text =
        format!("the node agent at {socket} {problem}, so the plugin refuses new pods of the mesh: {fault}");
    DoctorFinding::wrong(About::Agent, text, remedy).in_section(Section::AgentDoesNotAnswer)
}

const REACH_API_SERVER: &str = "make the API server reachable from this node; if it refuses, check the agent's token and \
                                its RBAC; with --pods-from, make the named file or directory readable";
const RUN_AGENT: &str = "check that the pod of DaemonSet gybe-node runs on this node, that its process is neither stopped \
                         (STAT T in ps) nor frozen, and look at its log; pods outside the mesh start without it";

fn log_socket(LogSocketContact { socket, fault }: &LogSocketContact) -> DoctorFinding {
    match fault {
        None => DoctorFinding::well(
            About::Agent,
            format!("the agent receives the plugin's log at {}", socket.display()),
        ),
        Some(why) => {
            let text =
                format!("no process receives the plugin's log at {}: {}", socket.display(), why.desc());
            DoctorFinding::note(
                About::Agent,
                text,
                Some("read the plugin's log lines in the runtime's journal, where its stderr goes"),
            )
        }
    }
}
