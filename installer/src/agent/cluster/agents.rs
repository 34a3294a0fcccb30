//! The node agents of a cluster: their pods, and the page `/status` of each, through the API server's proxy for pods.

use super::access::Cluster;
use super::client;
use super::error::ApiError;
use super::pod_requests::{Page, invalid_name};
use super::queries::{QueryError, run};
use crate::host::agent_status::NodeStatus;
use futures::stream::{self, StreamExt};
use http_body_util::{BodyExt, Limited};
use hyper::Request;
use hyper::body::Bytes;
use kube::Client;
use kube::api::ListParams;
use kube::client::Body;
use kube::core::Request as ApiRequest;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout_at};

/// The number of pods in a page of the list: some 12 KiB each.
const PAGE_SIZE: u32 = 100;
/// The limit of an agent's page.
const MAX_PAGE: usize = 256 << 10;
/// The deadline of one agent's page.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of pages that are requested at the same time.
const CONCURRENCY: usize = 64;
/// The annotation by which Prometheus finds the port; the page is there, too.
const PORT_ANNOTATION: &str = "prometheus.io/port";
const DEFAULT_PORT: u16 = 15014;

/// The label of the agents' DaemonSets and pods.
pub const AGENTS: &str = "app.kubernetes.io/name=gybe-node";

/// Which pods are agents.
#[derive(Debug, Clone)]
pub struct AgentSelector {
    pub namespace: String,
    /// A label selector.
    pub labels: String,
}

/// An agent's pod, and its page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterAgent {
    pub pod: String,
    /// Empty while the pod is not scheduled.
    pub node: String,
    /// Why the pod does not run; none if it runs.
    pub waits: Option<String>,
    /// What its page contains, or why it cannot be read.
    pub status: Result<NodeStatus, String>,
}

/// Reads the status of every agent.
///
/// # Errors
/// When the agents' pods cannot be listed in time. A page that cannot be read is the result of its agent.
pub fn agents(
    cluster: &Cluster,
    selector: &AgentSelector,
    until: Instant,
) -> Result<Vec<ClusterAgent>, QueryError> {
    run(async {
        let client = cluster.client().await?;
        let pods = timeout_at(until.into(), list(&client, selector)).await;
        let pods = pods.unwrap_or(Err(ApiError::Unreadable("is not complete before the deadline")))?;
        let read = |pod: AgentPod| {
            let client = client.clone();
            async move { agent(&client, &selector.namespace, pod, until).await }
        };
        let mut agents: Vec<_> = stream::iter(pods).map(read).buffer_unordered(CONCURRENCY).collect().await;
        agents.sort_by(|one, other| (&one.node, &one.pod).cmp(&(&other.node, &other.pod)));
        Ok(agents)
    })?
}

#[derive(Deserialize)]
struct AgentPods {
    #[serde(flatten)]
    page: Page,
    items: Vec<AgentPod>,
}

#[derive(Deserialize)]
pub(super) struct AgentPod {
    pub(super) metadata: PodMetadata,
    #[serde(default)]
    pub(super) spec: PodSpec,
    #[serde(default)]
    pub(super) status: PodStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodMetadata {
    pub(super) name: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    pub(super) node_name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    #[serde(rename = "hostIP")]
    pub(super) host_ip: String,
    phase: String,
    reason: String,
    container_statuses: Vec<ContainerStatus>,
    conditions: Vec<Condition>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    state: ContainerState,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Waiting>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Waiting {
    reason: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    message: String,
}

impl AgentPod {
    fn port(&self) -> u16 {
        let named = self.metadata.annotations.get(PORT_ANNOTATION);
        named.and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_PORT)
    }

    /// Returns why a container of the pod does not run.
    fn waits(&self) -> Option<String> {
        let PodStatus { phase, reason, container_statuses, conditions, host_ip: _ } = &self.status;
        let waiting = container_statuses.iter().find_map(|container| {
            Some(format!("container {} waits: {}", container.name, container.state.waiting.as_ref()?.reason))
        });
        let unscheduled = || {
            let condition =
                conditions.iter().find(|it| it.r#type == "PodScheduled" && it.status == "False")?;
            Some(format!("not scheduled: {}", condition.message))
        };
        let stopped = || match (phase.as_str(), reason.as_str()) {
            ("Running", _) => None,
            (phase, "") => Some(format!("its phase is {phase:?}")),
            (phase, reason) => Some(format!("its phase is {phase:?}: {reason}")),
        };
        waiting.or_else(unscheduled).or_else(stopped)
    }
}

/// Lists the agents' pods page by page, without those that are being deleted.
pub(super) async fn list(client: &Client, selector: &AgentSelector) -> Result<Vec<AgentPod>, ApiError> {
    let pods = ApiRequest::new(format!("/api/v1/namespaces/{}/pods", selector.namespace));
    let mut params = ListParams::default().labels(&selector.labels).limit(PAGE_SIZE);
    let mut found = Vec::new();
    loop {
        let request = pods.list(&params).map_err(|_| invalid_name())?;
        let AgentPods { page, items } = client::object(client, request).await?;
        found.extend(items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()));
        match page.next() {
            Some(next) => params.continue_token = Some(next.to_owned()),
            None => return Ok(found),
        }
    }
}

async fn agent(client: &Client, namespace: &str, pod: AgentPod, until: Instant) -> ClusterAgent {
    let waits = pod.waits();
    let status = match &waits {
        Some(why) => Err(why.clone()),
        None => {
            let before = until.min(Instant::now() + STATUS_TIMEOUT);
            let page = timeout_at(before.into(), status(client, namespace, &pod)).await;
            let late = |_| "it did not answer in time".to_owned();
            page.map_err(late).and_then(|page| page.map_err(|fault| fault.to_string()))
        }
    };
    ClusterAgent { pod: pod.metadata.name, node: pod.spec.node_name, waits, status }
}

async fn status(client: &Client, namespace: &str, pod: &AgentPod) -> Result<NodeStatus, ApiError> {
    let page = page(client, namespace, &format!("{}:{}", pod.metadata.name, pod.port()), "status").await?;
    serde_json::from_slice(&page).map_err(|_| ApiError::Unreadable("is not a status"))
}

/// Requests a page of a pod, `NAME:PORT`; again when the API server requests a later attempt.
pub(super) async fn page(client: &Client, namespace: &str, pod: &str, page: &str) -> Result<Bytes, ApiError> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/proxy/{page}");
    loop {
        let request = Request::get(&path).body(Body::empty()).map_err(|_| invalid_name())?;
        match client.send(request).await.map_err(ApiError::from) {
            Ok(response) => {
                let body = Limited::new(response.into_body(), MAX_PAGE).collect().await;
                return Ok(body.map_err(|fault| ApiError::broken(&*fault))?.to_bytes());
            }
            Err(fault) => match fault.retry_after() {
                Some(wait) => sleep(wait).await,
                None => return Err(fault),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: &Value) -> AgentPod {
        serde_json::from_value(json!({ "metadata": { "name": "a" }, "status": status })).unwrap()
    }

    #[test]
    fn a_pod_that_does_not_run_has_a_reason() {
        let scheduled = json!({ "type": "PodScheduled", "status": "False", "message": "too many pods" });
        for (status, waits) in [
            (
                json!({ "phase": "Running", "containerStatuses": [{ "name": "install", "state": { "running": {} } }] }),
                None,
            ),
            (
                json!({ "phase": "Pending", "containerStatuses": [
                    { "name": "install", "state": { "waiting": { "reason": "ImagePullBackOff" } } }
                ] }),
                Some("container install waits: ImagePullBackOff"),
            ),
            (json!({ "phase": "Pending", "conditions": [scheduled] }), Some("not scheduled: too many pods")),
            (json!({ "phase": "Failed", "reason": "Evicted" }), Some("its phase is \"Failed\": Evicted")),
            (json!({ "phase": "Unknown" }), Some("its phase is \"Unknown\"")),
        ] {
            assert_eq!(pod(&status).waits().as_deref(), waits, "{status}");
        }
    }
}
