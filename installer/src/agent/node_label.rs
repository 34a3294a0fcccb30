//! The node's label that names a backend, queried once a minute: our RBAC rules allow to get the node, not to watch it.

use crate::agent::cluster::{Cluster, node_labels};
use crate::error::chain;
use crate::log::Log;
use crate::probe::node_backend::LABEL;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two queries in milliseconds: an operator who sets a label expects an effect within about a minute.
const MINUTE: u16 = 60_000;
/// The deadline of a query; the end of the agent is delayed by no more than it.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The agent's cluster, and its node there.
#[derive(Debug, Clone)]
pub struct ClusterNode {
    pub cluster: Cluster,
    pub node: String,
}

/// The label, shared between the thread that queries it and the reconcile loop.
#[derive(Debug, Default)]
pub(crate) struct NodeLabel {
    state: Mutex<LabelState>,
    changed: Condvar,
}

/// The last known state of the label.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum LabelState {
    /// The API server has not responded yet.
    #[default]
    Unknown,
    Absent,
    Set(String),
}

impl NodeLabel {
    pub(crate) fn read(&self) -> LabelState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the state; waits up to `timeout` while it is unknown.
    pub(crate) fn wait(&self, timeout: Duration) -> LabelState {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, timeout, |state| *state == LabelState::Unknown);
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    fn set(&self, label: Option<String>) {
        let state = label.map_or(LabelState::Absent, LabelState::Set);
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    /// Queries the label until `stop` is readable. While the API server does not respond, the last state holds.
    pub(crate) fn follow(&self, home: &ClusterNode, stop: BorrowedFd<'_>, log: &Log) {
        let mut logged = String::new();
        loop {
            match node_labels(&home.cluster, &home.node, Instant::now() + TIMEOUT) {
                Ok(mut labels) => {
                    logged.clear();
                    self.set(labels.remove(LABEL));
                }
                Err(why) => {
                    let cause = chain(&why);
                    if logged != cause {
                        let fields = json!({ "cause": cause, "label": LABEL });
                        log.warn("gybe node: the node's label cannot be read", fields);
                    }
                    logged = cause;
                }
            }
            match poll(&mut [PollFd::new(stop, PollFlags::POLLIN)], PollTimeout::from(MINUTE)) {
                Ok(0) | Err(_) => {}
                Ok(_) => return,
            }
        }
    }
}
