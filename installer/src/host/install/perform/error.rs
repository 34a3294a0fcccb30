//! Why a step failed, and what an operator can do about it.

use std::path::PathBuf;

use nix::errno::Errno;

use super::trial::TrialError;
use crate::host::install::seen::Hash;

/// A step failed; what was there is there still.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PerformError {
    /// The kernel said no.
    #[error("cannot {step} {}", .path.display())]
    System {
        /// What was tried.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// Its reason.
        #[source]
        why: Errno,
    },
    /// Nothing is lost: the next look sees what they wrote.
    #[error("somebody else changed {} at the same moment", .path.display())]
    Overtaken {
        /// What.
        path: PathBuf,
    },
    /// Cut off, or damaged on the way (F10).
    #[error("the copy of {} is damaged: its SHA-256 is {found}, and should be {wanted}", .source_path.display())]
    Damaged {
        /// What was copied.
        source_path: PathBuf,
        /// What it should be.
        wanted: Hash,
        /// What was read back.
        found: Hash,
    },
    /// Another architecture, a mount that runs nothing, ….
    #[error("{} does not run on this node", .source_path.display())]
    Trial {
        /// What was copied.
        source_path: PathBuf,
        /// What it did.
        #[source]
        why: TrialError,
    },
}

impl PerformError {
    /// What helps.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::System { why, .. } => of_errno(*why),
            Self::Overtaken { .. } => None,
            Self::Damaged { .. } => {
                Some("look for a failing disk or a broken image; the program that was there is kept")
            }
            Self::Trial { why, .. } => why.hint(),
        }
    }
}

fn of_errno(why: Errno) -> Option<&'static str> {
    Some(match why {
        Errno::EROFS => {
            "the directory is mounted read-only; use this platform's overlay of the DaemonSet, which mounts \
             others as cni-bin and cni-conf, or --bin-dir and --conf-dir (GKE: /home/kubernetes/bin, k3s and \
             microk8s: their own)"
        }
        Errno::ENOSPC => "the file system is full, or has no inodes left (df, df -i); what was there is kept",
        Errno::EDQUOT => "a disk quota is used up; what was there is kept",
        Errno::EACCES | Errno::EPERM => {
            "a directory that belongs to another user (ls -ld) has to be given to root, or the agent needs \
             manifests/components/foreign-owner; with SELinux it needs seLinuxOptions.type spc_t, with \
             AppArmor the profile unconfined"
        }
        Errno::ENOENT => "the directory is gone; it is waited for",
        Errno::ENAMETOOLONG => "the file's name leaves no room for an ending; rename it",
        Errno::EISDIR => "a directory has the name; see what it is, and remove it",
        Errno::EIO => "the disk fails",
        Errno::ETXTBSY => "somebody writes to the program; it is tried again",
        _ => return None,
    })
}
