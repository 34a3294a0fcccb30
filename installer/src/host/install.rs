//! One pass over a node's directories: observe, plan, apply, and observe again.
//!
//! ```text
//!   directories ─► observe ─► ObservedState ─┬─► plan ─► changes ─► apply ─► directories
//!                             DesiredState ──┘   (pure)            (the only writer)
//! ```
//!
//! Install, upgrade, repair and uninstall differ only in the desired state.

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

/// What an agent remembers between passes. A pass with an empty history is correct too; it only hashes files
/// again.
#[derive(Debug)]
pub struct Memory {
    hashes: Hashes,
    mounts: Mounts,
    paces: Each<Pace>,
    /// What another program undid the last time. A conflict keeps its subject also while there is nothing to
    /// do.
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
    /// Observes the node. `failed` are the changes of the last pass: a program that could not be replaced was
    /// tried then.
    fn look(&mut self, places: &Places, interest: &Interest, failed: &[Failed]) -> Snapshot {
        let mut seen = look(places, interest, &mut self.hashes);
        self.mounts.judge(places, &mut seen);
        seen.runtimes.clone_from(&self.runtimes);
        seen.answering = failed.iter().filter_map(Failed::answering).cloned().collect();
        seen
    }

    /// Sets what is known about the runtimes. A difference changes what has to be written, and that is no
    /// conflict.
    pub fn learn(&mut self, runtimes: Runtimes) {
        if self.runtimes != runtimes {
            self.wants_anew();
        }
        self.runtimes = runtimes;
    }

    /// Starts anew because the desired state changed: writing it undoes no other program's work, and counts as
    /// no rewrite.
    pub fn wants_anew(&mut self) {
        self.setbacks.forget();
        for directory in Directory::BOTH {
            self.paces.of_mut(directory).begin_anew();
        }
    }

    /// How often other programs undid our changes in a directory, and how often they were restored.
    #[must_use]
    pub fn tally(&self, directory: Directory) -> Tally {
        self.paces.of(directory).tally()
    }

    /// The directories in conflict, and how long the planned changes have to wait there.
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

#[derive(Debug)]
pub struct Pass {
    /// The planned changes, without those that wait for a conflict or for a retry.
    pub plan: Plan,
    /// The result of applying them.
    pub performed: Performed,
    /// What remains to be done, from a second observation of the disk.
    pub left: Plan,
    /// The conflicts of each directory.
    pub fights: Each<Option<Fight>>,
    /// Changes that failed earlier and were not tried again in this pass.
    pub waiting: Vec<Failed>,
    /// The time until the first of them is due.
    pub due: Option<Duration>,
}

/// Brings a node as near to the desired state as is possible now. The next call continues from there.
pub fn pass(places: &Places, wanted: &Wanted, memory: &mut Memory) -> Result<Pass, Busy> {
    let interest = wanted.interest();
    let now = Instant::now();
    let (failed_before, _) = memory.setbacks.waiting(now);
    let mut seen = memory.look(places, &interest, &failed_before);
    if seen.lacks_descriptors() {
        return Err(Busy::NoDescriptors);
    }
    let mut whole = plan(&seen, wanted);
    // A node in its desired state needs no lock. A change is planned from an observation made under the lock.
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

/// Returns the changes that need not wait. A change that waits stops those after it, as a failed one does,
/// unless a working program serves in its place.
fn due(changes: &[Change], waits: impl Fn(&Change) -> bool, places: &Places) -> Vec<Change> {
    if changes.iter().all(&waits) {
        return Vec::new();
    }
    let until_stopped = changes.iter().take_while(|change| !waits(change) || works_without(change, places));
    until_stopped.filter(|change| !waits(change)).cloned().collect()
}

/// Leaves out the changes that waited: no other program undid them.
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
