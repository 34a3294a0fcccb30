//! Findings about leftovers: of an uninstall that has to wait, or of a process that was killed.

use super::observe::{AgentContact, Observation};
use super::programs::program;
use super::{About, Finding};
use crate::host::entries::OurEntries;
use crate::host::image::PLUGIN;
use crate::host::observe::{CachedPlugins, ORIGINAL};

pub(super) fn examine(observation: &Observation, ours: &OurEntries<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let agent = observation.agent.as_ref().filter(|agent| !agent.is_absent());
    // An agent that does not leave restores the entry.
    if !ours.is_anywhere() && agent.is_none_or(AgentContact::leaves) {
        found.extend(program(observation, PLUGIN).map(|_| tombstone(observation, agent)));
        let originals = observation.snapshot.conf.files.keys().filter(|name| name.ends_in(ORIGINAL));
        let originals: Vec<String> = originals.map(ToString::to_string).collect();
        if !originals.is_empty() {
            let text =
                format!("files that gybe set aside and that are no longer needed: {}", originals.join(", "));
            let remedy =
                agent.map_or("run gybe uninstall, which removes them", |_| "the node agent removes them");
            found.push(Finding::note(About::Leftovers, text, Some(remedy)));
        }
    }
    let has_temporary = [
        (observation.snapshot.conf.has_temporary, "conf"),
        (observation.snapshot.programs.has_temporary, "program"),
    ];
    for (_, of) in has_temporary.iter().filter(|(there, _)| *there) {
        let text = format!("a gybe that was killed left a temporary file in the {of} directory");
        found.push(Finding::note(
            About::Leftovers,
            text,
            Some("run gybe install, or wait for the agent's next pass: both remove it"),
        ));
    }
    found
}

/// `agent` is the agent that removes Gybe from the node, if one runs.
fn tombstone(observation: &Observation, agent: Option<&AgentContact>) -> Finding {
    let reason = "the DEL of existing sandboxes needs it";
    let (text, remedy) = match &observation.snapshot.cached {
        CachedPlugins::Unknown => (
            format!("no conf file names {PLUGIN}, and it is unknown which sandboxes still need it"),
            "let --results-dir name libcni's cache (/var/lib/cni/results), or drain the node; then run gybe uninstall",
        ),
        cached if cached.may_name(PLUGIN) => (
            format!("no conf file names {PLUGIN}, but its program has to stay: {reason}"),
            "run gybe uninstall when those pods are gone; do not remove the program before",
        ),
        CachedPlugins::Named(_) => (
            format!("no conf file names {PLUGIN}, and no sandbox needs its program"),
            "run gybe uninstall to remove it, or gybe install to restore the entry",
        ),
    };
    let remedy = agent.map_or(
        remedy,
        |_| "the node agent removes it as soon as no sandbox needs it; do not remove it before",
    );
    Finding::note(About::Leftovers, text, Some(remedy))
}
