//! Findings about leftovers: of an uninstall that has to wait, or of a process that was killed.

use super::observe::Observation;
use super::programs::program;
use super::{About, Finding};
use crate::host::entries::OurEntries;
use crate::host::image::PLUGIN;
use crate::host::observe::{CachedPlugins, ORIGINAL};

pub(super) fn examine(observation: &Observation, ours: &OurEntries<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    if !ours.is_anywhere() {
        found.extend(program(observation, PLUGIN).map(|_| tombstone(observation)));
        let originals = observation.snapshot.conf.files.keys().filter(|name| name.ends_in(ORIGINAL));
        let originals: Vec<String> = originals.map(ToString::to_string).collect();
        if !originals.is_empty() {
            let text =
                format!("files that gybe set aside and that are no longer needed: {}", originals.join(", "));
            found.push(Finding::note(About::Leftovers, text, Some("run gybe uninstall, which removes them")));
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

fn tombstone(observation: &Observation) -> Finding {
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
    Finding::note(About::Leftovers, text, Some(remedy))
}
