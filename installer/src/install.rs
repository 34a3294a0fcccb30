//! Into a node, healed there, upgraded and out again: seen, planned, performed, and looked at once more.
//!
//! ```text
//!   directories ─► seen ─► Snapshot ─┬─► plan ─► changes ─► perform ─► directories
//!                        Wanted ─────┘   (pure)             (the only writer)
//! ```
//!
//! Install, upgrade, heal and uninstall differ in what is wanted and in nothing else.

pub mod change;
pub mod conflist;
pub mod entry;
pub mod json;
pub mod loads;
pub mod network_config;
pub mod pace;
pub mod perform;
pub mod plan;
pub mod seen;
pub mod wanted;
pub mod watch;

use std::time::{Duration, Instant};

use change::Change;
use conflist::Chain;
use pace::rivals::{Rival, likely};
use pace::{Go, Pace, Went};
use perform::{Busy, PerformError, Performed, Turn, perform};
use plan::{Plan, plan};
use seen::mounted::Mounts;
use seen::{FileName, Hashes, Interest, Places, Snapshot, look};
use wanted::Wanted;

/// What an agent remembers from pass to pass. A fresh one is right too, and only slower.
#[derive(Debug, Default)]
pub struct Memory {
    hashes: Hashes,
    mounts: Mounts,
    pace: Pace,
}

impl Memory {
    fn look(&mut self, places: &Places, interest: &Interest) -> Snapshot {
        let mut seen = look(places, interest, &mut self.hashes);
        self.mounts.judge(places, &mut seen);
        seen
    }

    /// Something else is wanted from now on: to write it undoes nobody's work, and is nobody's rewrite.
    pub fn wants_anew(&mut self) {
        self.pace.begin_anew();
    }

    /// How often somebody undid what we did, as far as it was seen.
    #[must_use]
    pub fn undone(&self) -> u64 {
        self.pace.total()
    }
}

/// What one pass found, did and left.
#[derive(Debug)]
pub struct Pass {
    /// What had to be done.
    pub plan: Plan,
    /// What became of it.
    pub performed: Performed,
    /// What is still to be done: read from the disk again, not believed.
    pub left: Plan,
    /// Somebody keeps undoing it.
    pub fight: Option<Fight>,
}

/// More than five foreign writes in a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fight {
    /// Over which file, where it is one.
    pub file: Option<FileName>,
    /// How often in the last minute.
    pub undone: usize,
    /// With whom, most likely.
    pub rival: Option<Rival>,
    /// When to try again; at once when this pass has written.
    pub wait: Option<Duration>,
}

/// Brings a node as near to what is wanted as can be now. Called again, it goes on from there.
pub fn pass(places: &Places, wanted: &Wanted, memory: &mut Memory) -> Result<Pass, Busy> {
    let _turn = Turn::take(&places.programs)?;
    let interest = wanted.interest();
    let seen = memory.look(places, &interest);
    let planned = plan(&seen, wanted);
    let go = memory.pace.judge(&planned, Instant::now());
    let fight = memory.pace.is_fight().then(|| fight(&seen, &planned, &memory.pace, go));
    if planned.changes.is_empty() || go != Go::Now {
        return Ok(Pass { left: planned.clone(), plan: planned, performed: Performed::default(), fight });
    }
    let performed = perform(&planned.changes, places);
    let left = plan(&memory.look(places, &interest), wanted);
    let overtaken = |why: &PerformError| matches!(why, PerformError::Overtaken { .. });
    let went = if performed.failed.iter().all(overtaken) { Went::Well } else { Went::Badly };
    memory.pace.wrote(went, &left, Instant::now());
    Ok(Pass { plan: planned, performed, left, fight })
}

fn fight(seen: &Snapshot, plan: &Plan, pace: &Pace, go: Go) -> Fight {
    let file = plan.changes.iter().find_map(|change| match change {
        Change::Write { file, .. } | Change::Move { from: file, .. } => Some(file.clone()),
        _ => None,
    });
    let bytes = file.as_ref().and_then(|file| seen.conf.files.get(file)?.content.as_ref().ok());
    let chain = bytes.and_then(|bytes| Chain::read(bytes).ok());
    let rival = chain.and_then(|chain| likely(&chain.plugins()));
    let wait = match go {
        Go::Now => None,
        Go::Later(wait) => Some(wait),
    };
    Fight { file, undone: pace.undone(), rival, wait }
}
