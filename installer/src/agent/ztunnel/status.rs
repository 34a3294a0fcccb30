//! What the agent knows about ztunnel and its pods, for the agent's status and metrics.

use crate::agent::histogram::Histogram;
use std::time::Duration;

/// The observed state of the ztunnels of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZtunnelStatus {
    /// The number of ztunnels whose hello was received.
    pub connected: usize,
    /// Whether the newest ztunnel has acknowledged its snapshot.
    pub is_snapshot_acknowledged: bool,
    /// All ambient pods.
    pub pods: usize,
    /// The pods whose network namespace is not known yet.
    pub without_netns: usize,
    /// For how long every hand-over has failed, and why the last one did; none after one that was completed, or when
    /// none was tried of late.
    pub failing: Option<(Duration, String)>,
    /// The pods that the newest ztunnel has not acknowledged.
    pub pending: usize,
    /// How long the oldest of them has been pending.
    pub longest_pending: Option<Duration>,
    pub counts: ZtunnelCounts,
}

/// Counters since the start of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ZtunnelCounts {
    /// Connections whose hello was received.
    pub connections: u64,
    /// Requests that ztunnel refused.
    pub refused: u64,
    /// Connections that were closed because a response did not come in time.
    pub late: u64,
    /// From a request to its response.
    pub acknowledged: Histogram,
}

impl ZtunnelCounts {
    pub(super) fn answered(&mut self, is_acknowledged: bool, took: Duration) {
        match is_acknowledged {
            true => self.acknowledged.record(took),
            false => self.refused += 1,
        }
    }
}
