//! A pod that is not known yet, and how long it is waited for.

use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::FactsResponse;
use std::time::{Duration, Instant};

/// How long a pod is waited for.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent::cluster) struct Patience {
    /// How long the watch alone: then the API server is asked.
    pub(in crate::agent::cluster) lag: Duration,
    /// Until when at all.
    pub(in crate::agent::cluster) until: Instant,
}

/// A pod that somebody waits for.
#[derive(Debug)]
pub(super) struct Awaited {
    since: Instant,
    pub(super) waiting: usize,
    /// Whether the API server was asked for it alone.
    pub(super) asked: bool,
    pub(super) answer: Option<FactsResponse>,
}

impl Awaited {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), waiting: 0, asked: false, answer: None }
    }

    /// How long to wait for news, or what is to be answered. The first whose patience with the watch
    /// ends asks.
    pub(super) fn wait(
        &mut self,
        Patience { lag, until }: Patience,
        ask: &mut Option<impl FnOnce()>,
    ) -> Result<Duration, FactsResponse> {
        let (now, asking) = (Instant::now(), self.since + lag);
        if let Some(answer) = self.answer.clone() {
            return Err(answer);
        }
        if now >= until {
            return Err(late());
        }
        if !self.asked && now >= asking {
            self.asked = true;
            ask.take().into_iter().for_each(|ask| ask());
        }
        let next = if self.asked { until } else { until.min(asking) };
        Ok(next.saturating_duration_since(now))
    }
}

/// One life of a pod of that name.
pub(super) fn life(pod: &PodRef) -> String {
    format!("{pod}/{}", pod.uid.as_deref().unwrap_or_default())
}

pub(in crate::agent::cluster) fn late() -> FactsResponse {
    FactsResponse::Error("not seen yet, and the API server did not answer in time".to_owned())
}
