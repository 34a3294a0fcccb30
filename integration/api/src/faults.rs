//! Faults of single requests. Faults of the connections are in `network`.

use crate::request::Verb;
use crate::response::{ApiResponse, JsonLayout, StatusError, plain, too_many_requests};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A fault, which lasts until it is cleared or has happened a set number of times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    verb: Option<Verb>,
    on_reused_connections: bool,
    kind: FaultKind,
    times: Option<u32>,
}

/// What the server does with a request instead of answering it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Answers after this delay.
    Slow(Duration),
    /// Reads the request and never answers.
    Silent,
    /// Answers 429 with that many seconds in `Retry-After`.
    TooManyRequests(u64),
    /// Answers with that code: 500, 502 (as a proxy does), 503 or 504.
    Fails(u16),
    /// Closes the connection without an answer.
    Disconnects,
}

impl Fault {
    /// A fault of every request.
    pub fn always(kind: FaultKind) -> Self {
        Self { verb: None, on_reused_connections: false, kind, times: None }
    }

    /// Limits the fault to requests with that verb.
    #[must_use]
    pub fn at(mut self, verb: Verb) -> Self {
        self.verb = Some(verb);
        self
    }

    /// Limits the fault to connections that have carried a request before: a server closes idle connections,
    /// sometimes at the moment when a client uses one again.
    #[must_use]
    pub fn on_reused_connections(mut self) -> Self {
        self.on_reused_connections = true;
        self
    }

    /// Limits the number of times that the fault happens.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }
}

/// All faults in effect; the first that applies to a request happens.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    pub(crate) fn add(&self, fault: Fault) {
        self.all().push(fault);
    }

    pub(crate) fn clear(&self) {
        self.all().clear();
    }

    /// Returns the fault of the next request, and counts it.
    pub(crate) fn next(&self, verb: Option<Verb>, reused_connection: bool) -> Option<FaultKind> {
        let mut all = self.all();
        let applies = |fault: &&mut Fault| {
            fault.times != Some(0)
                && fault.verb.is_none_or(|only| Some(only) == verb)
                && (reused_connection || !fault.on_reused_connections)
        };
        let fault = all.iter_mut().find(applies)?;
        fault.times = fault.times.map(|times| times.saturating_sub(1));
        Some(fault.kind)
    }

    fn all(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultKind {
    /// Returns the response of a fault that consists of a response.
    pub(crate) fn response(self, layout: JsonLayout) -> Option<ApiResponse> {
        match self {
            Self::TooManyRequests(seconds) => Some(too_many_requests(seconds)),
            Self::Fails(code) => Some(failed(code, layout)),
            Self::Slow(_) | Self::Silent | Self::Disconnects => None,
        }
    }
}

/// Messages as apimachinery's `pkg/api/errors/errors.go` writes them.
fn failed(code: u16, layout: JsonLayout) -> ApiResponse {
    let (reason, message) = match code {
        500 => ("InternalError", "Internal error occurred: etcdserver: request timed out"),
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => ("Timeout", "Timeout: request did not complete within the allotted duration"),
        // The response of a proxy, which writes no JSON.
        _ => return plain(code, "upstream connect error or disconnect/reset before headers"),
    };
    StatusError::new(code, reason, message).response(layout)
}
