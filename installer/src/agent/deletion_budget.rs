//! How many pods the agent has deleted and labelled, for its metrics; and how many it may still delete. The deletions of
//! the last minute are counted in a file in `/run/gybe`, so that a restart of the agent or of its container does not renew
//! the budget.

use crate::cluster::PodChange;
use crate::retry::since_boot;
use gybe_plugin::probe_cache::{DELETIONS, read_own_file, replace_file, this_node};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::Path;

/// How many deletions are requested in `INTERVAL` at most.
const MAX_DELETIONS: usize = 10;
/// In milliseconds.
const INTERVAL: u64 = 60_000;

/// The deletions of the last minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Deletions {
    boot_id: String,
    /// When they were requested, in milliseconds since the boot.
    requested: Vec<u64>,
}

/// Reports why no deletion may be requested now. Replaces a damaged file.
///
/// # Errors
/// When the budget is spent, or it is not known how much is left.
pub(super) fn check(directory: &Path) -> Result<(), String> {
    Deletions::read(directory)?.with_room().map(drop)
}

/// Counts a deletion that is about to be requested; returns its time.
///
/// # Errors
/// As [`check`]; also when it cannot be counted. Then it must not be requested.
pub(super) fn spend(directory: &Path) -> Result<u64, String> {
    let mut deletions = Deletions::read(directory)?.with_room()?;
    let at = now();
    deletions.requested.push(at);
    deletions.keep_in(directory)?;
    Ok(at)
}

/// Counts a deletion no longer that was counted at this time, and was not requested or was refused.
///
/// # Errors
/// When it stays counted.
pub(super) fn give_back(directory: &Path, at: u64) -> Result<(), String> {
    let mut deletions = Deletions::read(directory)?;
    if let Some(index) = deletions.requested.iter().position(|requested| *requested == at) {
        deletions.requested.remove(index);
    }
    deletions.keep_in(directory)
}

impl Deletions {
    /// Returns those that still count. Those of an earlier boot were requested before this one. None if the file cannot
    /// be understood, or has a time in the future.
    fn recent(kept: &[u8], boot_id: &str, now: u64) -> Option<Self> {
        let kept: Self = serde_json::from_slice(kept).ok()?;
        let is_of_boot = kept.boot_id == boot_id;
        let ages = kept.requested.iter().map(|at| now.checked_sub(if is_of_boot { *at } else { 0 }));
        let ages: Vec<u64> = ages.collect::<Option<_>>()?;
        let requested = ages.into_iter().filter(|age| *age < INTERVAL).map(|age| now - age).collect();
        Some(Self { boot_id: boot_id.to_owned(), requested })
    }

    /// Returns the deletions that count. A damaged file counts as a budget that is spent, and is replaced by that: the
    /// budget is renewed after a minute.
    fn read(directory: &Path) -> Result<Self, String> {
        let path = directory.join(DELETIONS);
        let boot_id = this_node().map_err(|why| format!("the boot id cannot be read: {why}"))?.boot;
        let none = Self { boot_id, requested: Vec::new() };
        if path.symlink_metadata().is_err_and(|why| why.kind() == ErrorKind::NotFound) {
            return Ok(none);
        }
        let kept = read_own_file(&path).and_then(|(kept, _)| Self::recent(&kept, &none.boot_id, now()));
        match kept {
            Some(kept) => Ok(kept),
            None => {
                Self { requested: vec![now(); MAX_DELETIONS], ..none }.keep_in(directory)?;
                Err(format!("{} was damaged, so it is not known how many pods were deleted", path.display()))
            }
        }
    }

    /// Returns them if there may be more.
    fn with_room(self) -> Result<Self, String> {
        if self.requested.len() < MAX_DELETIONS {
            return Ok(self);
        }
        Err(format!("{MAX_DELETIONS} deletions were requested within the last minute"))
    }

    fn keep_in(&self, directory: &Path) -> Result<(), String> {
        let written = serde_json::to_string(self).map_err(std::io::Error::from);
        let written = written.and_then(|text| replace_file(directory, DELETIONS, &text));
        written.map_err(|why| format!("deletions cannot be counted in {}: {why}", directory.display()))
    }
}

fn now() -> u64 {
    u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX)
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BrokenPodCounts {
    pub(crate) deleted: ResultCounts,
    pub(crate) labelled: ResultCounts,
}

/// The results that istio-cni's metrics distinguish.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ResultCounts {
    pub(crate) success: u64,
    /// The pod was left alone.
    pub(crate) skip: u64,
    pub(crate) fail: u64,
}

impl BrokenPodCounts {
    pub(super) fn of(&mut self, change: &PodChange<'_>) -> &mut ResultCounts {
        match change {
            PodChange::Delete => &mut self.deleted,
            PodChange::Label(_) => &mut self.labelled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;
    use std::fs;

    #[test]
    fn deletions_count_for_a_minute_and_those_of_an_earlier_boot_as_requested_at_the_boot() {
        let kept = |requested: &[u64]| {
            serde_json::to_vec(&Deletions { boot_id: "a".to_owned(), requested: requested.to_vec() }).unwrap()
        };
        for (requested, boot, now, counted) in [
            (&[][..], "a", 0, Some(vec![])),
            (&[100, 60_099, 60_100], "a", 60_100, Some(vec![60_099, 60_100])),
            (&[100, 60_101], "a", 60_100, None),
            (&[900_000; 2], "b", 59_999, Some(vec![0, 0])),
            (&[900_000; 2], "b", 60_000, Some(vec![])),
        ] {
            let found = Deletions::recent(&kept(requested), boot, now).map(|found| found.requested);
            assert_eq!(found, counted, "{requested:?} {boot} {now}");
        }
        assert_eq!(Deletions::recent(b"{", "a", 7), None);
    }

    #[test]
    fn ten_deletions_a_minute_are_allowed_and_a_damaged_file_or_one_that_cannot_be_written_allows_none() {
        let directory = TestDir::new("deletions");
        for n in 0..MAX_DELETIONS {
            assert!(check(&directory).is_ok() && spend(&directory).is_ok(), "{n}");
        }
        let spent = Err("10 deletions were requested within the last minute".to_owned());
        let request = |directory: &Path| spend(directory).map(drop);
        assert_eq!((check(&directory), request(&directory)), (spent.clone(), spent.clone()));
        for damaged in ["", "{", r#"{"boot_id":"x"}"#, r#"{"boot_id":"x","requested":[-1]}"#] {
            fs::write(directory.join(DELETIONS), damaged).unwrap();
            assert!(check(&directory).unwrap_err().contains("was damaged"), "{damaged}");
            assert_eq!(check(&directory), spent, "{damaged}: the next one finds a budget that is spent");
        }
        fs::remove_file(directory.join(DELETIONS)).unwrap();
        assert_eq!(request(&directory), Ok(()));
        for _ in 0..2 * MAX_DELETIONS {
            let at = spend(&directory).unwrap();
            assert_eq!(give_back(&directory, at), Ok(()), "a refused deletion does not count");
        }
        let missing = directory.join("missing");
        assert!(check(&missing).is_ok() && request(&missing).unwrap_err().contains("cannot be counted"));
    }
}
