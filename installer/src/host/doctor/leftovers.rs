//! What is left of an earlier life: of an uninstall that has to wait, or of a run that was cut off.

use super::chain::Ours;
use super::programs::program;
use super::sight::Sight;
use super::{About, Finding};
use crate::host::install::seen::{Cached, ORIGINAL};
use crate::host::settings::PLUGIN;

pub(super) fn examine(sight: &Sight, ours: &Ours<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    if !ours.is_anywhere() {
        found.extend(program(sight, PLUGIN).map(|_| tombstone(sight)));
        let originals = sight.snapshot.conf.files.keys().filter(|name| name.ends_in(ORIGINAL));
        let originals: Vec<String> = originals.map(ToString::to_string).collect();
        if !originals.is_empty() {
            let says = format!("set aside by gybe, and no longer needed: {}", originals.join(", "));
            found.push(Finding::note(About::Leftovers, says, Some("gybe uninstall removes them")));
        }
    }
    let litter = [(sight.snapshot.conf.litter, "conf"), (sight.snapshot.programs.litter, "program")];
    for (_, of) in litter.iter().filter(|(there, _)| *there) {
        let says = format!("a run that was cut off has left its temporary file in the {of} directory");
        found.push(Finding::note(
            About::Leftovers,
            says,
            Some("the next pass of the agent, or gybe install, removes it"),
        ));
    }
    found
}

fn tombstone(sight: &Sight) -> Finding {
    let living = "sandboxes of before still name it, and their DEL asks for it";
    let (says, remedy) = match &sight.snapshot.cached {
        Cached::Unknown => (
            format!("{PLUGIN} is in no conf file, and which sandboxes still name it cannot be told"),
            "see that --results-dir is libcni's (/var/lib/cni/results); or drain the node, then run gybe uninstall",
        ),
        cached if cached.may_name(PLUGIN) => (
            format!("{PLUGIN} is in no conf file, and has to stay: {living}"),
            "when those pods are gone, gybe uninstall removes it; until then it must stay",
        ),
        Cached::Named(_) => (
            format!("{PLUGIN} is in no conf file, and no sandbox names it"),
            "gybe uninstall removes it; gybe install puts it back",
        ),
    };
    Finding::note(About::Leftovers, says, Some(remedy))
}
