//! The labels of all namespaces of the cluster, by a watch, which a thread runs until the agent ends.

use super::error::ApiError;
use super::objects::Object;
use super::own_node::{ClusterNode, watch_until};
use super::pod_requests;
use super::watch::Watched;
use crate::log::Log;
use hyper::Request;
use kube::Client;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, PipeReader};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A watch from this version begins with an event about each namespace as the server's cache has it.
const ANY_VERSION: &str = "0";
const RIGHT: &str = "the manifests with ambient.enabled grant the agent the right to watch namespaces";

/// The labels as the API server has last sent them. While it does not respond, the last state holds.
#[derive(Debug, Default)]
pub(crate) struct NamespaceLabels {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    labels: BTreeMap<String, BTreeMap<String, String>>,
    /// Why the namespaces are not watched, as it was logged.
    problem: Option<String>,
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

    /// Returns why no namespace is known, in a sentence; none once one is, because every cluster has some.
    pub(crate) fn missing(&self) -> Option<String> {
        let state = self.lock();
        let why = state.problem.as_ref().map_or(String::new(), |why| format!(": {why}"));
        state.labels.is_empty().then(|| format!("the labels of the namespaces are not known yet{why}"))
    }

    /// Returns why changed labels are not known at present.
    pub(crate) fn unwatched(&self) -> Option<String> {
        self.lock().problem.clone()
    }

    /// Watches the namespaces until `stop` is readable. Needs `watch` on namespaces.
    pub(crate) fn follow(&self, home: &ClusterNode, stop: &PipeReader, log: &Log) -> io::Result<()> {
        let failed = |cause| self.report(cause, None, log);
        watch_until(home, stop, || WatchedNamespaces(self), failed, log)
    }

    fn set(&self, namespace: String, labels: Option<BTreeMap<String, String>>) {
        match labels {
            Some(labels) => self.lock().labels.insert(namespace, labels),
            None => self.lock().labels.remove(&namespace),
        };
        self.changed.notify_all();
    }

    /// Logs a problem once.
    fn report(&self, cause: String, hint: Option<&str>, log: &Log) {
        let mut state = self.lock();
        if state.problem.as_ref() != Some(&cause) {
            log.warn(UNWATCHED, json!({ "cause": cause, "hint": hint }));
            state.problem = Some(cause);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const UNWATCHED: &str = "gybe node: the namespaces are not watched; their last labels count";

struct WatchedNamespaces<'a>(&'a NamespaceLabels);

impl Watched for WatchedNamespaces<'_> {
    type Object = Object;

    const LONGEST_WAIT: Duration = Duration::from_secs(30);

    async fn first_version(&self, _client: &Client, _log: &Log) -> Result<String, ApiError> {
        std::future::ready(Ok(ANY_VERSION.to_owned())).await
    }

    fn request(&self, version: &str, seconds: u32) -> Result<Request<Vec<u8>>, ApiError> {
        pod_requests::watch_namespaces(version, seconds)
    }

    fn handle(&self, namespace: Object, is_deleted: bool) -> Option<String> {
        let metadata = namespace.metadata;
        self.0.set(metadata.name, (!is_deleted).then_some(metadata.labels));
        Some(metadata.resource_version)
    }

    fn record_event(&self) {}

    fn record_open(&self, log: &Log) {
        if self.0.lock().problem.take().is_some() {
            log.info("gybe node: the namespaces are watched again", json!({}));
        }
    }

    fn record_failure(&self, fault: &ApiError, _again_in_ms: u64, log: &Log) {
        // 410 only means that the watch has to begin anew.
        if fault.status() != Some(410) {
            self.0.report(fault.to_string(), fault.is_forbidden().then_some(RIGHT), log);
        }
    }
}
