//! A network namespace that only its owner can reach and nobody has to delete. What is inside it
//! (links, sockets) is not made here.

use gybe_netfilter::hint::Hint;
use gybe_netfilter::netns::{Netns, NetnsError};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use std::borrow::Cow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::{io, panic, thread};

/// A throw-away network namespace with its loopback interface up.
///
/// It has no name and no bind mount: the kernel frees it with the last file descriptor, so a
/// process that dies leaves nothing behind.
#[derive(Debug)]
pub struct Namespace {
    netns: Netns,
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
    /// It cannot be opened or entered.
    #[error("cannot work in a network namespace")]
    Netns(#[from] NetnsError),
    /// No thread to make it with.
    #[error("cannot start a thread for a new network namespace")]
    NoThread(#[source] io::Error),
    /// Its loopback interface stays down.
    #[error("cannot bring up the loopback interface of a new network namespace")]
    NoLoopback(#[source] Box<super::link::LinkError>),
}

/// What to put in front of a command so that it may make namespaces and act as any user in them.
pub const UNPRIVILEGED: &str = "unshare --user --map-root-user --map-auto";

impl Hint for NamespaceError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Forbidden => Some(
                format!(
                "run it as root, or put this in front of the command: {UNPRIVILEGED} \
                 (it needs newuidmap of package uidmap, and a range for the user in /etc/subuid and /etc/subgid)"
            ).into()),
            Self::Netns(error) => error.hint(),
            _ => None,
        }
    }
}

impl Namespace {
    /// Makes one.
    ///
    /// # Errors
    /// When the process may not, or the kernel cannot.
    pub fn new() -> Result<Self, NamespaceError> {
        let made = thread::Builder::new().name("new-netns".into()).spawn(Self::in_a_new_one);
        let made = made.map_err(NamespaceError::NoThread)?;
        let made = made.join().unwrap_or_else(|panic| panic::resume_unwind(panic))?;
        let up = made.run(super::link::loopback_up)?;
        up.map_err(|error| NamespaceError::NoLoopback(Box::new(error)))?;
        Ok(made)
    }

    /// One that somebody else made, by the path of its file.
    ///
    /// # Errors
    /// When there is no such file, or it is no network namespace.
    pub fn open(path: &Path) -> Result<Self, NamespaceError> {
        Ok(Self { netns: Netns::open(path)? })
    }

    /// The calling thread is in it afterwards, and had better end.
    fn in_a_new_one() -> Result<Self, NamespaceError> {
        let old = Netns::of_this_thread()?;
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
            Errno::EPERM => NamespaceError::Forbidden,
            errno => NamespaceError::Unmade { errno },
        })?;
        let netns = Netns::of_this_thread()?;
        if netns.is_same_as(&old) { Err(NamespaceError::StillTheOldOne) } else { Ok(Self { netns }) }
    }

    /// A path by which another process can open it, as long as this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.as_fd().as_raw_fd()))
    }

    /// Does `work` inside it, on a thread made for this one errand.
    ///
    /// # Errors
    /// When it could not be entered; `work` was then not done.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        Ok(self.netns.run(work)?)
    }

    /// Moves the calling thread into it for the rest of its life.
    pub(super) fn enter(&self) -> Result<(), NamespaceError> {
        setns(self, CloneFlags::CLONE_NEWNET).map_err(|source| NetnsError::Enter { source }.into())
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netns.as_fd()
    }
}
