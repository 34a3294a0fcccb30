//! This node's pods as the agent knows them, by list and watch (`WatchedPods`).
//!
//! ```text
//! cluster::watch ─► pod_watch ─► pod_cache ─► WatchedPods ─► facts socket
//!                                    └─ lookups: one pod that the watch has not delivered
//! ```
//!
//! The watch of pods and the lookups run on one thread, which has a tokio runtime. `CountedPods` counts the responses
//! to the plugin's queries.

mod list_parser;
mod pod_cache;
mod pod_watch;
mod watched_pods;

pub use pod_cache::{WatchProblem, WatchState};
pub use watched_pods::WatchedPods;

use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::FactsResponse;
use gybe_plugin::pod::PodFacts;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A source of this node's pods.
pub trait PodLookup: Sync {
    /// Returns what is known about a pod now; none when the pod may be about to appear.
    fn find(&self, pod: &PodRef) -> Option<FactsResponse>;

    /// Returns what is known about a pod; waits for an unknown pod, at most until `until`.
    fn wait_for(&self, pod: &PodRef, until: Instant) -> FactsResponse;

    fn state(&self) -> PodsState;

    /// Reports whether such a pod is on this node, a terminating one included; none while the pods are not known.
    fn has_pod(&self, is_such: &dyn Fn(&PodFacts) -> bool) -> Option<bool>;
}

/// The state of a [`PodLookup`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsState {
    /// Why queries cannot be answered reliably; none when they can.
    pub missing: Option<String>,
    /// Why new pods are not known at present: the watch is not open. Short interruptions are normal.
    pub unwatched: Option<String>,
    /// The number of known pods.
    pub pods: usize,
    /// The counters of the watch; none without a cluster.
    pub watch: Option<WatchCounts>,
}

/// Counters of the watch of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchCounts {
    /// The time since the API server last sent something about pods.
    pub silent: Duration,
    pub reconnects: u64,
    /// Failed requests about pods by HTTP status; none stands for no response, or for one that cannot be read.
    pub errors: BTreeMap<Option<u16>, u64>,
}

/// A [`PodLookup`] that passes queries to another one and counts the responses.
pub(crate) struct CountedPods<'a> {
    pods: &'a dyn PodLookup,
    known: AtomicU64,
    unknown: AtomicU64,
    faults: AtomicU64,
}

impl<'a> CountedPods<'a> {
    pub(crate) fn new(pods: &'a dyn PodLookup) -> Self {
        Self { pods, known: AtomicU64::new(0), unknown: AtomicU64::new(0), faults: AtomicU64::new(0) }
    }

    /// Returns the number of responses of each kind, by the HTTP status with which the incumbent's agent would respond:
    /// 200 a pod, 404 unknown, 503 an error.
    pub(crate) fn counts(&self) -> [(u16, u64); 3] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [(200, count(&self.known)), (404, count(&self.unknown)), (503, count(&self.faults))]
    }

    fn count(&self, response: &FactsResponse) {
        let counter = match response {
            FactsResponse::Pod(_) => &self.known,
            FactsResponse::Unknown => &self.unknown,
            FactsResponse::Error(_) | FactsResponse::BrokenManifest(_) => &self.faults,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl PodLookup for CountedPods<'_> {
    fn find(&self, pod: &PodRef) -> Option<FactsResponse> {
        self.pods.find(pod).inspect(|response| self.count(response))
    }

    fn wait_for(&self, pod: &PodRef, until: Instant) -> FactsResponse {
        let response = self.pods.wait_for(pod, until);
        self.count(&response);
        response
    }

    fn state(&self) -> PodsState {
        self.pods.state()
    }

    fn has_pod(&self, is_such: &dyn Fn(&PodFacts) -> bool) -> Option<bool> {
        self.pods.has_pod(is_such)
    }
}
