//! A network namespace that only its owner can reach and nobody has to delete. What is inside it
//! (links, sockets) is not made here.

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{io, panic, thread};

/// A throw-away network namespace with its loopback interface up.
///
/// It has no name and no bind mount: the kernel frees it with the last file descriptor, so a
/// process that dies leaves nothing behind.
#[derive(Debug)]
pub struct Namespace {
    handle: OwnedFd,
}

/// Why there is no namespace to work in.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The process may not make one.
    #[error("not allowed to make a network namespace")]
    Forbidden,
    /// The kernel would not make one for another reason.
    #[error("the kernel made no network namespace: {errno}")]
    Unmade {
        /// What it said.
        errno: Errno,
    },
    /// The thread that asked for a new one is still in the old one.
    #[error("unshare succeeded and the network namespace is still the same one")]
    StillTheOldOne,
    /// The kernel's files about it cannot be read.
    #[error("cannot open {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A thread could not enter it.
    #[error("cannot enter the network namespace: {errno}")]
    Closed {
        /// What the kernel said.
        errno: Errno,
    },
    /// No thread to enter it with.
    #[error("cannot start a thread for the network namespace")]
    NoThread(#[source] io::Error),
    /// Its loopback interface stays down.
    #[error("cannot bring up the loopback interface of a new network namespace")]
    NoLoopback(#[source] Box<super::link::LinkError>),
}

/// What to put in front of a command so that it may make namespaces and act as any user in them.
pub const UNPRIVILEGED: &str = "unshare --user --map-root-user --map-auto";

impl NamespaceError {
    /// What would help, if somebody can help.
    pub fn hint(&self) -> Option<String> {
        matches!(self, Self::Forbidden).then(|| {
            format!(
                "run it as root, or put this in front of the command: {UNPRIVILEGED} \
                 (it needs newuidmap of package uidmap, and a range for the user in /etc/subuid and /etc/subgid)"
            )
        })
    }
}

impl Namespace {
    /// Makes one.
    ///
    /// # Errors
    /// When the process may not, or the kernel cannot.
    pub fn new() -> Result<Self, NamespaceError> {
        let made = errand("new-netns", || -> Result<Self, NamespaceError> {
            let old = own_handle()?;
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
                Errno::EPERM => NamespaceError::Forbidden,
                errno => NamespaceError::Unmade { errno },
            })?;
            let new = own_handle()?;
            if identity(&old)? == identity(&new)? {
                return Err(NamespaceError::StillTheOldOne);
            }
            Ok(Self { handle: new.into() })
        })??;
        let up = made.run(super::link::loopback_up)?;
        up.map_err(|error| NamespaceError::NoLoopback(Box::new(error)))?;
        Ok(made)
    }

    /// One that somebody else made, by the path of its file.
    ///
    /// # Errors
    /// When there is no such file, or this process may not open it.
    pub fn open(path: &Path) -> Result<Self, NamespaceError> {
        match File::open(path) {
            Ok(file) => Ok(Self { handle: file.into() }),
            Err(source) => Err(NamespaceError::Unreadable { path: path.to_owned(), source }),
        }
    }

    /// A path by which another process can open it, as long as this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.handle.as_raw_fd()))
    }

    /// Does `work` inside it, on a thread made for this one errand: nobody moves back, so nothing
    /// can go wrong on the way back.
    ///
    /// # Errors
    /// When no thread could be started or it could not enter; `work` was then not done.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        errand("in-netns", || {
            self.enter()?;
            Ok(work())
        })?
    }

    /// Moves the calling thread into it for the rest of its life.
    pub(super) fn enter(&self) -> Result<(), NamespaceError> {
        setns(self, CloneFlags::CLONE_NEWNET).map_err(|errno| NamespaceError::Closed { errno })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

fn errand<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name.into()).spawn_scoped(scope, work);
        let thread = thread.map_err(NamespaceError::NoThread)?;
        Ok(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })
}

fn own_handle() -> Result<File, NamespaceError> {
    let path = PathBuf::from("/proc/thread-self/ns/net");
    File::open(&path).map_err(|source| NamespaceError::Unreadable { path, source })
}

/// Two handles are of one namespace when device and inode agree (`ioctl_ns(2)`).
fn identity(handle: &File) -> Result<(u64, u64), NamespaceError> {
    let about = handle.metadata().map_err(|source| NamespaceError::Unreadable {
        path: PathBuf::from("/proc/thread-self/ns/net"),
        source,
    })?;
    Ok((about.st_dev(), about.st_ino()))
}
