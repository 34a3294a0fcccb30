//! The host's mount namespace, entered from a container: a probe needs the host's programs, and stores its report on
//! the host. The thread that enters it never leaves it.

use gybe_netfilter::model::Hint;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{Mode, fstat};
use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::{io, panic, thread};

use super::MissingCapabilities;

/// The node's mount namespace, in a /proc with the host's processes.
pub const HOST_MOUNTS: &str = "/proc/1/ns/mnt";

/// This thread's mount namespace; `/proc/self` is the thread group leader's.
const OWN: &str = "/proc/thread-self/ns/mnt";

/// An open mount namespace that is not the caller's own.
#[derive(Debug)]
pub struct HostMounts {
    fd: OwnedFd,
    path: PathBuf,
}

/// Why it cannot be entered.
#[derive(Debug, thiserror::Error)]
pub enum HostMountsError {
    #[error(transparent)]
    MissingCapabilities(#[from] MissingCapabilities),
    #[error("cannot open the mount namespace {}", .path.display())]
    Open { path: PathBuf, source: Errno },
    #[error("{} is the mount namespace that gybe itself runs in", .path.display())]
    SameAsOurs { path: PathBuf },
    #[error("cannot enter the mount namespace {}", .path.display())]
    Enter { path: PathBuf, source: Errno },
    #[error("cannot start a thread for the host's mount namespace")]
    Thread(#[source] io::Error),
}

impl Hint for HostMountsError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = match self {
            Self::MissingCapabilities(missing) => return missing.hint(),
            Self::Open { source: Errno::EACCES | Errno::EPERM, .. } => {
                "it takes CAP_SYS_PTRACE to open another process's mount namespace, with AppArmor the profile unconfined, and hostUsers must not be false"
            }
            Self::Open { source: Errno::ENOENT, .. } => {
                "mount the host's /proc, and name /host/proc/1/ns/mnt with --mount-namespace; hostPID: true works too, but shows the host's processes to every container of the pod"
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
    /// When it cannot be opened, or is the caller's own: then the caller is on the host already, or sees only a
    /// container's processes, and `path` is its own namespace.
    pub fn open(path: &Path) -> Result<Self, HostMountsError> {
        let failed = |source| HostMountsError::Open { path: path.to_owned(), source };
        let fd = open_file(path).map_err(failed)?;
        let identity = |fd: &OwnedFd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        if identity(&fd).map_err(failed)?
            == identity(&open_file(Path::new(OWN)).map_err(failed)?).map_err(failed)?
        {
            return Err(HostMountsError::SameAsOurs { path: path.to_owned() });
        }
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Runs `work` in it, on a new thread. The threads and programs that `work` starts are in it too.
    ///
    /// # Errors
    /// When it cannot be entered; `work` was not started then.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, HostMountsError> {
        thread::scope(|scope| {
            let spawned = thread::Builder::new().name("on-host".into()).spawn_scoped(scope, || {
                self.enter()?;
                Ok(work())
            });
            spawned
                .map_err(HostMountsError::Thread)?
                .join()
                .unwrap_or_else(|panic| panic::resume_unwind(panic))
        })
    }

    /// Threads share their root and working directory, and the kernel does not move a thread that shares them
    /// (`mntns_install`, fs/namespace.c, v6.18: EINVAL when `fs->users != 1`). So this thread unshares them first.
    fn enter(&self) -> Result<(), HostMountsError> {
        let failed = |source| HostMountsError::Enter { path: self.path.clone(), source };
        unshare(CloneFlags::CLONE_FS).map_err(failed)?;
        setns(&self.fd, CloneFlags::CLONE_NEWNS).map_err(failed)
    }
}

/// Without `O_NONBLOCK` the opening of a FIFO waits for a writer that never comes.
fn open_file(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    open(path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_namespace_and_other_files_are_refused_with_a_hint() {
        let own = HostMounts::open(Path::new(OWN)).unwrap_err();
        assert!(matches!(own, HostMountsError::SameAsOurs { .. }), "{own}");
        assert!(own.hint().unwrap().contains("mount the host's /proc"));
        let missing = HostMounts::open(Path::new("/proc/1/ns/mount")).unwrap_err();
        assert_eq!(missing.to_string(), "cannot open the mount namespace /proc/1/ns/mount");
        let other = HostMounts::open(Path::new("/dev/null")).unwrap().run(|| ()).unwrap_err();
        assert!(matches!(other, HostMountsError::Enter { source: Errno::EINVAL, .. }), "{other:?}");
        assert!(other.hint().unwrap().contains("/proc/1/ns/mnt"));
    }
}
