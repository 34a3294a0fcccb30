//! The watch of this node's pods: a list, then what happens from there on, for ever.
//!
//! It is ours and not kube's `watcher`, because that opens a watch which a server ends at once again
//! and again without a pause, keeps the server's bookmarks and wishes for patience to itself, has each
//! page of a list in memory whole, and reads every agent's list from etcd.

use super::error::ApiError;
use super::items::Items;
use super::known::{Held, Known, Pods, key};
use super::lines::Lines;
use super::pods::{self, Page, Pod};
use crate::log::Journal;
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

/// How long a watch lives, and so much more or less, lest all agents come back at once. kube allows
/// less than 295 seconds.
const LIFE: f64 = 240.0;
const SPREAD: f64 = 50.0;
/// The server ends a watch itself. One that it has not ended by then is dead.
const GRACE: Duration = Duration::from_secs(10);
/// Until more of a list comes.
const MORE: Duration = Duration::from_secs(30);
/// After so many failures in a row the list is begun anew: a server that was restored from a backup
/// knows no version of ours, and need not say so.
const BEGIN_ANEW: u32 = 5;

/// The waits between two watches.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A watch that was open for less than this did not succeed, however it ended.
const STEADY: Duration = Duration::from_secs(5);

const TOO_LONG: &str = "has an object that is longer than any";

/// The watch, and what it fills.
pub(super) struct Watch {
    pub(super) client: Client,
    pub(super) node: String,
    pub(super) known: Arc<Known>,
    pub(super) journal: Journal,
}

impl Watch {
    /// Goes on until it is dropped.
    pub(super) async fn run(self) -> Infallible {
        let (mut backoff, mut version) = (Backoff::new(FIRST_WAIT), None);
        loop {
            let mut opened = None;
            let fault = self.live(&mut version, &mut opened).await.err();
            if is_success(opened.map(|at: Instant| at.elapsed())) {
                backoff.succeeded();
            }
            let requested = fault.as_ref().and_then(ApiError::retry_after);
            let wait = backoff.failed_at_server(LONGEST_WAIT, requested);
            if let Some(fault) = &fault {
                self.lose(fault, wait);
            }
            if backoff.failures() >= BEGIN_ANEW || fault.is_some_and(|fault| has_expired(&fault)) {
                version = None;
            }
            sleep(wait).await;
        }
    }

    fn lose(&self, fault: &ApiError, wait: Duration) {
        // 410 is how a server says that it is time for a new list, and no trouble where there was one.
        let expected = fault.status() == Some(410) && self.known.state().synced;
        if expected {
            return;
        }
        self.known.count_error(fault);
        if self.known.lost(fault) {
            let (cause, wait) = (fault.to_string(), wait.as_millis());
            let pods = self.known.state().pods;
            let more = json!({ "cause": cause, "again_in_ms": u64::try_from(wait).ok(), "pods": pods });
            self.journal.tell("warn", "gybe node: pods are not watched; those known are answered", more);
        }
    }

    /// One life of the watch, with a list before it where there is no version to go on from; tells when
    /// it was opened, if it was.
    async fn live(&self, version: &mut Option<String>, opened: &mut Option<Instant>) -> Result<(), ApiError> {
        let from = match version {
            Some(version) => version.clone(),
            None => version.insert(self.list().await?).clone(),
        };
        let seconds = LIFE + SPREAD * (random() - 0.5);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some hundred seconds")]
        let request = pods::watch(&self.node, &from, seconds as u32)?;
        let answer = self.client.send(request.map(Body::from)).await?;
        *opened = Some(Instant::now());
        if self.known.open() {
            self.journal.tell("info", "gybe node: pods are watched again", json!({}));
        }
        let patience = Duration::from_secs_f64(seconds) + GRACE;
        self.follow(answer.into_body(), patience, version).await
    }

    /// Events, one a line, until the server ends them.
    async fn follow(
        &self,
        mut body: Body,
        patience: Duration,
        version: &mut Option<String>,
    ) -> Result<(), ApiError> {
        let mut lines = Lines::default();
        while let Some(frame) = timeout(patience, body.frame()).await.map_err(|_| ApiError::Late(patience))? {
            // Broken off or ended, it comes to the same: what is wrong, if anything is, the next one tells.
            let Ok(frame) = frame else { return Ok(()) };
            self.known.heard();
            lines.feed(&frame.into_data().unwrap_or_default());
            while let Some(line) = lines.next().map_err(|_| ApiError::Nonsense(TOO_LONG))? {
                if let Some(now) = self.told(&line)? {
                    *version = Some(now);
                }
            }
        }
        Ok(())
    }

    /// Takes note of what a line says; tells the version it came with.
    fn told(&self, line: &[u8]) -> Result<Option<String>, ApiError> {
        match serde_json::from_slice(line) {
            Ok(event) => self.happened(event),
            // One object that is none of its kind must not keep the others from being seen. (kube takes
            // any such line for a refusal, and ends there.)
            Err(_) => {
                self.journal.tell("warn", "gybe node: an event about a pod cannot be read", json!({}));
                Ok(None)
            }
        }
    }

    /// Takes note of an event; tells its version.
    fn happened(&self, event: WatchEvent<Pod>) -> Result<Option<String>, ApiError> {
        let (pod, gone) = match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
            WatchEvent::Deleted(pod) => (pod, true),
            WatchEvent::Bookmark(mark) => return Ok(Some(mark.metadata.resource_version)),
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        };
        let version = Some(pod.resource_version().to_owned()).filter(|version| !version.is_empty());
        match pod.facts() {
            Ok(facts) if gone => self.known.forget(&facts),
            Ok(facts) => self.known.hold(facts),
            // A pod that runs nothing asks for nothing.
            Err(_) => {}
        }
        Ok(version)
    }

    /// The pods as they are, page after page; tells from which version on they can be watched.
    async fn list(&self) -> Result<String, ApiError> {
        let (mut found, mut next) = (Pods::new(), None);
        loop {
            let request = pods::list(&self.node, next.as_deref())?;
            let answer = self.client.send(request.map(Body::from)).await?;
            let page = self.page(answer.into_body(), &mut found).await?;
            next = page.next().map(str::to_owned);
            if next.is_none() {
                let (version, pods) = (page.version()?, found.len());
                if self.known.replace(found) {
                    self.journal.tell("info", "gybe node: pods are known", json!({ "pods": pods }));
                }
                return Ok(version);
            }
        }
    }

    async fn page(&self, mut body: Body, found: &mut Pods) -> Result<Page, ApiError> {
        let mut items = Items::default();
        while let Some(frame) = timeout(MORE, body.frame()).await.map_err(|_| ApiError::Late(MORE))? {
            let bytes = frame.map_err(ApiError::from)?.into_data().unwrap_or_default();
            self.known.heard();
            let cut = items.feed(&bytes, |item| {
                let facts = serde_json::from_slice::<Pod>(item).ok().and_then(|pod| pod.facts().ok());
                facts.iter().for_each(|facts| self.known.hold_first(facts));
                found.extend(facts.map(|facts| (key(&facts), Held::of(facts))));
            });
            cut.map_err(|_| ApiError::Nonsense(TOO_LONG))?;
        }
        serde_json::from_slice(&items.rest()).map_err(|_| ApiError::Nonsense("is no list"))
    }
}

/// Whether it makes no sense to go on from where we were: 410, or any other answer that speaks of the
/// question and not of us or of the server's health.
fn has_expired(fault: &ApiError) -> bool {
    fault.status().is_some_and(|status| (400..500).contains(&status) && ![401, 403, 429].contains(&status))
}

/// Reports whether a watch succeeded that was open for this time; none was never opened, however long its refusal took.
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
