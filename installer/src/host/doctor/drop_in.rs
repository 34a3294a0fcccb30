//! Findings about the drop-in shape: which runtimes read a network's own directory.

use super::chain::Ours;
use super::sight::{RuntimeSeen, Sight};
use super::{About, Finding};
use crate::host::install::loads::DropIns;

pub(super) fn examine(sight: &Sight, ours: &Ours<'_>) -> Vec<Finding> {
    if ours.dropped_in.is_empty() {
        return Vec::new();
    }
    let says = |RuntimeSeen { name, pid, drop_ins, .. }: &RuntimeSeen| match drop_ins {
        Some(DropIns::Loaded) => format!("{name} (process {pid}) reads drop-ins"),
        Some(DropIns::Ignored) => format!("{name} (process {pid}) does not read drop-ins"),
        None => format!("whether {name} (process {pid}) reads drop-ins is unknown"),
    };
    sight.runtimes.iter().map(|runtime| Finding::note(About::Chain, says(runtime), None)).collect()
}
