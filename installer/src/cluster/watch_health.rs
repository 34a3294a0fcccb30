//! Whether a watch is open, and when something has last arrived on it; its problem is logged once.

use super::error::ApiError;
use crate::log::Log;
use serde_json::json;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is logged about a watch.
#[derive(Debug)]
pub(super) struct WatchMessages {
    pub(super) unwatched: &'static str,
    pub(super) watched_again: &'static str,
    /// The hint when the server refuses the watch.
    pub(super) right: &'static str,
}

/// The state of a watch, shared between its thread and its readers.
#[derive(Debug)]
pub(super) struct WatchHealth {
    messages: &'static WatchMessages,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Why the watch is not open, as it was logged.
    problem: Option<String>,
    last_event: Instant,
}

impl WatchHealth {
    pub(super) fn new(messages: &'static WatchMessages) -> Self {
        Self { messages, state: Mutex::new(State { problem: None, last_event: Instant::now() }) }
    }

    /// Returns why the watch is not open; none while it is.
    pub(super) fn problem(&self) -> Option<String> {
        self.lock().problem.clone()
    }

    /// Returns the time since the server last sent something. A refusal does not count.
    pub(super) fn silent(&self) -> Duration {
        self.lock().last_event.elapsed()
    }

    pub(super) fn record_event(&self) {
        self.lock().last_event = Instant::now();
    }

    pub(super) fn record_open(&self, log: &Log) {
        self.record_event();
        if self.lock().problem.take().is_some() {
            log.info(self.messages.watched_again, json!({}));
        }
    }

    pub(super) fn record_failure(&self, fault: &ApiError, log: &Log) {
        // 410 only means that the watch has to begin anew.
        if fault.status() != Some(410) {
            self.report(fault.to_string(), fault.is_forbidden().then_some(self.messages.right), log);
        }
    }

    /// Records a problem, and logs it once.
    pub(super) fn report(&self, cause: String, hint: Option<&str>, log: &Log) {
        let mut state = self.lock();
        if state.problem.as_ref() != Some(&cause) {
            log.warn(self.messages.unwatched, json!({ "cause": cause, "hint": hint }));
            state.problem = Some(cause);
        }
    }

    /// Lets the last event be older, for tests.
    #[cfg(test)]
    pub(super) fn age(&self, time: Duration) {
        self.lock().last_event -= time;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
