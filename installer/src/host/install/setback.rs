//! Programs that could not be placed: each is tried again, but ever more seldom, since every try writes
//! and reads megabytes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::change::Change;
use super::perform::Failed;
use crate::host::identity::Identity;

/// After the first failure; after each further one twice as long.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Where nothing works in its place every pod is refused, and nothing tells that a disk has room again.
const LONGEST_WITHOUT: Duration = Duration::from_secs(10);

/// All that hold.
#[derive(Debug, Default)]
pub(super) struct Setbacks {
    all: Vec<Setback>,
    directory: Option<Identity>,
}

/// A program that could not be placed, and when it may be tried again.
#[derive(Debug, Clone)]
struct Setback {
    failed: Failed,
    wait: Duration,
    since: Instant,
}

impl Setbacks {
    /// Those of steps that are still planned. A directory that is another, or that somebody else has
    /// changed since, may take what it refused.
    pub(super) fn judge(&mut self, changes: &[Change], directory: &Path) {
        if identity(directory) != self.directory {
            self.all.clear();
        }
        self.all.retain(|setback| changes.contains(&setback.failed.change));
    }

    /// Something else is wanted from now on.
    pub(super) fn forget(&mut self) {
        self.all.clear();
    }

    /// Whether a step failed the last time.
    pub(super) fn hold(&self, change: &Change) -> bool {
        of(&self.all, change).is_some()
    }

    /// Whether a step is not due yet.
    pub(super) fn delays(&self, change: &Change, now: Instant) -> bool {
        of(&self.all, change).is_some_and(|setback| !setback.left(now).is_zero())
    }

    /// What failed before and is not due yet, and how long it is until the first of them is.
    pub(super) fn waiting(&self, now: Instant) -> (Vec<Failed>, Option<Duration>) {
        let waiting = || self.all.iter().filter(|setback| !setback.left(now).is_zero());
        let failed = waiting().map(|setback| setback.failed.clone()).collect();
        (failed, waiting().map(|setback| setback.left(now)).min())
    }

    /// What became of the steps that were tried.
    pub(super) fn tried(&mut self, changes: &[Change], failed: &[Failed], directory: &Path) {
        let (before, now) = (std::mem::take(&mut self.all), Instant::now());
        let wait = |failed: &Failed| {
            let before = of(&before, &failed.change);
            let longest = if failed.works_without { LONGEST } else { LONGEST_WITHOUT };
            before.map_or(FIRST, |setback| (setback.wait * 2).min(longest))
        };
        let places = failed.iter().filter(|failed| matches!(failed.change, Change::Place { .. }));
        let again = places.map(|failed| Setback { failed: failed.clone(), wait: wait(failed), since: now });
        self.all = again.collect();
        self.all.extend(before.into_iter().filter(|setback| !changes.contains(&setback.failed.change)));
        // As our own tries have left it.
        self.directory = identity(directory);
    }
}

impl Setback {
    fn left(&self, now: Instant) -> Duration {
        self.wait.saturating_sub(now.saturating_duration_since(self.since))
    }
}

fn of<'a>(all: &'a [Setback], change: &Change) -> Option<&'a Setback> {
    all.iter().find(|setback| setback.failed.change == *change)
}

fn identity(directory: &Path) -> Option<Identity> {
    fs::metadata(directory).ok().map(|there| Identity::of(&there))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::install::perform::PerformError;
    use crate::host::install::seen::{FileName, Hash};
    use crate::host::install::wanted::{Need, Place, Program, Trial};
    use nix::errno::Errno;
    use std::path::PathBuf;

    #[test]
    fn f37_a_program_without_which_no_pod_starts_is_tried_every_ten_seconds_at_least() {
        let (name, source) = (FileName::new("gybe-cni").unwrap(), PathBuf::new());
        let (hash, trial) = (Hash::of(b""), Trial::CniVersion);
        let (place, need) = (Place::Always, Need::BeforeEntry);
        let change = Change::Place { program: Program { name, source, hash, trial, place, need } };
        let directory = std::env::temp_dir();
        for (works_without, waits) in
            [(true, [1, 2, 4, 8, 16, 32, 60, 60]), (false, [1, 2, 4, 8, 10, 10, 10, 10])]
        {
            let why = PerformError::System { step: "write", path: PathBuf::new(), why: Errno::ENOSPC };
            let failed = [Failed { change: change.clone(), why, works_without }];
            let mut setbacks = Setbacks::default();
            for seconds in waits {
                setbacks.tried(std::slice::from_ref(&change), &failed, &directory);
                assert_eq!(setbacks.all[0].wait.as_secs(), seconds);
            }
        }
    }
}
