//! The node agents of a cluster: their pods, and the page `/status` of each, through the API server's proxy for pods.

use crate::agent_status::{AgentStatus, read_page};
use crate::cluster::error::ApiError;
use crate::cluster::objects::{Condition, ContainerStatus, Node, ObjectList, Pod, PodStatus};
use crate::cluster::pod_requests::{invalid_name, node};
use crate::cluster::queries::{QueryError, run};
use crate::cluster::{Cluster, client};
use futures::stream::{self, StreamExt};
use http_body_util::{BodyExt, Limited};
use hyper::Request;
use hyper::body::Bytes;
use kube::Client;
use kube::api::ListParams;
use kube::client::Body;
use kube::core::Request as ApiRequest;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout_at};

/// The number of pods in a page of the list: some 12 KiB each.
const PAGE_SIZE: u32 = 100;
/// The limit of an agent's page.
const MAX_PAGE: usize = 256 << 10;
/// The deadline of one agent's page, and of one node.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of pages that are requested at the same time.
const CONCURRENCY: usize = 64;
/// The container of the agent.
const CONTAINER: &str = "install";
/// The container whose commands run on the host.
const REPAIR: &str = "repair";
/// The variable with the port of the page.
const PORT: &str = "MONITORING_PORT";
const DEFAULT_PORT: u16 = 15014;

/// The label of the agents' DaemonSets and pods.
pub(crate) const AGENTS: &str = "app.kubernetes.io/name=gybe-node";

/// Which pods are agents.
#[derive(Debug, Clone)]
pub(crate) struct AgentSelector {
    pub namespace: String,
    /// A label selector.
    pub labels: String,
}

/// An agent's pod, and its page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterAgent {
    pub pod: String,
    /// Empty while the pod is not scheduled.
    pub node: String,
    /// Why the pod, or a container of it, does not run; none if all run.
    pub waits: Option<String>,
    /// Whether it has the container `repair`, whose commands run on the host.
    pub has_repair: bool,
    pub page: StatusPage,
    pub readiness: Readiness,
}

/// What the conditions `Ready` of an agent's pod and of its node are. While a kubelet is hung, the node's controller
/// sets both, and the agent's own page may still report that it is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// The pod is ready, or has no such condition yet.
    Ready,
    /// The pod is not, and the node is ready or may not be read. The condition's message.
    PodNotReady(String),
    /// The node is not ready: its condition, or that it does not exist.
    NodeNotReady(String),
}

/// The page of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StatusPage {
    Read(Box<AgentStatus>),
    /// The agent does not run.
    NotRunning,
    /// The agent serves none: its port is 0.
    NotServed,
    /// Why the page cannot be read.
    Failed(ApiError),
}

impl StatusPage {
    #[must_use]
    pub(crate) fn status(&self) -> Option<&AgentStatus> {
        match self {
            Self::Read(status) => Some(status),
            _ => None,
        }
    }
}

/// Reads the status of every agent.
///
/// # Errors
/// When the agents' pods cannot be listed in time, or the API server refuses our identity or our rights to every page.
/// Another page that cannot be read is the result of its agent.
pub(crate) fn agents(
    cluster: &Cluster,
    selector: &AgentSelector,
    until: Instant,
) -> Result<Vec<ClusterAgent>, QueryError> {
    run(async {
        let client = cluster.client().await?;
        let pods = timeout_at(until.into(), list(&client, selector)).await;
        let pods = pods.unwrap_or(Err(ApiError::Unreadable("is not complete before the deadline")))?;
        let read = |pod: Pod| {
            let client = client.clone();
            async move { agent(&client, &selector.namespace, pod, until).await }
        };
        let mut agents: Vec<_> = stream::iter(pods).map(read).buffer_unordered(CONCURRENCY).collect().await;
        if let Some(fault) = refusal(&agents) {
            return Err(fault.clone().into());
        }
        agents.sort_by(|one, other| (&one.node, &one.pod).cmp(&(&other.node, &other.pod)));
        Ok(agents)
    })?
}

/// Returns why the API server shows none of the pages: it refuses every request for one.
fn refusal(agents: &[ClusterAgent]) -> Option<&ApiError> {
    let was_requested = |page: &&StatusPage| matches!(page, StatusPage::Read(_) | StatusPage::Failed(_));
    let mut faults = agents.iter().map(|agent| &agent.page).filter(was_requested).map(|page| match page {
        StatusPage::Failed(fault) if fault.is_forbidden() => Some(fault),
        _ => None,
    });
    let first = faults.next()??;
    faults.all(|fault| fault.is_some()).then_some(first)
}

impl Pod {
    /// Returns the port of a page of the agent, which this variable sets; none if it serves none.
    pub(super) fn port(&self, variable: &str, default: u16) -> Option<u16> {
        let agent = self.spec.containers.iter().find(|container| container.name == CONTAINER);
        let variable = agent.and_then(|agent| agent.env.iter().find(|it| it.name == variable));
        match variable.and_then(|variable| variable.value.parse::<i64>().ok()) {
            Some(port) => u16::try_from(port).ok().filter(|port| *port > 0),
            None => Some(default),
        }
    }

    /// Returns why the pod, or a container of it, does not run.
    fn waits(&self) -> Option<String> {
        // The other containers wait for an init container.
        let PodStatus { init_container_statuses, container_statuses, .. } = &self.status;
        let waiting = init_container_statuses.iter().chain(container_statuses).find_map(|container| {
            Some(format!("container {} waits: {}", container.name, container.state.waiting.as_ref()?.reason))
        });
        waiting.or_else(|| self.stopped())
    }

    /// Reports whether the pod runs, and the agent's container does not wait in it.
    fn runs_agent(&self) -> bool {
        let waits =
            |container: &ContainerStatus| container.name == CONTAINER && container.state.waiting.is_some();
        self.stopped().is_none() && !self.status.container_statuses.iter().any(waits)
    }

    /// Returns why the pod does not run.
    fn stopped(&self) -> Option<String> {
        let PodStatus { phase, reason, .. } = &self.status;
        let unscheduled = self.status.conditions.get("PodScheduled").filter(|it| it.status == "False");
        match (phase.as_str(), reason.as_str(), unscheduled) {
            ("Running", ..) => None,
            (.., Some(condition)) => Some(format!("not scheduled: {}", condition.message)),
            (phase, "", None) => Some(format!("its phase is {phase:?}")),
            (phase, reason, None) => Some(format!("its phase is {phase:?}: {reason}")),
        }
    }
}

/// Lists the agents' pods page by page, without those that are being deleted.
pub(super) async fn list(client: &Client, selector: &AgentSelector) -> Result<Vec<Pod>, ApiError> {
    let pods = ApiRequest::new(format!("/api/v1/namespaces/{}/pods", selector.namespace));
    let mut params = ListParams::default().labels(&selector.labels).limit(PAGE_SIZE);
    let mut found = Vec::new();
    loop {
        let request = pods.list(&params).map_err(|_| invalid_name())?;
        let page: ObjectList<Pod> = client::object(client, request).await?;
        params.continue_token = page.next().map(str::to_owned);
        found.extend(page.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()));
        if params.continue_token.is_none() {
            return Ok(found);
        }
    }
}

async fn agent(client: &Client, namespace: &str, pod: Pod, until: Instant) -> ClusterAgent {
    let page = match pod.port(PORT, DEFAULT_PORT) {
        _ if !pod.runs_agent() => StatusPage::NotRunning,
        None => StatusPage::NotServed,
        Some(port) => {
            let path = page_path(namespace, &pod.metadata.name, port, "status");
            let before = until.min(Instant::now() + STATUS_TIMEOUT);
            match timeout_at(before.into(), status(client, &path)).await {
                Ok(Ok(status)) => StatusPage::Read(Box::new(status)),
                Ok(Err(fault)) => StatusPage::Failed(fault),
                Err(_) => StatusPage::Failed(ApiError::Unreadable("did not arrive in time")),
            }
        }
    };
    let waits = pod.waits();
    let has_repair = pod.spec.containers.iter().any(|container| container.name == REPAIR);
    let readiness = match pod.status.conditions.not_ready() {
        Some(condition) if !pod.spec.node_name.is_empty() => {
            let before = until.min(Instant::now() + STATUS_TIMEOUT);
            let reading = timeout_at(before.into(), node_fault(client, &pod.spec.node_name)).await;
            reading.ok().flatten().unwrap_or_else(|| Readiness::PodNotReady(condition.message.clone()))
        }
        _ => Readiness::Ready,
    };
    ClusterAgent { pod: pod.metadata.name, node: pod.spec.node_name, waits, has_repair, page, readiness }
}

/// Requests a node; none if it is ready, or if it cannot be read: few users have the right to.
async fn node_fault(client: &Client, name: &str) -> Option<Readiness> {
    let request = node(name).ok()?;
    let why = match client::object::<Node>(client, request).await {
        Ok(node) => {
            let Condition { status, message, .. } = node.status.conditions.not_ready()?;
            format!("its condition Ready is {status}: {message}")
        }
        Err(fault) if fault.status() == Some(404) => "it does not exist".to_owned(),
        Err(_) => return None,
    };
    Some(Readiness::NodeNotReady(why))
}

async fn status(client: &Client, path: &str) -> Result<AgentStatus, ApiError> {
    read_page(&page(client, path).await?).ok_or(ApiError::Unreadable("is not a status"))
}

/// Returns the path of a page of a pod at the API server's proxy.
pub(super) fn page_path(namespace: &str, pod: &str, port: u16, page: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/{page}")
}

/// Requests a page of an agent; again when the API server requests a later attempt.
pub(super) async fn page(client: &Client, path: &str) -> Result<Bytes, ApiError> {
    loop {
        let request = Request::get(path).body(Body::empty()).map_err(|_| invalid_name())?;
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

    fn pod(status: &Value) -> Pod {
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
            (
                json!({
                    "phase": "Pending",
                    "initContainerStatuses": [
                        { "name": "probe", "state": { "waiting": { "reason": "CrashLoopBackOff" } } }
                    ],
                    "containerStatuses": [
                        { "name": "install", "state": { "waiting": { "reason": "PodInitializing" } } }
                    ],
                }),
                Some("container probe waits: CrashLoopBackOff"),
            ),
            (json!({ "phase": "Pending", "conditions": [scheduled] }), Some("not scheduled: too many pods")),
            (json!({ "phase": "Failed", "reason": "Evicted" }), Some("its phase is \"Failed\": Evicted")),
            (json!({ "phase": "Unknown" }), Some("its phase is \"Unknown\"")),
        ] {
            assert_eq!(pod(&status).waits().as_deref(), waits, "{status}");
        }
    }
}
