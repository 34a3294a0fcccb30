//! Applies changes: the only code that writes to a node's conf and program directories. Each change is made
//! whole or not at all, and is on disk before the next.
//!
//! A file is written under a temporary name in the same directory, synced, and renamed; then the directory is
//! synced. So a crash at any moment leaves the old file or the new one, never a part (F07). Nothing is decided
//! here.

mod conf;
mod directory;
mod programs;

use crate::error::{RUN_AS_ROOT, chain};
use gybe_netfilter::model::Hint;
use nix::errno::Errno;
use nix::unistd::geteuid;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::PathBuf;

pub use directory::{Busy, NodeLock};
pub use programs::{TrialError, try_installed};

use super::change::Change;
use super::desired::PlacementOrder;
use super::observe::{Directory, FileName, Hash, LOCK, NodeDirectories};
use directory::OpenDirectory;

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

/// Returns the changes that need not wait. A change that waits stops those after it, as a failed one does,
/// unless a working program serves in its place.
pub fn due(
    changes: &[Change],
    waits: impl Fn(&Change) -> bool,
    directories: &NodeDirectories,
) -> Vec<Change> {
    if changes.iter().all(&waits) {
        return Vec::new();
    }
    let until_stopped =
        changes.iter().take_while(|change| !waits(change) || works_without(change, directories));
    until_stopped.filter(|change| !waits(change)).cloned().collect()
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
fn works_without(change: &Change, directories: &NodeDirectories) -> bool {
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

/// Why a change failed. The previous file is kept.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChangeError {
    #[error("cannot {step} {}", .path.display())]
    System {
        step: &'static str,
        path: PathBuf,
        #[source]
        why: Errno,
    },
    /// Another program wrote the file at the same time. Nothing is lost: the next observation includes its
    /// write.
    #[error("another program changed {} at the same time", .path.display())]
    Overtaken { path: PathBuf },
    /// The copy is incomplete or damaged (F10).
    #[error("the copy of {} is damaged: its SHA-256 is {found} instead of {desired}", .source_path.display())]
    Damaged { source_path: PathBuf, desired: Hash, found: Hash },
    /// The program does not run on this node: another architecture, a noexec mount, ….
    #[error("{} does not run on this node", .source_path.display())]
    Trial {
        source_path: PathBuf,
        #[source]
        why: TrialError,
    },
}

impl Hint for ChangeError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::System { why, .. } => of_errno(*why).map(Cow::Borrowed),
            Self::Overtaken { .. } => None,
            Self::Damaged { .. } => {
                Some("look for a failing disk or a broken image; the old program is kept".into())
            }
            Self::Trial { why, .. } => why.hint(),
        }
    }
}

fn of_errno(why: Errno) -> Option<&'static str> {
    Some(match why {
        Errno::EACCES | Errno::EPERM if !geteuid().is_root() => RUN_AS_ROOT,
        Errno::EROFS => {
            "the directory is mounted read-only; use this platform's overlay of the DaemonSet, which mounts other \
             directories as cni-bin and cni-conf, or --bin-dir and --conf-dir (GKE: /home/kubernetes/bin; k3s and \
             MicroK8s have their own)"
        }
        Errno::ENOSPC => "free space or inodes on the file system (df, df -i); the old file is kept",
        Errno::EDQUOT => "raise the disk quota, or free space; the old file is kept",
        Errno::EPERM => {
            "look for the attribute i or a (lsattr -d on the directory, lsattr on the file) and remove it (chattr -i -a); \
             if the directory belongs to another user, chown it to root, or add manifests/components/foreign-owner"
        }
        Errno::EACCES => {
            "if the directory belongs to another user (ls -ld), chown it to root, or add \
             manifests/components/foreign-owner; with SELinux the agent needs seLinuxOptions.type spc_t, with \
             AppArmor the profile unconfined"
        }
        Errno::ENOENT => "the directory is gone; the agent waits until it exists",
        Errno::ENAMETOOLONG => "the file's name is too long for another suffix; rename it",
        Errno::EISDIR => "a directory has this name; find out what it is, and remove it",
        Errno::EIO => "check the disk: the kernel reports an I/O error",
        Errno::ETXTBSY => "another process writes to the program; the agent tries again",
        _ => return None,
    })
}
