//! Findings about leftovers: of an uninstall that has to wait, or of a process that was killed.

use super::observe::Observation;
use super::programs::program;
use super::{About, Finding};
use crate::host::entries::OurEntries;
use crate::host::image::PLUGIN;
use crate::host::observe::{CachedPlugins, ORIGINAL};

pub(super) fn examine(sight: &Observation, ours: &OurEntries<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    if !ours.is_anywhere() {
        found.extend(program(sight, PLUGIN).map(|_| tombstone(sight)));
        let originals = sight.snapshot.conf.files.keys().filter(|name| name.ends_in(ORIGINAL));
        let originals: Vec<String> = originals.map(ToString::to_string).collect();
        if !originals.is_empty() {
            let says =
                format!("files that gybe set aside and that are no longer needed: {}", originals.join(", "));
            found.push(Finding::note(About::Leftovers, says, Some("run gybe uninstall, which removes them")));
        }
    }
    let litter = [(sight.snapshot.conf.litter, "conf"), (sight.snapshot.programs.litter, "program")];
    for (_, of) in litter.iter().filter(|(there, _)| *there) {
        let says = format!("a gybe that was killed left a temporary file in the {of} directory");
        found.push(Finding::note(
            About::Leftovers,
            says,
            Some("run gybe install, or wait for the agent's next pass: both remove it"),
        ));
    }
    found
}

fn tombstone(sight: &Observation) -> Finding {
    let living = "the DEL of existing sandboxes needs it";
    let (says, remedy) = match &sight.snapshot.cached {
        CachedPlugins::Unknown => (
            format!("no conf file names {PLUGIN}, and it is unknown which sandboxes still need it"),
            "let --results-dir name libcni's cache (/var/lib/cni/results), or drain the node; then run gybe uninstall",
        ),
        cached if cached.may_name(PLUGIN) => (
            format!("no conf file names {PLUGIN}, but its program has to stay: {living}"),
            "run gybe uninstall when those pods are gone; do not remove the program before",
        ),
        CachedPlugins::Named(_) => (
            format!("no conf file names {PLUGIN}, and no sandbox needs its program"),
            "run gybe uninstall to remove it, or gybe install to restore the entry",
        ),
    };
    Finding::note(About::Leftovers, says, Some(remedy))
}
