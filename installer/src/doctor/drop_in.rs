//! Whether the runtime reads the file in its network's own directory, where our entry is there: an older
//! one passes over it without a word, and its pods start unredirected.

use super::chain::Ours;
use super::sight::{RuntimeSeen, Sight};
use super::{About, Finding};
use crate::install::loads::DropIns;
use crate::settings::PLUGIN;

const SINCE: &str = "containerd 2.1 and CRI-O 1.34 do, older ones do not";

pub(super) fn examine(sight: &Sight, ours: &Ours<'_>) -> Vec<Finding> {
    if ours.dropped_in.is_empty() {
        return Vec::new();
    }
    if sight.runtimes.is_empty() {
        return vec![untold("the runtime, which is not seen,")];
    }
    sight.runtimes.iter().map(of_runtime).collect()
}

fn of_runtime(RuntimeSeen { name, pid, drop_ins, .. }: &RuntimeSeen) -> Finding {
    let who = format!("{name} (process {pid})");
    match drop_ins {
        Some(DropIns::Loaded) => Finding::well(About::Chain, format!("{who} reads drop-ins")),
        Some(DropIns::Ignored) => {
            let says =
                format!("{who} does not read drop-ins, and {PLUGIN} is one: new pods are not redirected");
            Finding::wrong(About::Chain, says, format!("set shape: chained, or update {name}: {SINCE}"))
        }
        None => untold(&who),
    }
}

fn untold(who: &str) -> Finding {
    let says = format!("whether {who} reads drop-ins cannot be told, and {PLUGIN} is one: {SINCE}");
    Finding::note(About::Chain, says, Some("run gybe doctor as root on the node"))
}
