//! Work in the host's mount namespace, from a container that has another: the host's programs are
//! found there, and what is kept there is the host's. The thread that goes in never comes back.

mod capabilities;

use gybe_netfilter::hint::Hint;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{Mode, fstat};
use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::{io, panic, thread};

pub use capabilities::{Lacking, NEEDED, lacking};

/// Where the node's own mount namespace is found by whoever sees the host's processes.
pub const OF_PROCESS_1: &str = "/proc/1/ns/mnt";

/// This thread's. Not `/proc/self`: that is the thread group leader's.
const OWN: &str = "/proc/thread-self/ns/mnt";

/// An open mount namespace that is not the caller's own.
#[derive(Debug)]
pub struct HostMounts {
    fd: OwnedFd,
    path: PathBuf,
}

/// Why there is no way into it.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// What the errand needs is not given, and half of it would find out wrong things.
    #[error(transparent)]
    Lacking(#[from] Lacking),
    /// It cannot be opened.
    #[error("cannot open the mount namespace {}", .path.display())]
    Open {
        /// As given.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// There is nothing to enter.
    #[error("{} is the mount namespace that gybe itself runs in", .path.display())]
    SameAsOurs {
        /// As given.
        path: PathBuf,
    },
    /// It cannot be entered.
    #[error("cannot enter the mount namespace {}", .path.display())]
    Enter {
        /// As given.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// No thread to enter it with.
    #[error("cannot start a thread for the host's mount namespace")]
    Thread(#[source] io::Error),
}

impl Hint for HostError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = match self {
            Self::Lacking(lacking) => return lacking.hint(),
            Self::Open { source: Errno::EACCES | Errno::EPERM, .. } => {
                "it takes CAP_SYS_PTRACE to open another process's mount namespace, with AppArmor the profile unconfined, and hostUsers must not be false"
            }
            Self::Open { source: Errno::ENOENT, .. } => {
                "mount the host's /proc, and name /host/proc/1/ns/mnt with --mount-namespace; hostPID: true would do, but gives every container of the pod the host's processes"
            }
            Self::SameAsOurs { .. } => {
                "in a pod mount the host's /proc and name /host/proc/1/ns/mnt with --mount-namespace; on the node itself there is nothing to enter: leave --host out"
            }
            Self::Enter { source: Errno::EPERM, .. } => {
                "it takes CAP_SYS_ADMIN and CAP_SYS_CHROOT, and the host's user namespace (hostUsers must not be false)"
            }
            Self::Enter { source: Errno::EINVAL, .. } => "name a mount namespace, like /proc/1/ns/mnt",
            _ => return None,
        };
        Some(hint.into())
    }
}

impl HostMounts {
    /// Opens the mount namespace at `path`.
    ///
    /// # Errors
    /// When it cannot be opened, or is the caller's own: then the caller is on the host already, or
    /// sees a container's processes only, and what it takes for the host's is its own.
    pub fn open(path: &Path) -> Result<Self, HostError> {
        let failed = |source| HostError::Open { path: path.to_owned(), source };
        let fd = opened(path).map_err(failed)?;
        let identity = |fd: &OwnedFd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        if identity(&fd).map_err(failed)?
            == identity(&opened(Path::new(OWN)).map_err(failed)?).map_err(failed)?
        {
            return Err(HostError::SameAsOurs { path: path.to_owned() });
        }
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Does `work` in it. Threads that `work` starts are in it too, and so are programs.
    ///
    /// # Errors
    /// When it cannot be entered; `work` was not begun then.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, HostError> {
        thread::scope(|scope| {
            let errand = thread::Builder::new().name("on-host".into()).spawn_scoped(scope, || {
                self.enter()?;
                Ok(work())
            });
            errand.map_err(HostError::Thread)?.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        })
    }

    /// Threads share their root and working directory, and the kernel moves nobody who shares them
    /// (`mntns_install`, fs/namespace.c, v6.18: EINVAL when `fs->users != 1`). So this thread takes
    /// leave of the others first.
    fn enter(&self) -> Result<(), HostError> {
        let failed = |source| HostError::Enter { path: self.path.clone(), source };
        unshare(CloneFlags::CLONE_FS).map_err(failed)?;
        setns(&self.fd, CloneFlags::CLONE_NEWNS).map_err(failed)
    }
}

/// Without `O_NONBLOCK` the opening of a FIFO waits for a writer that never comes.
fn opened(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    open(path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ones_own_namespace_and_what_is_none_are_refused_with_what_to_do() {
        let own = HostMounts::open(Path::new(OWN)).unwrap_err();
        assert!(matches!(own, HostError::SameAsOurs { .. }), "{own}");
        assert!(own.hint().unwrap().contains("mount the host's /proc"));
        let missing = HostMounts::open(Path::new("/proc/1/ns/mount")).unwrap_err();
        assert_eq!(missing.to_string(), "cannot open the mount namespace /proc/1/ns/mount");
        let other = HostMounts::open(Path::new("/dev/null")).unwrap().run(|| ()).unwrap_err();
        assert!(matches!(other, HostError::Enter { source: Errno::EINVAL, .. }), "{other:?}");
        assert!(other.hint().unwrap().contains("/proc/1/ns/mnt"));
    }
}
