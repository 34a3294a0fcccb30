//! Whether our DaemonSet exists. Its absence counts only if this process has observed it before: an operator may have
//! installed it under another name, and then every query reports it absent.

use crate::cluster::{ClusterNode, DaemonSetState, daemonset_state};
use crate::host::settings::Environment;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The kubelet gives the agent six minutes to end, five of them for the programs; one of these queries precedes the
/// uninstall.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The time between two queries while the API server does not respond, in milliseconds.
const RETRY_INTERVAL_MS: u16 = 60_000;

/// Our DaemonSet, and whether this process has observed it.
#[derive(Debug)]
pub(super) struct OwnDaemonSet<'a> {
    node: Option<&'a ClusterNode>,
    namespace: String,
    name: String,
    was_present: AtomicBool,
}

impl<'a> OwnDaemonSet<'a> {
    pub(super) fn new(node: Option<&'a ClusterNode>, environment: &Environment) -> Self {
        let (namespace, name) = (environment.namespace.clone(), environment.daemonset.clone());
        Self { node, namespace, name, was_present: AtomicBool::new(false) }
    }

    /// Queries until the API server has responded, or `stop` is readable. A refused query is repeated too: an operator
    /// may grant the permission later.
    pub(super) fn observe(&self, stop: BorrowedFd<'_>) {
        while let Some(DaemonSetState::Unknown(_) | DaemonSetState::Refused(_)) = self.query() {
            match poll(&mut [PollFd::new(stop, PollFlags::POLLIN)], PollTimeout::from(RETRY_INTERVAL_MS)) {
                Ok(0) | Err(_) => {}
                Ok(_) => return,
            }
        }
    }

    /// Returns its state now; none without a cluster.
    pub(super) fn state(&self) -> Option<DaemonSetState> {
        let state = self.query()?;
        if state == DaemonSetState::Absent && !self.was_present.load(Ordering::Acquire) {
            let why = format!(
                "{} was absent during the agent's whole run; if it has another name, set GYBE_DAEMONSET",
                self.name
            );
            return Some(DaemonSetState::Unknown(why));
        }
        Some(state)
    }

    fn query(&self) -> Option<DaemonSetState> {
        let until = Instant::now() + TIMEOUT;
        let state = daemonset_state(&self.node?.cluster, &self.namespace, &self.name, until);
        if state == DaemonSetState::Present {
            self.was_present.store(true, Ordering::Release);
        }
        Some(state)
    }
}
