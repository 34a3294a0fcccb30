//! Why a change failed, and what an operator can do about it.

use crate::error::RUN_AS_ROOT;
use gybe_netfilter::model::Hint;
use std::borrow::Cow;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::unistd::geteuid;

use super::programs::TrialError;
use crate::host::observe::Hash;

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
