//! A watch that is opened again, after a backoff, whenever it ends, until it is dropped.
//!
//! kube's `watcher` is not used: it opens the next watch without a pause when a server ends each one at once, hides the
//! server's bookmarks and `Retry-After`, holds each page of a list in memory, and makes the server read every agent's
//! list from etcd.

use super::error::ApiError;
use super::pod_requests::MAX_OBJECT;
use crate::log::Log;
use crate::retry::{Backoff, random};
use http_body_util::BodyExt;
use hyper::Request;
use kube::Client;
use kube::client::Body;
use kube::core::WatchEvent;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// The mean length of a watch in seconds: 5,000 agents with two watches each send six requests a second to open them
/// again.
const WATCH_SECONDS: f64 = 1_800.0;
/// The range of lengths around the mean, so that the agents do not all reconnect at the same time: 20 to 40 minutes.
const SPREAD_SECONDS: f64 = 1_200.0;
/// A server sends a bookmark every minute. A watch on which nothing arrives for this time is dead.
const SILENCE: Duration = Duration::from_secs(240);
/// After this many failures in a row the next watch begins from `first_version`: a server restored from a backup does
/// not know our resource version, and need not report that.
const MAX_FAILURES: u32 = 5;

/// A watch on which nothing has arrived for this time makes the agent unready. It is longer than a silent watch lasts, so
/// neither a slow server nor a token that is being replaced causes such a silence.
pub(crate) const STALE: Duration = Duration::from_secs(300);

/// A watch from this version begins with an event about each object as the server's cache has it.
pub(super) const ANY_VERSION: &str = "0";

/// The first wait between two watches.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// A watch that was open for a shorter time counts as a failure, however it ended.
const STEADY: Duration = Duration::from_secs(5);

/// What [`ApiError::Unreadable`] reports of an object longer than [`MAX_OBJECT`].
pub(crate) const TOO_LONG: &str = "has an object that is longer than the limit";

/// What a watch requests, and what handles its events.
pub(crate) trait Watched {
    type Object: DeserializeOwned;

    /// The longest wait between two watches.
    const LONGEST_WAIT: Duration;

    /// Returns the version from which a new watch begins, after a list if one is needed.
    fn first_version(&self, client: &Client, log: &Log) -> impl Future<Output = Result<String, ApiError>>;

    /// Requests the events after a version, for `seconds`.
    fn request(&self, version: &str, seconds: u32) -> Result<Request<Vec<u8>>, ApiError>;

    /// Handles the object of an event; returns its resource version.
    fn handle(&self, object: Self::Object, is_deleted: bool) -> Option<String>;

    /// Records that the server has sent something.
    fn record_event(&self);

    /// Records a bookmark: the server has sent every event up to now.
    fn record_bookmark(&self) {}

    /// Records that the watch is open.
    fn record_open(&self, log: &Log);

    /// Records why the watch ended or was not opened, and in how many milliseconds the next attempt is.
    fn record_failure(&self, fault: &ApiError, again_in_ms: u64, log: &Log);
}

pub(crate) struct Watch<'a, W> {
    pub(crate) client: Client,
    pub(crate) watched: W,
    pub(crate) log: &'a Log,
}

impl<W: Watched> Watch<'_, W> {
    /// Watches until the future is dropped.
    pub(crate) async fn run(self) -> Infallible {
        let (mut backoff, mut version) = (Backoff::new(FIRST_WAIT), None);
        loop {
            let mut opened_at = None;
            let fault = self.watch(&mut version, &mut opened_at).await.err();
            if is_success(opened_at.map(|at: Instant| at.elapsed())) {
                backoff.succeeded();
            }
            let retry_after = fault.as_ref().and_then(ApiError::retry_after);
            let wait = backoff.failed_at_server(W::LONGEST_WAIT, retry_after);
            if let Some(fault) = &fault {
                let again_in_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                self.watched.record_failure(fault, again_in_ms, self.log);
            }
            if backoff.failures() >= MAX_FAILURES || fault.is_some_and(|fault| has_expired(&fault)) {
                version = None;
            }
            sleep(wait).await;
        }
    }

    /// Opens one watch and follows it until it ends; sets `opened_at` when the server has opened it.
    async fn watch(
        &self,
        version: &mut Option<String>,
        opened_at: &mut Option<Instant>,
    ) -> Result<(), ApiError> {
        let from = match version {
            Some(version) => version.clone(),
            None => version.insert(self.watched.first_version(&self.client, self.log).await?).clone(),
        };
        let seconds = WATCH_SECONDS + SPREAD_SECONDS * (random() - 0.5);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousand seconds")]
        let request = self.watched.request(&from, seconds as u32)?;
        let response = self.client.send(request.map(Body::from)).await?;
        *opened_at = Some(Instant::now());
        self.watched.record_open(self.log);
        self.follow(response.into_body(), version).await
    }

    /// Reads events, one a line, until the server ends the watch.
    async fn follow(&self, mut body: Body, version: &mut Option<String>) -> Result<(), ApiError> {
        let mut lines = LineSplitter::default();
        while let Some(frame) = timeout(SILENCE, body.frame()).await.map_err(|_| ApiError::Late(SILENCE))? {
            // A broken connection counts as a watch that the server ended: a lasting problem fails the next request.
            let Ok(frame) = frame else { return Ok(()) };
            self.watched.record_event();
            lines.feed(&frame.into_data().unwrap_or_default());
            while let Some(line) = lines.next().map_err(|_| ApiError::Unreadable(TOO_LONG))? {
                if let Some(latest) = self.handle_line(&line)? {
                    *version = Some(latest);
                }
            }
        }
        Ok(())
    }

    /// Handles the event of a line; returns its resource version, if it has one.
    fn handle_line(&self, line: &[u8]) -> Result<Option<String>, ApiError> {
        let (object, is_deleted) = match serde_json::from_slice(line) {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (object, false),
            Ok(WatchEvent::Deleted(object)) => (object, true),
            Ok(WatchEvent::Bookmark(mark)) => {
                self.watched.record_bookmark();
                return Ok(Some(mark.metadata.resource_version));
            }
            Ok(WatchEvent::Error(status)) => return Err(kube::Error::Api(status).into()),
            // A malformed object must not stop the events of other objects. (kube ends the watch at such a line.)
            Err(_) => {
                self.log.warn("an event of a watch cannot be read", json!({}));
                return Ok(None);
            }
        };
        Ok(self.watched.handle(object, is_deleted))
    }
}

/// Reports whether the watch cannot continue from the last version: 410, or another 4xx status that is not about our
/// credentials and rights (401, 403) or our rate (429).
fn has_expired(fault: &ApiError) -> bool {
    fault.status().is_some_and(|status| (400..500).contains(&status) && ![401, 403, 429].contains(&status))
}

/// Reports whether a watch that was open for this time succeeded; `None` if the server did not open it.
fn is_success(open: Option<Duration>) -> bool {
    open.is_some_and(|open| open >= STEADY)
}

/// Splits bytes into lines of bounded length as they arrive.
#[derive(Debug, Default)]
struct LineSplitter {
    bytes: Vec<u8>,
    /// The number of bytes that are known to contain no newline.
    searched: usize,
}

/// A line exceeds the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LineTooLong;

impl LineSplitter {
    fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete line that is not empty; none until more bytes complete one.
    fn next(&mut self) -> Result<Option<Vec<u8>>, LineTooLong> {
        loop {
            let unsearched = self.bytes.get(self.searched..).unwrap_or_default();
            let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.bytes.len();
                return if self.searched > MAX_OBJECT { Err(LineTooLong) } else { Ok(None) };
            };
            let mut line: Vec<u8> = self.bytes.drain(..=self.searched.saturating_add(end)).collect();
            self.searched = 0;
            line.pop();
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
    }
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

    fn lines(text: &str, piece: usize) -> Vec<String> {
        let (mut lines, mut found) = (LineSplitter::default(), Vec::new());
        for bytes in text.as_bytes().chunks(piece) {
            lines.feed(bytes);
            while let Some(line) = lines.next().unwrap() {
                found.push(String::from_utf8(line).unwrap());
            }
        }
        found
    }

    #[test]
    fn lines_are_complete_wherever_the_bytes_are_split() {
        for piece in 1..20 {
            assert_eq!(lines("one\ntwo\n\nthree\nhal", piece), ["one", "two", "three"], "{piece}");
        }
        assert_eq!(lines("half", 1), Vec::<String>::new());
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut lines = LineSplitter::default();
        let piece = [b'x'; 1 << 20];
        let ended = (0..6).any(|_| {
            lines.feed(&piece);
            lines.next().is_err()
        });
        assert!(ended && lines.bytes.len() <= MAX_OBJECT + piece.len());
    }
}
