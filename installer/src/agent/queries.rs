//! The plugin's queries about pods, counted by their response.

use crate::agent::pods::{PodLookup, PodsState};
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::FactsResponse;
use gybe_plugin::pod::PodFacts;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

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
