//! The agent's own node: its labels and taints by a watch, which a thread runs until the agent ends.

use super::access::Cluster;
use super::error::ApiError;
use super::objects::Node;
use super::pod_requests;
use super::watch::{Watch, Watched};
use crate::error::chain;
use crate::log::Log;
use futures::future::{Either, select};
use hyper::Request;
use kube::Client;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, PipeReader};
use std::pin::pin;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::unix::pipe;
use tokio::runtime;
use tokio::time::sleep;

/// The wait while our credentials cannot be read.
const CREDENTIALS_RETRY: Duration = Duration::from_secs(60);
/// A watch from this version begins with an event about the node as the server's cache has it.
const ANY_VERSION: &str = "0";
const RIGHT: &str = "the manifests of this version grant the agent the right to watch nodes";

/// A cluster, and a node of it.
#[derive(Debug, Clone)]
pub struct ClusterNode {
    pub cluster: Cluster,
    pub node: String,
}

/// What the agent needs of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedNode {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Value>,
    /// The resource version.
    pub version: String,
}

/// Our node as the API server has last sent it, shared between the thread that watches it and those that need it.
#[derive(Debug, Default)]
pub(crate) struct OwnNode {
    state: Mutex<OwnNodeState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct OwnNodeState {
    observed: Option<ObservedNode>,
    /// Why the node is not watched, as it was logged.
    problem: Option<String>,
}

impl OwnNode {
    /// Returns the node; none before the API server has sent it. While the API server does not respond, the last state
    /// holds.
    pub(crate) fn read(&self) -> Option<ObservedNode> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).observed.clone()
    }

    /// Returns the node; waits up to `timeout` while it is unknown.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<ObservedNode> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, timeout, |state| state.observed.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.observed.clone()
    }

    /// Watches the node until `stop` is readable. Needs `watch` on nodes.
    pub(crate) fn follow(&self, home: &ClusterNode, stop: &PipeReader, log: &Log) -> io::Result<()> {
        let failed = |cause| self.report(cause, None, log);
        watch_until(home, stop, || WatchedNode { name: &home.node, own: self }, failed, log)
    }

    fn set(&self, observed: ObservedNode) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).observed = Some(observed);
        self.changed.notify_all();
    }

    /// Logs a problem once.
    fn report(&self, cause: String, hint: Option<&str>, log: &Log) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.problem.as_ref() != Some(&cause) {
            log.warn("the agent's node is not watched", json!({ "cause": cause, "hint": hint }));
            state.problem = Some(cause);
        }
    }
}

/// Watches until `stop` is readable; calls `failed` with the cause when our credentials cannot be read.
pub(super) fn watch_until<W: Watched>(
    home: &ClusterNode,
    stop: &PipeReader,
    watched: impl Fn() -> W,
    failed: impl Fn(String),
    log: &Log,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let watching = async {
        loop {
            match home.cluster.client().await {
                Ok(client) => drop(Watch { client, watched: watched(), log }.run().await),
                Err(why) => failed(chain(&why)),
            }
            sleep(CREDENTIALS_RETRY).await;
        }
    };
    let ended = runtime.block_on(async {
        let stop = pipe::Receiver::from_owned_fd(stop.try_clone()?.into())?;
        match select(pin!(watching), pin!(stop.readable())).await {
            Either::Right((stopped, _)) => stopped.map(drop),
            Either::Left(((), _)) => Ok(()),
        }
    });
    // Does not wait for a thread of the runtime that is still blocked in a DNS lookup.
    runtime.shutdown_background();
    ended
}

struct WatchedNode<'a> {
    name: &'a str,
    own: &'a OwnNode,
}

impl Watched for WatchedNode<'_> {
    type Object = Node;

    /// Longer than for pods: without the right to watch nodes every agent tries it for ever.
    const LONGEST_WAIT: Duration = Duration::from_secs(300);

    async fn first_version(&self, _client: &Client, _log: &Log) -> Result<String, ApiError> {
        std::future::ready(Ok(ANY_VERSION.to_owned())).await
    }

    fn request(&self, version: &str, seconds: u32) -> Result<Request<Vec<u8>>, ApiError> {
        pod_requests::watch_node(self.name, version, seconds)
    }

    fn handle(&self, node: Node, is_deleted: bool) -> Option<String> {
        let version = node.metadata.resource_version;
        // A node that was deleted keeps its last state: it may register again.
        if !is_deleted {
            let (labels, taints) = (node.metadata.labels, node.spec.taints);
            self.own.set(ObservedNode { labels, taints, version: version.clone() });
        }
        Some(version)
    }

    fn record_event(&self) {}

    fn record_open(&self, log: &Log) {
        let mut state = self.own.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.problem.take().is_some() {
            log.info("the agent's node is watched again", json!({}));
        }
    }

    fn record_failure(&self, fault: &ApiError, _again_in_ms: u64, log: &Log) {
        // 410 only means that the watch has to begin anew.
        if fault.status() != Some(410) {
            self.own.report(fault.to_string(), fault.is_forbidden().then_some(RIGHT), log);
        }
    }
}
