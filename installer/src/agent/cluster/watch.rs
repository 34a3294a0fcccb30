//! The watch of this node's pods: a list, and then events.
//!
//! kube's `watcher` is not used. When a server ends each watch at once, it opens the next one without a pause. It hides
//! the server's bookmarks and `Retry-After`, holds each page of a list in memory, and makes the server read every
//! agent's list from etcd.

use super::error::ApiError;
use super::line_splitter::LineSplitter;
use super::list_parser::ListParser;
use super::pod_cache::{CachedPod, PodCache, PodsByName, key};
use super::pod_requests::{self, Page, Pod};
use crate::log::Log;
use crate::retry::{Backoff, random};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use kube::core::WatchEvent;
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// The length of a watch in seconds, and the spread around it, so that the agents do not all reconnect at the same
/// time. kube allows less than 295 seconds.
const WATCH_SECONDS: f64 = 240.0;
const SPREAD_SECONDS: f64 = 50.0;
/// The server ends a watch itself. A watch that it has not ended after this time is dead.
const GRACE: Duration = Duration::from_secs(10);
/// How long the next part of a list may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// After this many failures in a row the pods are listed again: a server restored from a backup does not know our
/// resource version, and need not report that.
const MAX_FAILURES: u32 = 5;

/// The waits between two watches.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A watch that was open for less than this did not succeed, however it ended.
const STEADY: Duration = Duration::from_secs(5);

const TOO_LONG: &str = "has an object that is longer than the limit";

pub(super) struct Watch {
    pub(super) client: Client,
    pub(super) node: String,
    pub(super) cache: Arc<PodCache>,
    pub(super) log: Log,
}

impl Watch {
    /// Lists and watches the pods until the future is dropped.
    pub(super) async fn run(self) -> Infallible {
        let (mut backoff, mut version) = (Backoff::new(FIRST_WAIT), None);
        loop {
            let mut opened = None;
            let fault = self.watch(&mut version, &mut opened).await.err();
            if is_success(opened.map(|at: Instant| at.elapsed())) {
                backoff.succeeded();
            }
            let requested = fault.as_ref().and_then(ApiError::retry_after);
            let wait = backoff.failed_at_server(LONGEST_WAIT, requested);
            if let Some(fault) = &fault {
                self.report(fault, wait);
            }
            if backoff.failures() >= MAX_FAILURES || fault.is_some_and(|fault| has_expired(&fault)) {
                version = None;
            }
            sleep(wait).await;
        }
    }

    fn report(&self, fault: &ApiError, wait: Duration) {
        // 410 only means that the pods have to be listed again.
        let expected = fault.status() == Some(410) && self.cache.state().synced;
        if expected {
            return;
        }
        self.cache.count_error(fault);
        if self.cache.failed(fault) {
            let (cause, wait) = (fault.to_string(), wait.as_millis());
            let pods = self.cache.state().pods;
            let fields = json!({ "cause": cause, "again_in_ms": u64::try_from(wait).ok(), "pods": pods });
            self.log.warn("gybe node: pods are not watched; queries about cached pods are served", fields);
        }
    }

    /// Lists the pods where there is no version to continue from, and watches them until the watch ends. `opened` is
    /// set when the watch is open.
    async fn watch(
        &self,
        version: &mut Option<String>,
        opened: &mut Option<Instant>,
    ) -> Result<(), ApiError> {
        let from = match version {
            Some(version) => version.clone(),
            None => version.insert(self.list().await?).clone(),
        };
        let seconds = WATCH_SECONDS + SPREAD_SECONDS * (random() - 0.5);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some hundred seconds")]
        let request = pod_requests::watch(&self.node, &from, seconds as u32)?;
        let response = self.client.send(request.map(Body::from)).await?;
        *opened = Some(Instant::now());
        if self.cache.opened() {
            self.log.info("gybe node: pods are watched again", json!({}));
        }
        let timeout = Duration::from_secs_f64(seconds) + GRACE;
        self.follow(response.into_body(), timeout, version).await
    }

    /// Reads events, one a line, until the server ends the watch.
    async fn follow(
        &self,
        mut body: Body,
        limit: Duration,
        version: &mut Option<String>,
    ) -> Result<(), ApiError> {
        let mut lines = LineSplitter::default();
        while let Some(frame) = timeout(limit, body.frame()).await.map_err(|_| ApiError::Late(limit))? {
            // A broken connection is handled like a watch that the server ended: if there is a problem, the next
            // request fails.
            let Ok(frame) = frame else { return Ok(()) };
            self.cache.record_event();
            lines.feed(&frame.into_data().unwrap_or_default());
            while let Some(line) = lines.next().map_err(|_| ApiError::Unreadable(TOO_LONG))? {
                if let Some(latest) = self.event(&line)? {
                    *version = Some(latest);
                }
            }
        }
        Ok(())
    }

    /// Handles the event of a line; returns its resource version.
    fn event(&self, line: &[u8]) -> Result<Option<String>, ApiError> {
        match serde_json::from_slice(line) {
            Ok(event) => self.handle(event),
            // A malformed object must not stop the events of other pods. (kube ends the watch at such a line.)
            Err(_) => {
                self.log.warn("gybe node: an event about a pod cannot be read", json!({}));
                Ok(None)
            }
        }
    }

    /// Handles an event; returns its resource version.
    fn handle(&self, event: WatchEvent<Pod>) -> Result<Option<String>, ApiError> {
        let (pod, is_deleted) = match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
            WatchEvent::Deleted(pod) => (pod, true),
            WatchEvent::Bookmark(mark) => return Ok(Some(mark.metadata.resource_version)),
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        };
        let version = Some(pod.resource_version().to_owned()).filter(|version| !version.is_empty());
        match pod.facts() {
            Ok(facts) if is_deleted => self.cache.remove(&facts),
            Ok(facts) => self.cache.insert(facts),
            // A pod without containers has no facts.
            Err(_) => {}
        }
        Ok(version)
    }

    /// Lists the pods page by page; returns the resource version from which they can be watched.
    async fn list(&self) -> Result<String, ApiError> {
        let (mut found, mut next) = (PodsByName::new(), None);
        loop {
            let request = pod_requests::list(&self.node, next.as_deref())?;
            let response = self.client.send(request.map(Body::from)).await?;
            let page = self.page(response.into_body(), &mut found).await?;
            next = page.next().map(str::to_owned);
            if next.is_none() {
                let (version, pods) = (page.version()?, found.len());
                if self.cache.replace(found) {
                    self.log.info("gybe node: pods are known", json!({ "pods": pods }));
                }
                return Ok(version);
            }
        }
    }

    async fn page(&self, mut body: Body, found: &mut PodsByName) -> Result<Page, ApiError> {
        let mut list = ListParser::default();
        while let Some(frame) =
            timeout(LIST_TIMEOUT, body.frame()).await.map_err(|_| ApiError::Late(LIST_TIMEOUT))?
        {
            let bytes = frame.map_err(ApiError::from)?.into_data().unwrap_or_default();
            self.cache.record_event();
            let cut = list.feed(&bytes, |item| {
                let facts = serde_json::from_slice::<Pod>(item).ok().and_then(|pod| pod.facts().ok());
                facts.iter().for_each(|facts| self.cache.insert_before_sync(facts));
                found.extend(facts.map(|facts| (key(&facts), CachedPod::new(facts))));
            });
            cut.map_err(|_| ApiError::Unreadable(TOO_LONG))?;
        }
        serde_json::from_slice(&list.rest()).map_err(|_| ApiError::Unreadable("is not a list"))
    }
}

/// Reports whether the watch cannot continue from the last version: 410, or any other status that concerns the request,
/// not us or the server's health.
fn has_expired(fault: &ApiError) -> bool {
    fault.status().is_some_and(|status| (400..500).contains(&status) && ![401, 403, 429].contains(&status))
}

/// Reports whether a watch that was open for this time succeeded; none: the server did not open it.
fn is_success(open: Option<Duration>) -> bool {
    open.is_some_and(|open| open >= STEADY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_was_open_for_less_than_five_seconds_does_not_reset_the_backoff() {
        for open in [None, Some(Duration::ZERO), Some(Duration::from_millis(4_999))] {
            assert!(!is_success(open), "{open:?}");
        }
        assert!(is_success(Some(STEADY)));
    }
}
