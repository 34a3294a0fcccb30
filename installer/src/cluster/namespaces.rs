//! The labels of all namespaces of the cluster, by a watch, which a thread runs until the agent ends.

use super::error::ApiError;
use super::objects::Object;
use super::own_node::{ClusterNode, watch_until};
use super::pod_requests;
use super::watch::{ANY_VERSION, STALE, Watched};
use super::watch_health::{WatchHealth, WatchMessages};
use crate::log::Log;
use hyper::Request;
use kube::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, PipeReader};
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MESSAGES: WatchMessages = WatchMessages {
    unwatched: "gybe node: the namespaces are not watched; their last labels count",
    watched_again: "gybe node: the namespaces are watched again",
    right: "the manifests with ambient.enabled grant the agent the right to watch namespaces",
};

/// The labels as the API server has last sent them. While it does not respond, the last state holds.
#[derive(Debug)]
pub(crate) struct NamespaceLabels {
    state: Mutex<State>,
    changed: Condvar,
    health: WatchHealth,
}

#[derive(Debug, Default)]
struct State {
    labels: BTreeMap<String, BTreeMap<String, String>>,
    /// Those of an earlier watch that the one since has not sent yet. What it has not sent before its first bookmark was
    /// deleted meanwhile.
    unconfirmed: BTreeSet<String>,
    /// Whether this watch has sent every namespace. Before, it could not go on from the version of an event: the server
    /// sends the existing objects in another order.
    is_whole: bool,
}

impl Default for NamespaceLabels {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), health: WatchHealth::new(&MESSAGES) }
    }
}

impl NamespaceLabels {
    /// Returns the labels of a namespace; none while it is not known.
    pub(crate) fn of(&self, namespace: &str) -> Option<BTreeMap<String, String>> {
        self.lock().labels.get(namespace).cloned()
    }

    /// [`NamespaceLabels::of`]; waits for a namespace that is not known yet, at most until `until`.
    pub(crate) fn wait_for(&self, namespace: &str, until: Instant) -> Option<BTreeMap<String, String>> {
        let left = until.saturating_duration_since(Instant::now());
        let waited =
            self.changed.wait_timeout_while(self.lock(), left, |state| !state.labels.contains_key(namespace));
        waited.unwrap_or_else(PoisonError::into_inner).0.labels.get(namespace).cloned()
    }

    /// Returns why the labels are not known, or may be old, in a sentence; every cluster has namespaces.
    pub(crate) fn missing(&self) -> Option<String> {
        let (silent, is_empty) = (self.health.silent(), self.lock().labels.is_empty());
        let why = self.unwatched().map_or(String::new(), |why| format!(": {why}"));
        match is_empty {
            true => Some(format!("the labels of the namespaces are not known yet{why}")),
            false if silent > STALE => Some(format!(
                "the API server has sent nothing about namespaces for {} s{why}",
                silent.as_secs()
            )),
            false => None,
        }
    }

    /// Returns why changed labels are not known at present.
    pub(crate) fn unwatched(&self) -> Option<String> {
        self.health.problem()
    }

    /// Watches the namespaces until `stop` is readable. Needs `watch` on namespaces.
    pub(crate) fn follow(&self, home: &ClusterNode, stop: &PipeReader, log: &Log) -> io::Result<()> {
        let failed = |cause| self.health.report(cause, None, log);
        watch_until(home, stop, || WatchedNamespaces(self), failed, log)
    }

    /// Sets the labels of a namespace; none if it was deleted. Reports whether the watch has sent every namespace.
    fn set(&self, namespace: String, labels: Option<BTreeMap<String, String>>) -> bool {
        let mut state = self.lock();
        state.unconfirmed.remove(&namespace);
        match labels {
            Some(labels) => state.labels.insert(namespace, labels),
            None => state.labels.remove(&namespace),
        };
        self.changed.notify_all();
        state.is_whole
    }

    /// Records that a watch begins with all namespaces.
    fn restart(&self) {
        let mut state = self.lock();
        state.unconfirmed = state.labels.keys().cloned().collect();
        state.is_whole = false;
    }

    /// Records that the watch has sent every namespace.
    fn complete(&self) {
        let mut state = self.lock();
        state.is_whole = true;
        for deleted in mem::take(&mut state.unconfirmed) {
            state.labels.remove(&deleted);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct WatchedNamespaces<'a>(&'a NamespaceLabels);

impl Watched for WatchedNamespaces<'_> {
    type Object = Object;

    const LONGEST_WAIT: Duration = Duration::from_secs(30);

    async fn first_version(&self, _client: &Client, _log: &Log) -> Result<String, ApiError> {
        std::future::ready(Ok(ANY_VERSION.to_owned())).await
    }

    fn request(&self, version: &str, seconds: u32) -> Result<Request<Vec<u8>>, ApiError> {
        // Also when a watch ended before its first bookmark.
        if version == ANY_VERSION {
            self.0.restart();
        }
        pod_requests::watch_namespaces(version, seconds)
    }

    fn handle(&self, namespace: Object, is_deleted: bool) -> Option<String> {
        let metadata = namespace.metadata;
        let is_whole = self.0.set(metadata.name, (!is_deleted).then_some(metadata.labels));
        is_whole.then_some(metadata.resource_version)
    }

    fn record_event(&self) {
        self.0.health.record_event();
    }

    fn record_bookmark(&self) {
        self.0.complete();
    }

    fn record_open(&self, log: &Log) {
        self.0.health.record_open(log);
    }

    fn record_failure(&self, fault: &ApiError, _again_in_ms: u64, log: &Log) {
        self.0.health.record_failure(fault, log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("mode".to_owned(), value.to_owned())])
    }

    #[test]
    fn labels_are_missing_while_none_is_known_and_when_the_watch_is_silent_for_long() {
        let (namespaces, log) = (NamespaceLabels::default(), Log::default());
        assert_eq!(namespaces.missing().unwrap(), "the labels of the namespaces are not known yet");
        namespaces.set("shop".to_owned(), Some(labels("none")));
        assert_eq!(namespaces.missing(), None);
        // A watch that is refused is silent.
        namespaces.health.report("403".to_owned(), None, &log);
        assert_eq!(namespaces.missing(), None, "for a moment");
        namespaces.health.age(STALE + Duration::from_secs(1));
        let missing = namespaces.missing().unwrap();
        assert_eq!(missing, "the API server has sent nothing about namespaces for 301 s: 403");
        namespaces.health.record_open(&log);
        assert_eq!(namespaces.missing(), None);
    }

    #[test]
    fn a_namespace_that_was_deleted_while_no_watch_was_open_is_gone_at_the_first_bookmark() {
        let namespaces = NamespaceLabels::default();
        let watched = WatchedNamespaces(&namespaces);
        let is_known = |name| namespaces.of(name).is_some();
        watched.request(ANY_VERSION, 1).unwrap();
        for name in ["shop", "deleted"] {
            assert!(
                !namespaces.set(name.to_owned(), Some(labels("ambient"))),
                "the watch goes on from no event"
            );
        }
        watched.record_bookmark();
        assert!(is_known("shop") && is_known("deleted"));
        watched.request(ANY_VERSION, 1).unwrap();
        assert!(is_known("shop") && is_known("deleted"), "while the API server does not respond");
        // This watch ends before its bookmark, and the namespace is deleted before the next one.
        namespaces.set("deleted".to_owned(), Some(labels("ambient")));
        watched.request(ANY_VERSION, 1).unwrap();
        assert!(!namespaces.set("shop".to_owned(), Some(labels("none"))));
        watched.record_bookmark();
        assert!(namespaces.of("shop") == Some(labels("none")) && !is_known("deleted"));
        assert!(namespaces.set("new".to_owned(), Some(labels("none"))), "the watch goes on from this event");
    }
}
