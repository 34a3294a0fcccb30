//! `/healthz`, `/readyz` and `/left`: what a probe, a person and the chart's hook are told. Pure.

use super::bulletin::Stage;
use super::page::Page;
use super::view::Seen;
use crate::agent::agent_status::AgentStatus;
use crate::host::desired::Confirmed;
use std::fmt::Write as _;

/// The answer to a request for `path`; none for any other.
pub(crate) fn page(path: &str, seen: &Seen) -> Option<Page> {
    match path {
        "/healthz" => {
            let ends = seen.is_beyond_help();
            Some(ends.map_or_else(|| Page::good("ok\n"), |why| Page::bad(format!("{why}\n"))))
        }
        "/readyz" => Some(ready(seen)),
        "/left" => Some(left(seen)),
        _ => None,
    }
}

/// How the agent stands: `/readyz` and the facts socket say the same.
pub(crate) fn status(seen: &Seen) -> AgentStatus {
    let reasons = seen.missing();
    let conflicts = &seen.posted.fights;
    AgentStatus {
        ready: reasons.is_empty(),
        leaves: matches!(seen.posted.stage, Stage::Leaving | Stage::Left { .. }),
        reasons,
        settings: seen.posted.settings.clone(),
        conflicts: conflicts.conf.iter().chain(&conflicts.programs).cloned().collect(),
        notes: seen.posted.notes.clone(),
        plugin_dir_confirmed: seen.posted.plugin_dir == Confirmed::Yes,
    }
}

/// How an agent stands that keeps no node: by its pods and its sockets.
pub(crate) fn of_pods_alone(pods: Option<String>, sockets: Vec<String>) -> AgentStatus {
    let reasons: Vec<String> = pods.into_iter().chain(sockets).collect();
    AgentStatus { ready: reasons.is_empty(), reasons, ..AgentStatus::default() }
}

/// Ready: nothing is missing. Whatever else should be known stands below it.
fn ready(seen: &Seen) -> Page {
    let AgentStatus { ready, reasons, settings, conflicts, notes, .. } = status(seen);
    let mut text = String::new();
    // A String takes whatever is written to it.
    let _ = match ready {
        true => writeln!(text, "ready"),
        false => writeln!(text, "not ready\n- {}", reasons.join("\n- ")),
    };
    let settings = settings.map(|why| format!("the ConfigMap is not followed: {why}"));
    for note in settings.into_iter().chain(conflicts).chain(notes) {
        let _ = writeln!(text, "note: {note}");
    }
    if ready { Page::good(text) } else { Page::bad(text) }
}

/// Whether the node's chain is without us, and nothing more has to be waited for before the DaemonSet
/// may be deleted.
fn left(seen: &Seen) -> Page {
    match seen.posted.stage {
        Stage::Left { plugin_stays: false } => Page::good("left; nothing stays\n"),
        Stage::Left { plugin_stays: true } => Page::good(
            "left; the DaemonSet may be deleted. gybe-cni stays while a sandbox that may name it lives or is being made, to \
             answer its DEL; then this agent removes it, or gybe uninstall on the node\n",
        ),
        Stage::Leaving => Page::bad(format!("leaving\n- {}\n", seen.posted.missing.join("\n- "))),
        Stage::In | Stage::Starting => Page::bad("not asked to leave\n"),
    }
}
