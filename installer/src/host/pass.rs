//! One pass over a node's directories: observe, plan, apply, and observe again.
//!
//! ```text
//!   directories ─► observe ─► ObservedState ─┬─► plan ─► changes ─► apply ─► directories
//!                             DesiredState ──┘   (pure)            (the only writer)
//! ```
//!
//! Install, upgrade, repair and uninstall differ only in the desired state.

use crate::host::observe::FileIdentity;
use crate::retry::{Backoff, NextTurn};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::apply::{AppliedChanges, Busy, FailedChange, NodeLock, apply, due};
use super::change::Change;
use super::conflict::{Conflict, ConflictTracker, RewriteCounts, WriteOutcome};
use super::desired::{DesiredState, Shape};
use super::judge::Judgement;
use super::observe::runtimes::Runtimes;
use super::observe::{
    Directory, HashCache, MountRoots, NodeDirectories, ObservedState, PerDirectory, observe,
};
use super::plan::{Plan, plan};

/// What an agent remembers between passes. A pass with an empty history is correct too; it only hashes files
/// again.
#[derive(Debug)]
pub struct PassHistory {
    hashes: HashCache,
    mounts: MountRoots,
    conflicts: PerDirectory<ConflictTracker>,
    retries: ProgramRetries,
    runtimes: Runtimes,
    /// The shape that `shape: auto` meant at the last look.
    auto: Option<&'static Shape>,
}

impl Default for PassHistory {
    fn default() -> Self {
        let (hashes, mounts, retries, runtimes, auto) = Default::default();
        Self { hashes, mounts, conflicts: PerDirectory::made(ConflictTracker::new), retries, runtimes, auto }
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

    /// Records which shape `shape: auto` means, and reports whether that has changed: then the entry belongs elsewhere,
    /// and its move is no foreign rewrite.
    fn record_auto(&mut self, plan: &Plan) -> bool {
        let auto = plan.auto.as_ref().map(|auto| auto.shape);
        let has_changed = self.auto != auto;
        if has_changed {
            self.auto = auto;
            self.desired_state_changed();
        }
        has_changed
    }

    /// Returns how long another foreign rewrite of the conf has to be expected; none if none has to be.
    #[must_use]
    pub fn rewrite_expected_for(&self) -> Option<Duration> {
        self.conflicts.conf.expected_for(Instant::now())
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
    pass_with(directories, desired, memory, |_| ())
}

/// As [`pass`], and calls `before_writing` with the judgement of the node as observed before the first write, which may
/// wait for a disk. Not called if there is nothing to write.
pub(crate) fn pass_with(
    directories: &NodeDirectories,
    desired: &DesiredState,
    memory: &mut PassHistory,
    before_writing: impl FnOnce(&Judgement),
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
    memory.record_auto(&whole);
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
    before_writing(&whole.judgement);
    let applied = apply(&planned.changes, directories);
    let left = plan(&memory.look(directories, desired, &applied.failed), desired);
    // The agent's own changes can be a reason for another shape.
    if !memory.record_auto(&left) {
        memory.applied(&planned.changes, outcome(&applied), &without_put_off(&left, &whole, &planned));
    }
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

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// While no program works in its place every pod is refused, and no event reports that a disk has room again.
const LONGEST_WAIT_WITHOUT: Duration = Duration::from_secs(10);

/// The programs that could not be placed. Each try writes and reads megabytes, so the waits grow.
#[derive(Debug, Default)]
struct ProgramRetries {
    retries: Vec<Retry>,
    /// The programs' directory after our last try.
    directory: Option<FileIdentity>,
}

#[derive(Debug, Clone)]
struct Retry {
    failed: FailedChange,
    backoff: Backoff,
    due: Instant,
}

impl ProgramRetries {
    /// Forgets steps that are no longer planned. Forgets all steps when another program has changed or replaced the
    /// directory: a step that failed may succeed now.
    fn retain(&mut self, changes: &[Change], directory: &Path) {
        if identity(directory) != self.directory {
            self.retries.clear();
        }
        self.retries.retain(|retry| changes.contains(&retry.failed.change));
    }

    /// Forgets all steps, when the desired state changed.
    fn clear(&mut self) {
        self.retries.clear();
    }

    /// Reports whether a step failed the last time.
    fn contains(&self, change: &Change) -> bool {
        of(&self.retries, change).is_some()
    }

    /// Reports whether a step is not due yet.
    fn delays(&self, change: &Change, now: Instant) -> bool {
        of(&self.retries, change).is_some_and(|retry| retry.due > now)
    }

    /// Returns the steps that failed before and are not due yet.
    fn waiting(&self, now: Instant) -> Vec<FailedChange> {
        self.not_due(now).map(|retry| retry.failed.clone()).collect()
    }

    /// Returns how long it is until the first of [`Self::waiting`] is due.
    fn next(&self, now: Instant) -> Option<Duration> {
        self.not_due(now).map(|retry| retry.due.saturating_duration_since(now)).min()
    }

    fn not_due(&self, now: Instant) -> impl Iterator<Item = &Retry> {
        self.retries.iter().filter(move |retry| retry.due > now)
    }

    /// Records a pass that tried `changes`, of which these `failed`.
    fn tried(&mut self, changes: &[Change], failed: &[FailedChange], directory: &Path) {
        let (before, now) = (std::mem::take(&mut self.retries), Instant::now());
        let placing = failed.iter().filter(|failed| matches!(failed.change, Change::PlaceProgram { .. }));
        self.retries = placing.map(|failed| Retry::after(of(&before, &failed.change), failed, now)).collect();
        self.retries.extend(before.into_iter().filter(|retry| !changes.contains(&retry.failed.change)));
        self.directory = identity(directory);
    }
}

impl Retry {
    fn after(before: Option<&Self>, failed: &FailedChange, now: Instant) -> Self {
        let mut backoff = before.map_or(Backoff::new(FIRST_WAIT), |retry| retry.backoff.clone());
        let wait = backoff.failed(if failed.works_without { LONGEST_WAIT } else { LONGEST_WAIT_WITHOUT });
        Self { failed: failed.clone(), backoff, due: now + wait }
    }
}

fn of<'a>(retries: &'a [Retry], change: &Change) -> Option<&'a Retry> {
    retries.iter().find(|retry| retry.failed.change == *change)
}

fn identity(directory: &Path) -> Option<FileIdentity> {
    fs::metadata(directory).ok().map(|metadata| FileIdentity::of(&metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::apply::ChangeError;
    use crate::host::desired::{Placement, PlacementOrder, Program, Trial};
    use crate::host::observe::{FileName, Hash};
    use nix::errno::Errno;
    use std::path::PathBuf;

    #[test]
    fn f37_a_program_without_which_no_pod_starts_is_tried_every_ten_seconds_at_least() {
        let (name, source) = (FileName::new("gybe-cni").unwrap(), PathBuf::new());
        let (hash, trial) = (Hash::of(b""), Trial::CniVersion);
        let (place, need) = (Placement::Always, PlacementOrder::BeforeEntry);
        let change = Change::PlaceProgram { program: Program { name, source, hash, trial, place, need } };
        let directory = std::env::temp_dir();
        for (works_without, waits) in
            [(true, [1, 2, 4, 8, 16, 32, 60, 60]), (false, [1, 2, 4, 8, 10, 10, 10, 10])]
        {
            let why = ChangeError::System { step: "write", path: PathBuf::new(), why: Errno::ENOSPC };
            let failed = [FailedChange { change: change.clone(), why, works_without }];
            let mut retries = ProgramRetries::default();
            for seconds in waits {
                let before = Instant::now();
                retries.tried(std::slice::from_ref(&change), &failed, &directory);
                let wait = retries.retries[0].due - before;
                assert_eq!(wait.as_secs(), seconds);
            }
        }
    }
}
