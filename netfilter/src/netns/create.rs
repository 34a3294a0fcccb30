//! A new network namespace without a name: the kernel frees it with its last file descriptor and thread.

use super::{Netns, NetnsError};
use crate::hint::Hint;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use std::borrow::Cow;
use std::{io, panic, thread};

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
    #[error("the kernel created no network namespace: {errno}")]
    Refused {
        /// The kernel's error.
        errno: Errno,
    },
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
            Self::Refused { errno: Errno::ENOSPC } => Some("raise the sysctl user.max_net_namespaces".into()),
            Self::Netns(error) => error.hint(),
            _ => None,
        }
    }
}

impl Netns {
    /// Creates a network namespace. The calling thread stays where it is.
    ///
    /// # Errors
    /// When the process may not, or the kernel does not.
    pub fn create() -> Result<Self, CreateError> {
        let thread = thread::Builder::new().name("new-netns".into()).spawn(unshared);
        thread.map_err(CreateError::Thread)?.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    }
}

/// Moves the calling thread, which ends afterwards.
fn unshared() -> Result<Netns, CreateError> {
    let old = Netns::of_this_thread()?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
        Errno::EPERM => CreateError::Forbidden,
        errno => CreateError::Refused { errno },
    })?;
    let new = Netns::of_this_thread()?;
    // The caller writes rules into the new namespace, and must never write them into the old one.
    if new.is_same_as(&old) { Err(CreateError::Unchanged) } else { Ok(new) }
}
