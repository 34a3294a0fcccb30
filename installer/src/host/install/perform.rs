//! The one place that changes a node: each step whole or not at all, and on disk before the next.
//!
//! A file is written beside its place, synced, and renamed into it; then its directory is synced. So
//! a crash at any moment leaves what was or what will be, never a part (F07). Nothing here decides.

mod attributes;
mod conf;
mod error;
mod file;
mod lock;
mod programs;
mod trial;

use std::ffi::OsStr;

pub use error::PerformError;
pub use lock::{Busy, Turn};
pub use trial::{TrialError, run as try_program};

use super::change::Change;
use super::directory::Directory;
use super::seen::{FileName, LOCK, Places};
use super::wanted::Need;
use file::Folder;

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Performed {
    /// Steps taken.
    pub done: usize,
    /// What failed; all but the last stopped nothing.
    pub failed: Vec<Failed>,
}

/// A step that failed, and why.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The step.
    pub change: Change,
    /// Why.
    pub why: PerformError,
    /// Whether the chain works without it: no pod depends on it, or what stands in the program's place works.
    pub works_without: bool,
}

impl Failed {
    /// Whether somebody else was faster, and nothing was refused.
    #[must_use]
    pub fn is_overtaken(&self) -> bool {
        matches!(self.why, PerformError::Overtaken { .. })
    }

    /// The program that could not be replaced, and answers.
    #[must_use]
    pub fn answering(&self) -> Option<&FileName> {
        match &self.change {
            Change::Place { program } if self.works_without => Some(&program.name),
            _ => None,
        }
    }
}

/// Takes the steps in their order, up to the first that fails. Only a program that could not replace
/// one that works stops nothing: the chain matters more than the newest version, and a chain that
/// names a program which does not run refuses every pod.
#[must_use]
pub fn perform(changes: &[Change], places: &Places) -> Performed {
    let mut performed = Performed::default();
    for change in changes {
        match step(change, places) {
            Ok(()) => performed.done += 1,
            Err(why) => {
                let works_without = works_without(change, places);
                performed.failed.push(Failed { change: change.clone(), why, works_without });
                if !works_without {
                    break;
                }
            }
        }
    }
    performed
}

/// Whether the chain works without this step: no pod depends on the program, or what stands in its place,
/// of whatever version, runs here. A program that no pod depends on is not run: it may be anybody's.
pub(super) fn works_without(change: &Change, places: &Places) -> bool {
    let Change::Place { program } = change else { return false };
    let stands = || try_program(&places.programs.join(program.name.as_os_str()), program.trial).is_ok();
    program.need == Need::AfterEntry || stands()
}

fn step(change: &Change, places: &Places) -> Result<(), PerformError> {
    let conf = || Folder::open(&places.conf);
    match change {
        Change::Place { program } => programs::place(&Folder::open(&places.programs)?, program),
        Change::Unplace(name) => Folder::open(&places.programs)?.unlink(name.as_os_str()),
        Change::Write { file, bytes, access, instead_of } => {
            conf::write(&conf()?, file, (bytes, access), instead_of.as_deref())
        }
        Change::Move { from, to, bytes } => conf::move_to(&conf()?, from, to, bytes),
        Change::Remove { file, bytes } => conf::remove(&conf()?, file, bytes),
        Change::DropIn { network, bytes, mode } => conf::drop_in(&conf()?, network, bytes, *mode),
        Change::TakeOut { network } => conf::take_out(&conf()?, network),
        Change::Sweep(Directory::Conf) => conf()?.sweep(),
        Change::RemoveLock => Folder::open(&places.programs)?.unlink(OsStr::new(LOCK)),
        Change::Sweep(Directory::Programs) => Folder::open(&places.programs)?.sweep(),
    }
}
