//! Questions about pods counted by their answers, whoever knows the pods.

use super::{Part, Pods, PodsState};
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::FactsResponse;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Whoever knows the pods, and how often they were asked.
pub(crate) struct Asked<'a> {
    pods: &'a dyn Pods,
    known: AtomicU64,
    unknown: AtomicU64,
    faults: AtomicU64,
}

impl<'a> Asked<'a> {
    pub(crate) fn of(pods: &'a dyn Pods) -> Self {
        Self { pods, known: AtomicU64::new(0), unknown: AtomicU64::new(0), faults: AtomicU64::new(0) }
    }

    /// By HTTP's number for such an answer, as the incumbent counts its plugin's requests.
    pub(crate) fn counts(&self) -> [(u16, u64); 3] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [(200, count(&self.known)), (404, count(&self.unknown)), (503, count(&self.faults))]
    }

    fn count(&self, answer: &FactsResponse) {
        let counter = match answer {
            FactsResponse::Pod(_) => &self.known,
            FactsResponse::Unknown => &self.unknown,
            FactsResponse::Error(_) => &self.faults,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Pods for Asked<'_> {
    fn at_once(&self, pod: &PodRef) -> Option<FactsResponse> {
        self.pods.at_once(pod).inspect(|answer| self.count(answer))
    }

    fn answer(&self, pod: &PodRef, until: Instant) -> FactsResponse {
        let answer = self.pods.answer(pod, until);
        self.count(&answer);
        answer
    }

    fn state(&self) -> PodsState {
        self.pods.state()
    }

    fn has_pod_of(&self, part: &Part) -> Option<bool> {
        self.pods.has_pod_of(part)
    }
}
