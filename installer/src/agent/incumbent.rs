//! Whether istio-cni's agent lives on this node. While it does it would write its entry again, and as
//! it ends it takes its entry and its program away: so an entry, or a program, is no sign of it.

use super::place::is_served;
use super::{Part, Pods};
use crate::host::settings::Settings;
use nix::sys::socket::SockType;
use std::path::Path;

/// What is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IstioAgent {
    /// One of its pods is on this node, also one that is ending.
    HasPod,
    /// Somebody listens where it takes log lines.
    Listens,
    /// Neither.
    Gone,
    /// Nobody listens, and this node's pods are not known yet.
    Unknown,
}

impl IstioAgent {
    /// Looks. The pod is there before the socket is, and longer; the socket needs no API server.
    pub(crate) fn look(pods: &dyn Pods, settings: &Settings) -> Self {
        match pods.has_pod_of(&Part::istio_cni(settings)) {
            Some(true) => Self::HasPod,
            _ if listens(&settings.environment.istio_run) => Self::Listens,
            Some(false) => Self::Gone,
            None => Self::Unknown,
        }
    }

    /// Whether it may still write.
    #[must_use]
    pub(crate) fn may_live(self) -> bool {
        self != Self::Gone
    }
}

/// Whether somebody takes log lines in its directory. Its agent serves HTTP there, and a caller that
/// hangs up at once is nobody to it.
pub(crate) fn listens(run: &Path) -> bool {
    is_served(&run.join("log.sock"), SockType::Stream)
}
