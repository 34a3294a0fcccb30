//! The namespace of one attempt: its loopback interface is up and has the addresses that the test connections
//! go to. The kernel frees it after the attempt.

use super::profile::{EXCLUDED, HOME, HOME_V6, Profile};
use crate::kernel::netns::{CreateError, Netns, NetnsError};
use crate::kernel::routes::{RoutesError, Rtnetlink};
use crate::model::Hint;
use crate::model::policy::Families;
use nix::errno::Errno;
use std::borrow::Cow;

/// The error of preparing a probe.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is no namespace to try rules in.
    #[error("cannot create a network namespace to try rules in")]
    Create(#[from] CreateError),
    /// The namespace cannot be entered.
    #[error("cannot try rules in a network namespace")]
    Netns(#[from] NetnsError),
    /// Its loopback interface cannot be set up.
    #[error("cannot prepare a network namespace to try rules in")]
    Loopback(#[from] RoutesError),
}

impl Hint for ProbeError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Create(error) => error.hint(),
            Self::Netns(error) => error.hint(),
            Self::Loopback(_) => None,
        }
    }
}

/// The state of the prepared namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamespaceState {
    /// It has the addresses that the profile needs.
    Ready,
    /// The kernel refused an IPv6 address that the profile needs.
    WithoutIpv6(Errno),
}

/// Runs `work` in a namespace created for it, which the kernel frees afterwards.
pub(super) fn in_prepared_namespace<T: Send>(
    profile: Profile,
    work: impl FnOnce(NamespaceState) -> T + Send,
) -> Result<T, ProbeError> {
    Netns::create()?.run(|| Ok(work(prepare(profile)?)))?
}

fn prepare(profile: Profile) -> Result<NamespaceState, ProbeError> {
    let mut rtnetlink = Rtnetlink::open()?;
    rtnetlink.raise_loopback()?;
    for address in [HOME, EXCLUDED] {
        rtnetlink.add_to_loopback(address)?;
    }
    if profile.policy().families == Families::V4Only {
        return Ok(NamespaceState::Ready);
    }
    match rtnetlink.add_to_loopback(HOME_V6) {
        Ok(()) => Ok(NamespaceState::Ready),
        Err(RoutesError::Refused(source)) => Ok(NamespaceState::WithoutIpv6(source)),
        Err(error) => Err(error.into()),
    }
}
