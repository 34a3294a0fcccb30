//! Applies changes: the only code that writes to a node's conf and program directories. Each change is made
//! whole or not at all, and is on disk before the next.
//!
//! A file is written under a temporary name in the same directory, synced, and renamed; then the directory is
//! synced. So a crash at any moment leaves the old file or the new one, never a part (F07). Nothing is decided
//! here.

mod conf;
mod error;
mod lock;
mod open_directory;
mod programs;

use crate::error::chain;
use gybe_netfilter::model::Hint;
use std::ffi::OsStr;

pub use error::ChangeError;
pub use lock::{Busy, NodeLock};
pub use programs::{TrialError, try_installed};

use super::change::Change;
use super::desired::PlacementOrder;
use super::observe::{Directory, FileName, LOCK, NodeDirectories};
use open_directory::OpenDirectory;

/// The result of applying a plan.
#[derive(Debug, Default)]
pub struct AppliedChanges {
    /// The number of changes made.
    pub done: usize,
    /// The changes that failed. If the last one stopped the others, those after it were not attempted.
    pub failed: Vec<FailedChange>,
}

/// A change that failed.
#[derive(Debug, Clone)]
pub struct FailedChange {
    pub change: Change,
    pub why: ChangeError,
    /// Whether the chain works without it: no pod depends on it, or the program in its place works.
    pub works_without: bool,
}

impl FailedChange {
    /// Reports whether another program changed the file since the plan was made. The system refused nothing.
    #[must_use]
    pub fn is_overtaken(&self) -> bool {
        matches!(self.why, ChangeError::Overtaken { .. })
    }

    /// Returns the error, with what to do about it.
    #[must_use]
    pub fn with_hint(&self) -> String {
        match self.why.hint() {
            Some(hint) => format!("{}; {hint}", chain(&self.why)),
            None => chain(&self.why),
        }
    }

    /// Returns the program that could not be replaced, if its existing version works.
    #[must_use]
    pub fn answering(&self) -> Option<&FileName> {
        match &self.change {
            Change::PlaceProgram { program } if self.works_without => Some(&program.name),
            _ => None,
        }
    }
}

/// Makes the changes in their order, up to the first that fails. A program that could not replace a working one
/// stops nothing: the chain matters more than the newest version, and a chain that names a program which does
/// not run refuses every pod.
#[must_use]
pub fn apply(changes: &[Change], directories: &NodeDirectories) -> AppliedChanges {
    let mut applied = AppliedChanges::default();
    for change in changes {
        match step(change, directories) {
            Ok(()) => applied.done += 1,
            Err(why) => {
                let works_without = works_without(change, directories);
                applied.failed.push(FailedChange { change: change.clone(), why, works_without });
                if !works_without {
                    break;
                }
            }
        }
    }
    applied
}

/// Reports whether the chain works without this change: no pod depends on the program, or the program in its
/// place, of whatever version, runs here. A program that no pod depends on is not run, because it may be
/// another owner's.
pub(super) fn works_without(change: &Change, directories: &NodeDirectories) -> bool {
    let Change::PlaceProgram { program } = change else { return false };
    let runs = || try_installed(&directories.programs.join(program.name.as_os_str()), program.trial).is_ok();
    program.need == PlacementOrder::AfterEntry || runs()
}

fn step(change: &Change, directories: &NodeDirectories) -> Result<(), ChangeError> {
    let conf = || OpenDirectory::open(&directories.conf);
    match change {
        Change::PlaceProgram { program } => {
            programs::place(&OpenDirectory::open(&directories.programs)?, program)
        }
        Change::RemoveProgram(name) => OpenDirectory::open(&directories.programs)?.unlink(name.as_os_str()),
        Change::Write { file, bytes, access, instead_of } => {
            conf::write(&conf()?, file, bytes, access, instead_of.as_deref())
        }
        Change::Move { from, to, bytes } => conf::move_to(&conf()?, from, to, bytes),
        Change::Remove { file, bytes } => conf::remove(&conf()?, file, bytes),
        Change::WriteDropIn { network, bytes, mode } => conf::write_drop_in(&conf()?, network, bytes, *mode),
        Change::RemoveDropIn { network } => conf::remove_drop_in(&conf()?, network),
        Change::Sweep(Directory::Conf) => conf()?.sweep(),
        Change::RemoveLock => OpenDirectory::open(&directories.programs)?.unlink(OsStr::new(LOCK)),
        Change::Sweep(Directory::Programs) => OpenDirectory::open(&directories.programs)?.sweep(),
    }
}
