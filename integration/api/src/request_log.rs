//! The log of received requests.

use crate::request::ApiRequest;
use crate::tokens::Bearer;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The HTTP method.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query as received; may be empty.
    pub query: String,
    /// The body of a request that writes; else empty.
    pub body: String,
    /// The token that came with it.
    pub bearer: Bearer,
    /// The response's status; `None` until the response begins.
    pub code: Option<u16>,
}

impl Request {
    /// Reports whether it starts a watch.
    pub fn is_watch(&self) -> bool {
        self.query.split('&').any(|pair| matches!(pair, "watch=1" | "watch=true"))
    }

    /// Returns the right that it needs: API group, resource and verb of RBAC; none for a path that is no resource.
    pub fn right(&self) -> Option<(String, String, &'static str)> {
        let method = self.method.parse().ok()?;
        let request = ApiRequest::parse(&method, &self.path, &self.query)?;
        Some((request.group.clone(), request.rbac_resource(), request.verb.name()))
    }

    /// Reports whether it reads a list of pods or a page of one.
    pub fn is_list_of_pods(&self) -> bool {
        self.path.ends_with("/pods") && !self.is_watch()
    }
}

/// All requests of one server in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    requests: Mutex<Vec<Request>>,
    changed: Condvar,
}

impl RequestLog {
    /// Appends a request and returns its index.
    pub(crate) fn record(&self, request: Request) -> usize {
        let mut requests = self.requests();
        requests.push(request);
        self.changed.notify_all();
        requests.len().saturating_sub(1)
    }

    pub(crate) fn set_code(&self, index: usize, code: u16) {
        if let Some(request) = self.requests().get_mut(index) {
            request.code = Some(code);
        }
        self.changed.notify_all();
    }

    pub(crate) fn snapshot(&self) -> Vec<Request> {
        self.requests().clone()
    }

    /// Waits until the condition holds; returns `false` when it does not hold in time.
    pub(crate) fn wait_until(&self, within: Duration, condition: impl Fn(&[Request]) -> bool) -> bool {
        let waited =
            self.changed.wait_timeout_while(self.requests(), within, |requests| !condition(requests));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
