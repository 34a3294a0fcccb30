//! One pass over a node's directories: observe, plan, apply, and observe again.
//!
//! ```text
//!   directories ─► observe ─► ObservedState ─┬─► plan ─► changes ─► apply ─► directories
//!                             DesiredState ──┘   (pure)            (the only writer)
//! ```
//!
//! Install, upgrade, repair and uninstall differ only in the desired state.

use std::time::{Duration, Instant};

use super::apply::{AppliedChanges, Busy, FailedChange, NodeLock, apply, due};
use super::change::Change;
use super::conflict::{Conflict, ConflictTracker, RewriteCounts, WriteOutcome};
use super::desired::DesiredState;
use super::observe::runtimes::Runtimes;
use super::observe::{
    Directory, HashCache, MountRoots, NodeDirectories, ObservedState, PerDirectory, observe,
};
use super::plan::{Plan, plan};
use super::program_retry::ProgramRetries;
use crate::retry::NextTurn;

/// What an agent remembers between passes. A pass with an empty history is correct too; it only hashes files
/// again.
#[derive(Debug)]
pub struct PassHistory {
    hashes: HashCache,
    mounts: MountRoots,
    conflicts: PerDirectory<ConflictTracker>,
    retries: ProgramRetries,
    runtimes: Runtimes,
}

impl Default for PassHistory {
    fn default() -> Self {
        let (hashes, mounts, retries, runtimes) = Default::default();
        Self { hashes, mounts, conflicts: PerDirectory::made(ConflictTracker::new), retries, runtimes }
    }
}

impl PassHistory {
    /// Observes the node. `failed` are the changes of the last pass: a program that could not be replaced was
    /// tried then.
    fn look(
        &mut self,
        directories: &NodeDirectories,
        desired: &DesiredState,
        failed: &[FailedChange],
    ) -> ObservedState {
        let mut observed = observe(directories, &desired.interest(), &mut self.hashes);
        self.mounts.mark_renamed(directories, &mut observed);
        observed.runtimes.clone_from(&self.runtimes);
        observed.answering = failed.iter().filter_map(FailedChange::answering).cloned().collect();
        observed
    }

    fn observe_and_plan(
        &mut self,
        directories: &NodeDirectories,
        desired: &DesiredState,
        failed: &[FailedChange],
    ) -> Result<(ObservedState, Plan), Busy> {
        let observed = self.look(directories, desired, failed);
        if observed.lacks_descriptors() {
            return Err(Busy::NoDescriptors);
        }
        let plan = plan(&observed, desired);
        Ok((observed, plan))
    }

    /// Sets what is known about the runtimes. A difference may change what has to be written, which is not a conflict.
    pub fn set_runtimes(&mut self, runtimes: Runtimes) {
        if self.runtimes != runtimes {
            self.desired_state_changed();
        }
        self.runtimes = runtimes;
    }

    /// Records that the desired state changed: the next difference is not a foreign rewrite, and its write not a
    /// repair.
    pub fn desired_state_changed(&mut self) {
        self.retries.clear();
        for directory in Directory::BOTH {
            self.conflicts.of_mut(directory).desired_state_changed();
        }
    }

    /// Returns until when another foreign rewrite of a directory has to be expected; none after a single one.
    #[must_use]
    pub fn rewrite_expected_until(&self, directory: Directory) -> Option<Instant> {
        self.conflicts.of(directory).expected_until()
    }

    /// How often other programs undid our changes in a directory, and how often they were restored.
    #[must_use]
    pub fn rewrite_counts(&self, directory: Directory) -> RewriteCounts {
        self.conflicts.of(directory).counts()
    }

    /// Returns each directory's conflict, with the time that its changes have to wait.
    fn conflicts(
        &mut self,
        snapshot: &ObservedState,
        plan: &Plan,
        now: Instant,
    ) -> PerDirectory<Option<Conflict>> {
        PerDirectory::made(|directory| {
            let tracker = self.conflicts.of_mut(directory);
            tracker.identify(snapshot, plan);
            let wait = tracker.observe(plan, |change| self.retries.contains(change), now);
            tracker.conflict(wait)
        })
    }

    fn applied(&mut self, changes: &[Change], outcome: WriteOutcome, left: &Plan) {
        for directory in Directory::BOTH {
            if changes.iter().any(|change| change.creates() && change.directory() == directory) {
                self.conflicts.of_mut(directory).wrote(outcome, left, Instant::now());
            }
        }
    }
}

/// The longest time between two turns. Some changes cause no event: a node's label, an agent that ended, a token's age.
pub(crate) const RESYNC: Duration = Duration::from_secs(10);
/// After a step that failed, or while another `gybe` changes the node: our own attempts cause events too, which must
/// not start the next attempt at once.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// What one pass found, did and left.
#[derive(Debug)]
pub struct Pass {
    /// What had to be done, without the changes that wait because of a conflict or of a failure a moment ago.
    pub plan: Plan,
    pub applied: AppliedChanges,
    /// What is still to be done, read from the disk again.
    pub left: Plan,
    pub conflicts: PerDirectory<Option<Conflict>>,
    /// Steps that failed before and were not tried again in this pass.
    pub waiting: Vec<FailedChange>,
    /// How long it is until the first of them is due.
    pub due: Option<Duration>,
}

impl Pass {
    /// Returns when the next pass is due: after `longest` at the latest, unless a conflict over the conf or a failed
    /// step has to wait longer.
    #[must_use]
    pub fn next_turn(&self, longest: Duration) -> NextTurn {
        let wait = |conflict: &Option<Conflict>| conflict.as_ref().and_then(|conflict| conflict.wait);
        if let Some(wait) = wait(&self.conflicts.conf) {
            return NextTurn::After(wait);
        }
        if self.refused().any(|failed| !matches!(failed.change, Change::PlaceProgram { .. }))
            || self.is_in_vain()
        {
            return NextTurn::After(RETRY);
        }
        // Neither a conflict over programs nor a program that cannot be placed delays repairs of the chain.
        let next = wait(&self.conflicts.programs).into_iter().chain(self.due).min();
        NextTurn::OnChange(longest).within(next.unwrap_or(longest))
    }

    /// Returns the steps whose last attempt failed, in this pass or before it.
    pub fn failed(&self) -> impl Iterator<Item = &FailedChange> {
        self.waiting.iter().chain(&self.applied.failed)
    }

    /// Returns the steps that the system refused. After a step that another program overtook, that program's write
    /// wakes the loop.
    pub fn refused(&self) -> impl Iterator<Item = &FailedChange> {
        self.applied.failed.iter().filter(|failed| !failed.is_overtaken())
    }

    /// Reports whether a program that was placed is to be placed again: the file system keeps no modes, or another
    /// program writes that name too. Our own write wakes the loop, and would do so without end.
    fn is_in_vain(&self) -> bool {
        let mut placed =
            self.plan.changes.iter().filter(|change| matches!(change, Change::PlaceProgram { .. }));
        self.applied.done > 0 && placed.any(|change| self.left.changes.contains(change))
    }
}

/// Brings a node as near to the desired state as is possible now. The next call goes on from there.
pub fn pass(
    directories: &NodeDirectories,
    desired: &DesiredState,
    memory: &mut PassHistory,
) -> Result<Pass, Busy> {
    let now = Instant::now();
    let failed_before = memory.retries.waiting(now);
    let (mut observed, mut whole) = memory.observe_and_plan(directories, desired, &failed_before)?;
    // A node in its desired state needs no lock. A change is planned from an observation made under the lock.
    let _lock = if whole.changes.is_empty() {
        None
    } else {
        let lock = NodeLock::take(&directories.programs)?;
        (observed, whole) = memory.observe_and_plan(directories, desired, &failed_before)?;
        Some(lock)
    };
    let conflicts = memory.conflicts(&observed, &whole, now);
    memory.retries.retain(&whole.changes, &directories.programs);
    let waits = |change: &Change| {
        let conflict = conflicts.of(change.directory()).as_ref();
        let is_limited = change.creates() && conflict.is_some_and(|conflict| conflict.wait.is_some());
        is_limited || memory.retries.delays(change, now)
    };
    let planned = Plan { changes: due(&whole.changes, waits, directories), ..whole.clone() };
    let waiting = memory.retries.waiting(now);
    if planned.changes.is_empty() {
        let due = memory.retries.next(now);
        return Ok(Pass {
            left: whole,
            plan: planned,
            applied: AppliedChanges::default(),
            conflicts,
            waiting,
            due,
        });
    }
    let applied = apply(&planned.changes, directories);
    let left = plan(&memory.look(directories, desired, &applied.failed), desired);
    memory.applied(&planned.changes, outcome(&applied), &without_put_off(&left, &whole, &planned));
    memory.retries.tried(&planned.changes, &applied.failed, &directories.programs);
    Ok(Pass { plan: planned, applied, left, conflicts, waiting, due: memory.retries.next(now) })
}

/// Returns `left` without the changes that were put off: no other program has undone those.
fn without_put_off(left: &Plan, whole: &Plan, planned: &Plan) -> Plan {
    let was_put_off = |change: &Change| whole.changes.contains(change) && !planned.changes.contains(change);
    let changes = left.changes.iter().filter(|change| !was_put_off(change)).cloned().collect();
    Plan { changes, ..left.clone() }
}

fn outcome(applied: &AppliedChanges) -> WriteOutcome {
    match applied.failed.as_slice() {
        [] => WriteOutcome::Complete,
        failed if failed.iter().all(FailedChange::is_overtaken) => WriteOutcome::Overtaken,
        _ => WriteOutcome::Failed,
    }
}
