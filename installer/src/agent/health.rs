//! The pages `/healthz`, `/readyz` and `/left`, for the kubelet's probes, an operator and the chart's hook. Pure.

use super::ambient::AmbientStatus;
use super::http::Page;
use super::status::{AgentSnapshot, Phase};
use crate::agent::pods::PodsState;
use crate::agent::ztunnel::ZtunnelStatus;
use crate::agent_status::{AgentStatus, AmbientCounts, RUNNING_PODS, RefusedPod, UNINSTALLED};
use crate::host::desired::Confirmed;
use crate::host::settings::RepairMode;
use crate::lead::process::Role;
use crate::probe::node_backend::NodeBackend;
use std::fmt::Write as _;

/// Returns the page at `path`; none for an unknown path.
pub(crate) fn page(path: &str, agent: &AgentSnapshot) -> Option<Page> {
    match path {
        "/healthz" => {
            let reason = agent.needs_restart();
            Some(reason.map_or_else(|| Page::ok("ok\n"), |why| Page::unavailable(format!("{why}\n"))))
        }
        "/readyz" => Some(readiness_page(agent)),
        "/left" => Some(uninstall_page(agent)),
        _ => None,
    }
}

/// Returns the status of the agent, which `/readyz`, `/status` and the facts socket report.
pub(crate) fn status(agent: &AgentSnapshot) -> AgentStatus {
    let (reasons, report) = (agent.not_ready(), &agent.status.report);
    let backend = report.backend.as_ref().and_then(NodeBackend::writes);
    AgentStatus {
        ready: reasons.is_empty(),
        leaves: matches!(report.phase, Phase::Uninstalling | Phase::Uninstalled { .. }),
        reasons,
        unwatched: agent.pods.unwatched.clone(),
        settings: agent.settings.error.clone(),
        repair: silent_repair(agent).map(str::to_owned),
        conflicts: report.conflicts.conf.iter().chain(&report.conflicts.programs).cloned().collect(),
        notes: report
            .notes
            .iter()
            .cloned()
            .chain(agent.ambient.iter().flat_map(AmbientStatus::notes))
            .collect(),
        shape: report.shape.clone(),
        plugin_dir_confirmed: agent.settings.plugin_dir == Confirmed::Yes,
        standby: !matches!(agent.role, Role::Leads { .. }),
        restart: agent.needs_restart(),
        ports: agent.taken_ports.clone(),
        refused: agent.refused.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        backend: backend.map(|kind| kind.name().to_owned()),
        pods: u64::try_from(agent.pods.pods).unwrap_or(u64::MAX),
        not_redirected: agent.pod_repairs.and_then(|repairs| repairs.not_redirected()),
        ambient: agent.ambient.as_ref().map(|ambient| AmbientCounts::of(&ambient.ztunnel)),
    }
}

/// Returns why it is not known whether running pods are redirected, although a process repairs them.
fn silent_repair(agent: &AgentSnapshot) -> Option<&'static str> {
    let is_silent = agent.pod_repairs.is_some_and(|repairs| repairs.is_silent);
    (is_silent && agent.settings.repair.mode != RepairMode::Off).then_some(
        "the container repair (gybe probe --watch --repair) has not renewed /run/gybe/repairs.json for three minutes; \
         look at its state and its log",
    )
}

impl AmbientCounts {
    fn of(ztunnel: &ZtunnelStatus) -> Self {
        Self {
            ztunnels: ztunnel.connected,
            pods: ztunnel.pods - ztunnel.without_netns,
            kept: ztunnel.without_netns,
            pending: ztunnel.pending,
        }
    }
}

/// Returns the status of an agent that only serves queries about pods.
pub(crate) fn status_without_node(
    pods: PodsState,
    sockets: Vec<String>,
    refused: Vec<RefusedPod>,
) -> AgentStatus {
    let reasons: Vec<String> = pods.missing.into_iter().chain(sockets).collect();
    let ready = reasons.is_empty();
    AgentStatus { ready, reasons, unwatched: pods.unwatched, refused, ..AgentStatus::default() }
}

fn readiness_page(agent: &AgentSnapshot) -> Page {
    let AgentStatus { ready, reasons, unwatched, settings, repair, conflicts, notes, ports, .. } =
        status(agent);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = match ready {
        true => writeln!(text, "ready"),
        false => writeln!(text, "not ready\n- {}", reasons.join("\n- ")),
    };
    let unwatched = unwatched.map(|why| format!("new pods are not known: {why}"));
    let settings = settings.map(|why| format!("the ConfigMap is not followed: {why}"));
    let repair = repair.map(|why| format!("{RUNNING_PODS}: {why}"));
    let ports = ports.iter().map(ToString::to_string);
    for note in unwatched.into_iter().chain(settings).chain(repair).chain(conflicts).chain(ports).chain(notes)
    {
        let _ = writeln!(text, "note: {note}");
    }
    if ready { Page::ok(text) } else { Page::unavailable(text) }
}

/// Returns 200 once our entry is removed, so that the DaemonSet may be deleted, and 503 before.
fn uninstall_page(agent: &AgentSnapshot) -> Page {
    let report = &agent.status.report;
    match report.phase {
        Phase::Uninstalled { kept: None } => Page::ok(format!("{UNINSTALLED}; no program stays\n")),
        Phase::Uninstalled { kept: Some(why) } => Page::ok(format!(
            "{UNINSTALLED}; the DaemonSet may be deleted. gybe-cni stays {why}; then this agent removes it, or, \
             after the DaemonSet, gybe uninstall on the node\n",
        )),
        Phase::Uninstalling => {
            Page::unavailable(format!("uninstalling\n- {}\n", report.missing.join("\n- ")))
        }
        Phase::Installed | Phase::Starting => Page::unavailable("no uninstall requested\n"),
    }
}
