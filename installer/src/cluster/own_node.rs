//! The agent's own node: its labels, its taints and the agent's condition, by a watch that a thread runs until the agent
//! ends.

use super::access::Cluster;
use super::error::ApiError;
use super::objects::Node;
use super::pod_requests;
use super::watch::{ANY_VERSION, Watch, Watched};
use super::watch_health::{WatchHealth, WatchMessages};
use crate::error::chain;
use crate::log::Log;
use futures::future::{Either, select};
use hyper::Request;
use kube::Client;
use serde_json::Value;
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
const MESSAGES: WatchMessages = WatchMessages {
    unwatched: "the agent's node is not watched",
    watched_again: "the agent's node is watched again",
    right: "the manifests of this version grant the agent the right to watch nodes",
};

/// A cluster, and a node of it.
#[derive(Debug, Clone)]
pub struct ClusterNode {
    pub cluster: Cluster,
    pub node: String,
}

/// The condition of a node that shows whether its agent is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCondition {
    pub status: ConditionStatus,
    /// In CamelCase.
    pub reason: String,
}

impl NodeCondition {
    pub const TYPE: &str = "GybeReady";
}

/// The status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
    /// Also any other text.
    Unknown,
}

impl ConditionStatus {
    fn parse(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }

    /// Returns the name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// What the agent needs of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedNode {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Value>,
    /// The condition that the agent writes.
    pub condition: Option<NodeCondition>,
    /// The resource version.
    pub version: String,
}

/// Our node as the API server has last sent it, shared between the thread that watches it and those that need it.
#[derive(Debug)]
pub(crate) struct OwnNode {
    observed: Mutex<Option<ObservedNode>>,
    changed: Condvar,
    health: WatchHealth,
}

impl Default for OwnNode {
    fn default() -> Self {
        Self { observed: Mutex::default(), changed: Condvar::new(), health: WatchHealth::new(&MESSAGES) }
    }
}

impl OwnNode {
    /// Returns the node; none before the API server has sent it. While the API server does not respond, the last state
    /// holds.
    pub(crate) fn read(&self) -> Option<ObservedNode> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the node; waits up to `timeout` while it is unknown.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<ObservedNode> {
        let observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(observed, timeout, |observed| observed.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Watches the node until `stop` is readable. Needs `watch` on nodes.
    pub(crate) fn follow(&self, home: &ClusterNode, stop: &PipeReader, log: &Log) -> io::Result<()> {
        let failed = |cause| self.health.report(cause, None, log);
        watch_until(home, stop, || WatchedNode { name: &home.node, own: self }, failed, log)
    }

    fn set(&self, observed: ObservedNode) {
        *self.observed.lock().unwrap_or_else(PoisonError::into_inner) = Some(observed);
        self.changed.notify_all();
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
            let condition = node.status.conditions.get(NodeCondition::TYPE);
            let condition = condition.map(|it| NodeCondition {
                status: ConditionStatus::parse(&it.status),
                reason: it.reason.clone(),
            });
            self.own.set(ObservedNode { labels, taints, condition, version: version.clone() });
        }
        Some(version)
    }

    fn record_event(&self) {
        self.own.health.record_event();
    }

    fn record_open(&self, log: &Log) {
        self.own.health.record_open(log);
    }

    fn record_failure(&self, fault: &ApiError, _again_in_ms: u64, log: &Log) {
        self.own.health.record_failure(fault, log);
    }
}
