//! What is wrong with the server, request by request. What is wrong with the wire is in `network`.

use crate::answer::{Answer, Failure, Layout, plain, too_many_requests};
use crate::wish::Verb;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One thing that is wrong, until it is mended or has happened often enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    at: Option<Verb>,
    on_kept: bool,
    trouble: Trouble,
    times: Option<u32>,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It is answered as ever, so much later.
    Slow(Duration),
    /// It is read and never answered.
    Silent,
    /// 429, with that many seconds in `Retry-After`.
    TooManyRequests(u64),
    /// An answer with that code: 500, 502 (from something in between), 503, 504.
    Fails(u16),
    /// The connection ends without an answer.
    Disconnects,
}

impl Fault {
    /// This happens to every request.
    pub fn always(trouble: Trouble) -> Self {
        Self { at: None, on_kept: false, trouble, times: None }
    }

    /// It happens to requests of that kind alone.
    #[must_use]
    pub fn at(mut self, verb: Verb) -> Self {
        self.at = Some(verb);
        self
    }

    /// It happens on connections alone that have carried a request before: a server closes those that are
    /// idle, also just when one of them is used again.
    #[must_use]
    pub fn on_kept(mut self) -> Self {
        self.on_kept = true;
        self
    }

    /// It happens so many times, and then no more.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }
}

/// All that is wrong; the first that applies happens.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    pub(crate) fn add(&self, fault: Fault) {
        self.all().push(fault);
    }

    pub(crate) fn clear(&self) {
        self.all().clear();
    }

    /// What happens to the next request of that kind, on a connection that is kept or new.
    pub(crate) fn next(&self, verb: Option<Verb>, kept: bool) -> Option<Trouble> {
        let mut all = self.all();
        let applies = |fault: &&mut Fault| {
            fault.times != Some(0) && fault.at.is_none_or(|at| Some(at) == verb) && (kept || !fault.on_kept)
        };
        let fault = all.iter_mut().find(applies)?;
        fault.times = fault.times.map(|times| times.saturating_sub(1));
        Some(fault.trouble)
    }

    fn all(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trouble {
    /// The answer that is all there is to it.
    pub(crate) fn answer(self, layout: Layout) -> Option<Answer> {
        match self {
            Self::TooManyRequests(seconds) => Some(too_many_requests(seconds)),
            Self::Fails(code) => Some(failed(code, layout)),
            Self::Slow(_) | Self::Silent | Self::Disconnects => None,
        }
    }
}

/// Messages as apimachinery's `pkg/api/errors/errors.go` writes them.
fn failed(code: u16, layout: Layout) -> Answer {
    let (reason, message) = match code {
        500 => ("InternalError", "Internal error occurred: etcdserver: request timed out"),
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => ("Timeout", "Timeout: request did not complete within the allotted duration"),
        // Something in between that speaks no JSON.
        _ => return plain(code, "upstream connect error or disconnect/reset before headers"),
    };
    Failure::other(code, reason, message).answer(layout)
}
