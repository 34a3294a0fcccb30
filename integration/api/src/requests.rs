//! What was asked, for tests that count.

use crate::tokens::Bearer;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `GET`, mostly.
    pub method: String,
    /// Its path, without the query.
    pub path: String,
    /// The query as it came, or nothing.
    pub query: String,
    /// Whose it is.
    pub bearer: Bearer,
    /// What it was answered with, once the answer has begun.
    pub code: Option<u16>,
}

impl Request {
    /// Whether it asks for a watch.
    pub fn is_watch(&self) -> bool {
        self.query.split('&').any(|pair| matches!(pair, "watch=1" | "watch=true"))
    }

    /// Whether it asks for a page of pods.
    pub fn is_list_of_pods(&self) -> bool {
        self.path.ends_with("/pods") && !self.is_watch()
    }
}

/// All requests of one server, in the order they came.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    requests: Mutex<Vec<Request>>,
    changed: Condvar,
}

impl Ledger {
    /// Writes one down, and gives its place.
    pub(crate) fn came(&self, request: Request) -> usize {
        let mut requests = self.requests();
        requests.push(request);
        self.changed.notify_all();
        requests.len().saturating_sub(1)
    }

    pub(crate) fn answered(&self, place: usize, code: u16) {
        if let Some(request) = self.requests().get_mut(place) {
            request.code = Some(code);
        }
        self.changed.notify_all();
    }

    pub(crate) fn so_far(&self) -> Vec<Request> {
        self.requests().clone()
    }

    /// Waits until they are as wanted, and says whether they became so.
    pub(crate) fn become_so(&self, within: Duration, wanted: impl Fn(&[Request]) -> bool) -> bool {
        let waited = self.changed.wait_timeout_while(self.requests(), within, |so_far| !wanted(so_far));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
