//! Programs that could not be placed: when each is tried again. Every try writes and reads megabytes, so the waits
//! grow.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::apply::FailedChange;
use super::change::Change;
use crate::host::observe::FileIdentity;
use crate::retry::Backoff;

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// While no program works in its place every pod is refused, and no event reports that a disk has room again.
const LONGEST_WAIT_WITHOUT: Duration = Duration::from_secs(10);

/// The programs that could not be placed.
#[derive(Debug, Default)]
pub(super) struct ProgramRetries {
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
    pub(super) fn retain(&mut self, changes: &[Change], directory: &Path) {
        if identity(directory) != self.directory {
            self.retries.clear();
        }
        self.retries.retain(|retry| changes.contains(&retry.failed.change));
    }

    /// Forgets all steps, when the desired state changed.
    pub(super) fn clear(&mut self) {
        self.retries.clear();
    }

    /// Reports whether a step failed the last time.
    pub(super) fn contains(&self, change: &Change) -> bool {
        of(&self.retries, change).is_some()
    }

    /// Reports whether a step is not due yet.
    pub(super) fn delays(&self, change: &Change, now: Instant) -> bool {
        of(&self.retries, change).is_some_and(|retry| retry.due > now)
    }

    /// Returns the steps that failed before and are not due yet.
    pub(super) fn waiting(&self, now: Instant) -> Vec<FailedChange> {
        self.not_due(now).map(|retry| retry.failed.clone()).collect()
    }

    /// Returns how long it is until the first of [`Self::waiting`] is due.
    pub(super) fn next(&self, now: Instant) -> Option<Duration> {
        self.not_due(now).map(|retry| retry.due.saturating_duration_since(now)).min()
    }

    fn not_due(&self, now: Instant) -> impl Iterator<Item = &Retry> {
        self.retries.iter().filter(move |retry| retry.due > now)
    }

    /// Records a pass that tried `changes`, of which these `failed`.
    pub(super) fn tried(&mut self, changes: &[Change], failed: &[FailedChange], directory: &Path) {
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
