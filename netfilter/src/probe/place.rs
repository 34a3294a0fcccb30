//! The namespace one attempt is made in: new, with its loopback interface up and the addresses that
//! are called on it, and gone with the thread that was in it.

use super::profile::{EXCLUDED, HOME, HOME_V6, Profile};
use crate::hint::Hint;
use crate::netns::{Netns, NetnsError};
use crate::policy::Families;
use crate::routes::{RoutesError, Rtnetlink};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use std::borrow::Cow;
use std::{io, panic, thread};

/// Why nothing can be tried.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The process may not make one, or the kernel would not.
    #[error("cannot make a network namespace to try rules in")]
    NoNamespace {
        /// Why.
        source: Errno,
    },
    /// The thread that asked for a new one is still in the old one. Nothing was written.
    #[error("asked for a network namespace to try rules in, and still in the same one")]
    StillTheOldOne,
    /// The namespace cannot be told from others.
    #[error("cannot tell which network namespace this is")]
    Netns(#[from] NetnsError),
    /// Its loopback interface.
    #[error("cannot prepare a network namespace to try rules in")]
    Loopback(#[from] RoutesError),
    /// No thread to make it with.
    #[error("cannot start a thread to try rules in")]
    NoThread(#[source] io::Error),
}

impl Hint for ProbeError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::NoNamespace { source: Errno::EPERM } => Some(
                "run it as root, or in a user namespace (unshare --user --map-root-user --map-auto)".into(),
            ),
            Self::NoNamespace { source: Errno::ENOSPC } => {
                Some("raise the sysctl user.max_net_namespaces".into())
            }
            Self::Netns(error) => error.hint(),
            _ => None,
        }
    }
}

/// What the namespace is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prepared {
    /// What the profile needs.
    Ready,
    /// Not for a profile with IPv6: this is what the kernel says of an address of it.
    WithoutIpv6(Errno),
}

/// Does `work` in a namespace made for it. The kernel frees it with the thread: it has no name.
pub(super) fn in_a_throw_away<T: Send>(
    profile: Profile,
    work: impl FnOnce(Prepared) -> T + Send,
) -> Result<T, ProbeError> {
    thread::scope(|scope| {
        let attempt = thread::Builder::new().name("probe".into()).spawn_scoped(scope, || {
            enter_a_new_one()?;
            Ok(work(prepare(profile)?))
        });
        let attempt = attempt.map_err(ProbeError::NoThread)?;
        attempt.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}

/// Moves the calling thread, which ends there.
fn enter_a_new_one() -> Result<(), ProbeError> {
    let old = Netns::of_this_thread()?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(|source| ProbeError::NoNamespace { source })?;
    // Rules are about to be written: that must never happen to the node's own namespace.
    if Netns::of_this_thread()?.is_same_as(&old) {
        return Err(ProbeError::StillTheOldOne);
    }
    Ok(())
}

fn prepare(profile: Profile) -> Result<Prepared, ProbeError> {
    let mut rtnetlink = Rtnetlink::open()?;
    rtnetlink.raise_loopback()?;
    for address in [HOME, EXCLUDED] {
        rtnetlink.add_to_loopback(address)?;
    }
    if profile.policy().families == Families::V4Only {
        return Ok(Prepared::Ready);
    }
    match rtnetlink.add_to_loopback(HOME_V6) {
        Ok(()) => Ok(Prepared::Ready),
        Err(RoutesError::Loopback { source }) => Ok(Prepared::WithoutIpv6(source)),
        Err(error) => Err(error.into()),
    }
}
