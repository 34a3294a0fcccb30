//! A pod that is not in the cache yet, and how long queries wait for it.

use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::FactsResponse;
use std::time::{Duration, Instant};

/// How long a query waits for a pod.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent::pods) struct WaitLimits {
    /// How long it waits for the watch alone, before the API server is queried for the pod.
    pub(in crate::agent::pods) watch_lag: Duration,
    /// The deadline.
    pub(in crate::agent::pods) until: Instant,
}

/// A pod that queries wait for.
#[derive(Debug)]
pub(super) struct PendingPod {
    since: Instant,
    /// The number of waiting queries.
    pub(super) waiting: usize,
    pub(super) lookup_started: bool,
    /// The result of the lookup.
    pub(super) response: Option<FactsResponse>,
}

impl PendingPod {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), waiting: 0, lookup_started: false, response: None }
    }

    /// Returns how long to wait for a change, or, as an error, the response. The first query that has waited long
    /// enough for the watch starts the lookup.
    pub(super) fn wait(
        &mut self,
        limits: WaitLimits,
        look_up: &mut Option<impl FnOnce()>,
    ) -> Result<Duration, FactsResponse> {
        let (now, lookup_at) = (Instant::now(), self.since + limits.watch_lag);
        if let Some(response) = self.response.clone() {
            return Err(response);
        }
        if now >= limits.until {
            return Err(timed_out());
        }
        if !self.lookup_started && now >= lookup_at {
            self.lookup_started = true;
            look_up.take().into_iter().for_each(|look_up| look_up());
        }
        let next = if self.lookup_started { limits.until } else { limits.until.min(lookup_at) };
        Ok(next.saturating_duration_since(now))
    }
}

/// Identifies one pod among all that have had its name.
pub(super) fn key_with_uid(pod: &PodRef) -> String {
    format!("{pod}/{}", pod.uid.as_deref().unwrap_or_default())
}

pub(in crate::agent::pods) fn timed_out() -> FactsResponse {
    FactsResponse::Error("not in the agent's cache yet, and the API server did not answer in time".to_owned())
}
