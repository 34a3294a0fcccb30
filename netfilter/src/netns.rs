//! A network namespace: opened and checked to be one, and work done in it without ever coming back.

mod create;
mod kind;

use crate::hint::Hint;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, stat};
use std::borrow::Cow;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{io, panic, thread};

pub use crate::routes::{Address, addresses};
pub use create::{CreateError, UNPRIVILEGED};

/// This thread's namespace. Not `/proc/self`: that is the thread group leader's.
const OWN: &str = "/proc/thread-self/ns/net";

/// An open network namespace; it lives at least as long as this value.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
    identity: Identity,
}

/// Which namespace: its device and inode, whatever its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// Of whatever is at `path`. It need be no namespace; then it is the same as none.
    ///
    /// # Errors
    /// When nothing is there, or it cannot be looked at.
    pub fn at(path: &Path) -> Result<Self, NetnsError> {
        stat(path).map(|found| Self::of(&found)).map_err(|source| NetnsError::unopened(path, source))
    }

    /// Of the namespace that the process's first thread is in.
    ///
    /// Not of `thread-self`, which the kernel takes half as long again to look up: for a program of one
    /// thread.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn of_the_first_thread() -> Result<Self, NetnsError> {
        Self::at(Path::new("/proc/self/ns/net"))
    }

    fn of(found: &FileStat) -> Self {
        Self { device: found.st_dev, inode: found.st_ino }
    }
}

/// Why a network namespace cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// Nothing at that path.
    #[error("network namespace {path:?} does not exist")]
    Missing {
        /// The path as given.
        path: PathBuf,
    },
    /// It cannot be opened.
    #[error("cannot open network namespace {path:?}")]
    Open {
        /// The path as given.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// It is something else.
    #[error("{path:?} is not a network namespace but {what}")]
    NotANamespace {
        /// The path as given.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It is a namespace of another type.
    #[error("{path:?} is a {kind} namespace, not a network namespace")]
    OtherNamespace {
        /// The path as given.
        path: PathBuf,
        /// Its type: `mnt`, `pid`, ...
        kind: &'static str,
    },
    /// The kernel would not tell about what was opened.
    #[error("cannot tell whether {path:?} is a network namespace")]
    Inspect {
        /// The path as given.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// The thread that was to go in could not be started.
    #[error("cannot start a thread for the network namespace")]
    Thread {
        /// Why.
        source: io::Error,
    },
    /// The namespace could not be entered.
    #[error("cannot enter the network namespace")]
    Enter {
        /// Why.
        source: Errno,
    },
}

impl NetnsError {
    fn unopened(path: &Path, source: Errno) -> Self {
        let path = path.to_path_buf();
        match source {
            Errno::ENOENT | Errno::ENOTDIR => Self::Missing { path },
            Errno::ENXIO => Self::NotANamespace { path, what: "a socket or a device" },
            source => Self::Open { path, source },
        }
    }
}

impl Hint for NetnsError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Enter { source: Errno::EPERM } => {
                Some("it takes CAP_SYS_ADMIN here and in the user namespace that owns it".into())
            }
            Self::Open { source: Errno::EACCES | Errno::EPERM, .. } => Some(
                "run as root; of another user's process, /proc/PID/ns is readable with CAP_SYS_PTRACE alone"
                    .into(),
            ),
            Self::NotANamespace { what: EMPTY_FILE, .. } => {
                Some("a file like this is left over where a namespace was mounted before a reboot".into())
            }
            _ => None,
        }
    }
}

const EMPTY_FILE: &str = "an empty file";

impl Netns {
    /// Opens the namespace at `path`, which is followed as given: runtimes hand out links.
    ///
    /// # Errors
    /// When nothing is there, it cannot be opened, or it is anything but a network namespace.
    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        // Without O_NONBLOCK the opening of a FIFO waits for a writer that never comes (A10).
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
        let path_buf = || path.to_path_buf();
        let fd = open(path, flags, Mode::empty()).map_err(|source| NetnsError::unopened(path, source))?;
        let inspect = |source| NetnsError::Inspect { path: path_buf(), source };
        let stat = fstat(&fd).map_err(inspect)?;
        if !kind::is_namespace(fd.as_fd()).map_err(inspect)? {
            return Err(NetnsError::NotANamespace { path: path_buf(), what: nature(&stat) });
        }
        match kind::namespace_type(fd.as_fd()).map_err(inspect)? {
            CloneFlags::CLONE_NEWNET => Ok(Self { fd, identity: Identity::of(&stat) }),
            other => Err(NetnsError::OtherNamespace { path: path_buf(), kind: kind::name(other) }),
        }
    }

    /// The namespace the calling thread is in.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn of_this_thread() -> Result<Self, NetnsError> {
        Self::open(Path::new(OWN))
    }

    /// Which it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Are these the same namespace?
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Runs `work` in the namespace.
    ///
    /// `setns(2)` moves a thread, not a process. So a thread is made for this one errand and ends
    /// there: nobody moves back, and nothing can go wrong on the way back.
    ///
    /// # Errors
    /// When the namespace cannot be entered; `work` was not begun then.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        thread::scope(|scope| {
            let errand = thread::Builder::new().name("in-netns".into()).spawn_scoped(scope, || {
                self.enter()?;
                Ok(work())
            });
            let errand = errand.map_err(|source| NetnsError::Thread { source })?;
            errand.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into the namespace, for the rest of its life.
    ///
    /// For a program with one errand: a thread made for it ([`Netns::run`]) has a stack, an
    /// allocator's arena and two changes of processor that cost as much as the errand.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn enter(&self) -> Result<(), NetnsError> {
        setns(&self.fd, CloneFlags::CLONE_NEWNET).map_err(|source| NetnsError::Enter { source })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn nature(stat: &FileStat) -> &'static str {
    match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFIFO => "a pipe",
        SFlag::S_IFCHR | SFlag::S_IFBLK => "a device",
        SFlag::S_IFREG if stat.st_size == 0 => EMPTY_FILE,
        SFlag::S_IFREG => "a regular file",
        _ => "something else",
    }
}
