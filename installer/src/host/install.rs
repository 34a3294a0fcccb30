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
pub mod directory;
pub mod entry;
pub mod fight;
pub mod json;
pub mod judge;
pub mod loads;
pub mod network_config;
pub mod pace;
pub mod perform;
pub mod plan;
pub mod rate_limit;
pub mod runtimes;
pub mod seen;
mod setback;
pub mod wanted;
pub mod watch;

use std::time::{Duration, Instant};

use change::Change;
use directory::{Directory, Each};
use fight::{Fight, Matter};
use pace::{Go, Pace, Tally, Went};
use perform::{Busy, Failed, Performed, Turn, perform, works_without};
use plan::{Plan, plan};
use runtimes::Runtimes;
use seen::mounted::Mounts;
use seen::{Hashes, Interest, Places, Snapshot, look};
use setback::Setbacks;
use wanted::Wanted;

/// What an agent remembers from pass to pass. A fresh one is right too, and only slower.
#[derive(Debug)]
pub struct Memory {
    hashes: Hashes,
    mounts: Mounts,
    paces: Each<Pace>,
    /// What was undone the last time: a fight is over something, also while nothing has to be done.
    matters: Each<Matter>,
    setbacks: Setbacks,
    runtimes: Runtimes,
}

impl Default for Memory {
    fn default() -> Self {
        let (hashes, mounts, matters, setbacks, runtimes) = Default::default();
        Self { hashes, mounts, paces: Each::made(Pace::of), matters, setbacks, runtimes }
    }
}

impl Memory {
    /// Looks at the node; a program that could not be replaced was tried then.
    fn look(&mut self, places: &Places, interest: &Interest, failed: &[Failed]) -> Snapshot {
        let mut seen = look(places, interest, &mut self.hashes);
        self.mounts.judge(places, &mut seen);
        seen.runtimes.clone_from(&self.runtimes);
        seen.answering = failed.iter().filter_map(Failed::answering).cloned().collect();
        seen
    }

    /// What is known about the runtimes from now on. A change of it changes what is to be written, which is no conflict.
    pub fn learn(&mut self, runtimes: Runtimes) {
        if self.runtimes != runtimes {
            self.wants_anew();
        }
        self.runtimes = runtimes;
    }

    /// Something else is wanted from now on: to write it undoes nobody's work, and is nobody's rewrite.
    pub fn wants_anew(&mut self) {
        self.setbacks.forget();
        for directory in Directory::BOTH {
            self.paces.of_mut(directory).begin_anew();
        }
    }

    /// How often somebody undid what we did in a directory, and how often it was put back.
    #[must_use]
    pub fn tally(&self, directory: Directory) -> Tally {
        self.paces.of(directory).tally()
    }

    /// Which directories are fought over, and how long what is planned has to wait there.
    fn judge(&mut self, seen: &Snapshot, plan: &Plan, now: Instant) -> Each<Option<Fight>> {
        Each::made(|directory| {
            if let Some(matter) = Matter::seen(seen, plan, directory) {
                *self.matters.of_mut(directory) = matter;
            }
            let pace = self.paces.of_mut(directory);
            let wait = match pace.judge(plan, |change| self.setbacks.hold(change), now) {
                Go::Now => None,
                Go::Later(wait) => Some(wait),
            };
            let matter = self.matters.of(directory).clone();
            pace.is_fight().then(|| Fight { matter, undone: pace.undone(), wait })
        })
    }

    fn performed(&mut self, changes: &[Change], went: Went, left: &Plan) {
        for directory in Directory::BOTH {
            if changes.iter().any(|change| change.puts() && change.directory() == directory) {
                self.paces.of_mut(directory).wrote(went, left, Instant::now());
            }
        }
    }
}

/// What one pass found, did and left.
#[derive(Debug)]
pub struct Pass {
    /// What had to be done, but for what waits: it is fought over, or failed a moment ago.
    pub plan: Plan,
    /// What became of it.
    pub performed: Performed,
    /// What is still to be done: read from the disk again, not believed.
    pub left: Plan,
    /// Where somebody keeps undoing it.
    pub fights: Each<Option<Fight>>,
    /// What failed before, and was not tried again in this pass.
    pub waiting: Vec<Failed>,
    /// How long it is until the first of that is due.
    pub due: Option<Duration>,
}

/// Brings a node as near to what is wanted as can be now. Called again, it goes on from there.
pub fn pass(places: &Places, wanted: &Wanted, memory: &mut Memory) -> Result<Pass, Busy> {
    let interest = wanted.interest();
    let now = Instant::now();
    let (failed_before, _) = memory.setbacks.waiting(now);
    let mut seen = memory.look(places, &interest, &failed_before);
    if seen.lacks_descriptors() {
        return Err(Busy::NoDescriptors);
    }
    let mut whole = plan(&seen, wanted);
    // A node that is as wanted needs no lock. Under it another look counts.
    let turn = if whole.changes.is_empty() { None } else { Some(Turn::take(&places.programs)?) };
    if turn.is_some() {
        seen = memory.look(places, &interest, &failed_before);
        if seen.lacks_descriptors() {
            return Err(Busy::NoDescriptors);
        }
        whole = plan(&seen, wanted);
    }
    let fights = memory.judge(&seen, &whole, now);
    memory.setbacks.judge(&whole.changes, &places.programs);
    let waits = |change: &Change| {
        let fight = fights.of(change.directory()).as_ref();
        let is_fought_over = change.puts() && fight.is_some_and(|fight| fight.wait.is_some());
        is_fought_over || memory.setbacks.delays(change, now)
    };
    let planned = Plan { changes: due(&whole.changes, waits, places), ..whole.clone() };
    let (waiting, due) = memory.setbacks.waiting(now);
    if planned.changes.is_empty() {
        return Ok(Pass {
            left: whole,
            plan: planned,
            performed: Performed::default(),
            fights,
            waiting,
            due,
        });
    }
    let performed = perform(&planned.changes, places);
    let left = plan(&memory.look(places, &interest, &performed.failed), wanted);
    memory.performed(&planned.changes, went(&performed), &of_what_was_tried(&left, &whole, &planned));
    memory.setbacks.tried(&planned.changes, &performed.failed, &places.programs);
    Ok(Pass { plan: planned, performed, left, fights, waiting, due: memory.setbacks.waiting(now).1 })
}

/// Those that need not wait. One that has to is as one that fails: what comes after it is not done
/// either, unless a program that works serves meanwhile.
fn due(changes: &[Change], waits: impl Fn(&Change) -> bool, places: &Places) -> Vec<Change> {
    if changes.iter().all(&waits) {
        return Vec::new();
    }
    let until_stopped = changes.iter().take_while(|change| !waits(change) || works_without(change, places));
    until_stopped.filter(|change| !waits(change)).cloned().collect()
}

/// What waits has not been undone.
fn of_what_was_tried(left: &Plan, whole: &Plan, planned: &Plan) -> Plan {
    let was_put_off = |change: &Change| whole.changes.contains(change) && !planned.changes.contains(change);
    let changes = left.changes.iter().filter(|change| !was_put_off(change)).cloned().collect();
    Plan { changes, ..left.clone() }
}

fn went(performed: &Performed) -> Went {
    match performed.failed.as_slice() {
        [] => Went::Well,
        failed if failed.iter().all(Failed::is_overtaken) => Went::Overtaken,
        _ => Went::Badly,
    }
}
