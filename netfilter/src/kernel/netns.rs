//! Opens a network namespace, verifies that it is one, and runs work in it on a thread that ends there. Creates network
//! namespaces without a name: the kernel frees such a namespace with its last file descriptor and thread.

use crate::model::Hint;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, stat};
use nix::sys::statfs::{FsType, fstatfs};
use std::borrow::Cow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{io, panic, thread};

pub use crate::kernel::routes::{Address, addresses};

/// This thread's namespace; `/proc/self` is the thread group leader's.
const OWN: &str = "/proc/thread-self/ns/net";

/// An open network namespace; it exists at least as long as this value.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
    identity: Identity,
}

/// The identity of a namespace: device and inode, independent of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The identity of the file at `path`. A file that is not a namespace equals no namespace.
    ///
    /// # Errors
    /// When there is no file, or it cannot be read.
    pub fn at(path: &Path) -> Result<Self, NetnsError> {
        stat(path).map(|found| Self::of(&found)).map_err(|source| NetnsError::unopened(path, source))
    }

    /// The namespace of the process's first thread. For programs with one thread: the kernel takes half as long again
    /// to look up `thread-self`.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn of_the_first_thread() -> Result<Self, NetnsError> {
        Self::at(Path::new("/proc/self/ns/net"))
    }

    fn of(found: &FileStat) -> Self {
        Self { device: found.st_dev, inode: found.st_ino }
    }
}

/// The error of opening or entering a network namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// The path does not exist.
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
    /// The file is not a namespace.
    #[error("{path:?} is not a network namespace but {what}")]
    NotANamespace {
        /// The path as given.
        path: PathBuf,
        /// What the file is.
        what: &'static str,
    },
    /// The file is a namespace of another type.
    #[error("{path:?} is a {kind} namespace, not a network namespace")]
    OtherNamespace {
        /// The path as given.
        path: PathBuf,
        /// Its type: `mnt`, `pid`, ...
        kind: &'static str,
    },
    /// The kernel did not report what the file is.
    #[error("cannot determine whether {path:?} is a network namespace")]
    Inspect {
        /// The path as given.
        path: PathBuf,
        /// Why.
        source: Errno,
    },
    /// The thread for the namespace could not be started.
    #[error("cannot start a thread for the network namespace")]
    Thread(#[source] io::Error),
    /// The namespace could not be entered.
    #[error("cannot enter the network namespace")]
    Enter(#[source] Errno),
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
            Self::Enter(Errno::EPERM) => Some(
                "it takes CAP_SYS_ADMIN here and in the user namespace that owns the network namespace"
                    .into(),
            ),
            Self::Open { source: Errno::EACCES | Errno::EPERM, .. } => Some(
                "run as root; of another user's process, /proc/PID/ns is readable with CAP_SYS_PTRACE alone"
                    .into(),
            ),
            Self::NotANamespace { what: EMPTY_FILE, .. } => {
                Some("such a file is left where a namespace was mounted before a reboot".into())
            }
            _ => None,
        }
    }
}

/// What to put in front of a command so that an unprivileged user may create network namespaces and act as any
/// user in them.
pub const UNPRIVILEGED: &str = "unshare --user --map-root-user --map-auto";

/// Why no network namespace can be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The process lacks the privilege.
    #[error("not allowed to create a network namespace")]
    Forbidden,
    /// The kernel refused for another reason.
    #[error("the kernel created no network namespace: {0}")]
    Refused(Errno),
    /// The thread that created one is still in the old one. Nothing was written.
    #[error("unshare succeeded and the thread is still in the same network namespace")]
    Unchanged,
    /// The namespace cannot be opened.
    #[error("cannot open the new network namespace")]
    Netns(#[from] NetnsError),
    /// A namespace is created on a thread of its own.
    #[error("cannot start a thread for a new network namespace")]
    Thread(#[source] io::Error),
}

impl Hint for CreateError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Forbidden => Some(Cow::Owned(format!(
                "run it as root, or put this in front of the command: {UNPRIVILEGED} \
                 (it needs newuidmap of package uidmap, and a range for the user in /etc/subuid and /etc/subgid)"
            ))),
            Self::Refused(Errno::ENOSPC) => Some("raise the sysctl user.max_net_namespaces".into()),
            Self::Netns(error) => error.hint(),
            _ => None,
        }
    }
}

const EMPTY_FILE: &str = "an empty file";

impl Netns {
    /// Opens the namespace at `path` and follows links, because runtimes pass links.
    ///
    /// # Errors
    /// When the path does not exist, cannot be opened, or is not a network namespace.
    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        // Without O_NONBLOCK the opening of a FIFO waits for a writer that never comes (A10).
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
        let fd = open(path, flags, Mode::empty()).map_err(|source| NetnsError::unopened(path, source))?;
        Self::verified(fd, path)
    }

    /// A namespace that another process has opened and sent. Errors name the descriptor's path in `/proc`.
    ///
    /// # Errors
    /// When the descriptor is not a network namespace.
    pub fn received(fd: OwnedFd) -> Result<Self, NetnsError> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        Self::verified(fd, &path)
    }

    fn verified(fd: OwnedFd, path: &Path) -> Result<Self, NetnsError> {
        let path_buf = || path.to_path_buf();
        let inspect = |source| NetnsError::Inspect { path: path_buf(), source };
        let stat = fstat(&fd).map_err(inspect)?;
        if !is_namespace(fd.as_fd()).map_err(inspect)? {
            return Err(NetnsError::NotANamespace { path: path_buf(), what: nature(&stat) });
        }
        match namespace_type(fd.as_fd()).map_err(inspect)? {
            CloneFlags::CLONE_NEWNET => Ok(Self { fd, identity: Identity::of(&stat) }),
            other => Err(NetnsError::OtherNamespace { path: path_buf(), kind: type_name(other) }),
        }
    }

    /// Creates a network namespace. The calling thread stays where it is.
    ///
    /// # Errors
    /// When the process may not, or the kernel does not.
    pub fn create() -> Result<Self, CreateError> {
        let thread = thread::Builder::new().name("new-netns".into()).spawn(unshared);
        thread.map_err(CreateError::Thread)?.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn of_this_thread() -> Result<Self, NetnsError> {
        Self::open(Path::new(OWN))
    }

    /// The identity, for comparison.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Reports whether both are the same namespace.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Runs `work` in the namespace.
    ///
    /// `setns(2)` moves one thread, so a thread of its own runs `work` and ends in the namespace: no thread has to
    /// return, which could fail.
    ///
    /// # Errors
    /// When the namespace cannot be entered; then `work` did not start.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("in-netns".into()).spawn_scoped(scope, || {
                self.enter()?;
                Ok(work())
            });
            let thread = thread.map_err(NetnsError::Thread)?;
            thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into the namespace, for the rest of its life.
    ///
    /// For a program with one task: the thread of [`Netns::run`] takes a stack, an allocator arena and two migrations
    /// between processors, as much time as the task itself.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn enter(&self) -> Result<(), NetnsError> {
        setns(&self.fd, CloneFlags::CLONE_NEWNET).map_err(NetnsError::Enter)
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Moves the calling thread, which ends afterwards.
fn unshared() -> Result<Netns, CreateError> {
    let old = Netns::of_this_thread()?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
        Errno::EPERM => CreateError::Forbidden,
        errno => CreateError::Refused(errno),
    })?;
    let new = Netns::of_this_thread()?;
    // The caller writes rules into the new namespace, and must never write them into the old one.
    if new.is_same_as(&old) { Err(CreateError::Unchanged) } else { Ok(new) }
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

/// `NSFS_MAGIC` of `include/uapi/linux/magic.h`: the file system of namespace files.
const NSFS: FsType = FsType(0x6e73_6673);

mod request {
    // `NS_GET_NSTYPE`, `_IO(0xb7, 3)` of `include/uapi/linux/nsfs.h`. Linux 4.11.
    nix::ioctl_none!(ns_get_nstype, 0xb7, 3);
}

/// Reports whether the descriptor is a namespace of any type.
fn is_namespace(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(fstatfs(fd)?.filesystem_type() == NSFS)
}

/// The type of a namespace, as the flag that makes a new one.
#[expect(unsafe_code, reason = "nix makes every ioctl an unsafe function")]
fn namespace_type(fd: BorrowedFd<'_>) -> Result<CloneFlags, Errno> {
    // SAFETY: the request takes no argument and touches no memory of ours; the descriptor is open,
    // because it is borrowed.
    let kind = unsafe { request::ns_get_nstype(fd.as_raw_fd())? };
    Ok(CloneFlags::from_bits_retain(kind))
}

/// The type's name, as in `/proc/PID/ns`.
fn type_name(kind: CloneFlags) -> &'static str {
    match kind {
        CloneFlags::CLONE_NEWNS => "mnt",
        CloneFlags::CLONE_NEWCGROUP => "cgroup",
        CloneFlags::CLONE_NEWUTS => "uts",
        CloneFlags::CLONE_NEWIPC => "ipc",
        CloneFlags::CLONE_NEWUSER => "user",
        CloneFlags::CLONE_NEWPID => "pid",
        CloneFlags::CLONE_NEWNET => "net",
        // CLONE_NEWTIME has no flag in nix, and what comes later has no name here.
        _ => "time or unknown",
    }
}
