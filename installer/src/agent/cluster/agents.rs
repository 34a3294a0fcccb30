//! The agents of all nodes: their pods, the ConfigMaps that they follow, and their page `/left`.

use super::access::ClusterError;
use super::queries::{QueryError, send, write};
use super::{Cluster, pod_requests};
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::Request as ApiRequest;
use serde::Deserialize;
use serde_json::json;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::runtime;
use tokio::time::timeout;

/// The label of the agents' DaemonSets and pods.
const SELECTOR: &str = "app.kubernetes.io/name=gybe-node";
const PAGE_SIZE: u32 = 100;
/// The number of agents that are queried at the same time.
const CONCURRENT: usize = 64;
/// The deadline of one agent's response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of a page.
const MAX_PAGE: usize = 16 << 10;

/// The pod of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPod {
    pub name: String,
    /// None until it is scheduled.
    pub node: Option<String>,
    /// The node's; none until the kubelet has reported it.
    pub address: Option<IpAddr>,
}

/// An agent's response at `/left`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// The entry is removed; the text names the programs that stay.
    Yes(String),
    /// Why it is not, or why there is no response.
    No(String),
}

#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
struct List<T> {
    #[serde(flatten)]
    page: pod_requests::Page,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Name,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    #[serde(rename = "hostIP")]
    host_ip: Option<String>,
}

#[derive(Deserialize)]
struct DaemonSet {
    #[serde(default)]
    status: DaemonSetStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct DaemonSetStatus {
    #[serde(default)]
    desired_number_scheduled: usize,
}

/// Sets `mode: leave` in a ConfigMap. Needs `patch` on it.
///
/// # Errors
/// When the cluster cannot be reached, refuses, or does not respond in time.
pub fn set_mode_leave(
    cluster: &Cluster,
    namespace: &str,
    config_map: &str,
    until: Instant,
) -> Result<(), QueryError> {
    let config_maps = ApiRequest::new(format!("/api/v1/namespaces/{namespace}/configmaps"));
    let patch = Patch::Merge(json!({ "data": { "mode": "leave" } }));
    write(cluster, config_maps.patch(config_map, &PatchParams::default(), &patch), until)
}

/// Returns the pods of all agents. Needs `list` on pods.
///
/// # Errors
/// As [`set_mode_leave`].
pub fn agent_pods(cluster: &Cluster, namespace: &str, until: Instant) -> Result<Vec<AgentPod>, QueryError> {
    let pods: Vec<Pod> = list(cluster, &format!("/api/v1/namespaces/{namespace}/pods"), until)?;
    let agent = |pod: Pod| AgentPod {
        name: pod.metadata.name,
        node: pod.spec.node_name.filter(|node| !node.is_empty()),
        address: pod.status.host_ip.and_then(|address| address.parse().ok()),
    };
    Ok(pods.into_iter().map(agent).collect())
}

/// Returns the number of nodes that should have an agent. Needs `list` on DaemonSets.
///
/// # Errors
/// As [`set_mode_leave`].
pub fn desired_agents(cluster: &Cluster, namespace: &str, until: Instant) -> Result<usize, QueryError> {
    let sets: Vec<DaemonSet> =
        list(cluster, &format!("/apis/apps/v1/namespaces/{namespace}/daemonsets"), until)?;
    Ok(sets.iter().map(|set| set.status.desired_number_scheduled).sum())
}

fn list<T: for<'de> Deserialize<'de>>(
    cluster: &Cluster,
    path: &str,
    until: Instant,
) -> Result<Vec<T>, QueryError> {
    let mut items = Vec::new();
    let mut params = ListParams::default().labels(SELECTOR).limit(PAGE_SIZE);
    loop {
        let request = ApiRequest::new(path).list(&params).map_err(|_| pod_requests::invalid_name())?;
        let List { page, items: more } = send::<List<T>>(cluster, request, until)?;
        items.extend(more);
        match page.next() {
            Some(next) => params.continue_token = Some(next.to_owned()),
            None => return Ok(items),
        }
    }
}

/// Queries the agents at these addresses; the responses are in their order.
///
/// # Errors
/// When no thread for the requests can be started.
pub fn left(addresses: &[SocketAddr]) -> Result<Vec<Left>, ClusterError> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    Ok(runtime.map_err(ClusterError::Thread)?.block_on(async {
        let client = &client;
        let queries = addresses.iter().copied().map(|address| async move {
            match timeout(TIMEOUT, query(client, address)).await {
                Ok(left) => left.unwrap_or_else(|why| Left::No(format!("{address}: {}", innermost(&*why)))),
                Err(_) => Left::No(format!("{address} did not respond within {} s", TIMEOUT.as_secs())),
            }
        });
        stream::iter(queries).buffered(CONCURRENT).collect().await
    }))
}

async fn query(
    client: &Client<HttpConnector, Empty<Bytes>>,
    address: SocketAddr,
) -> Result<Left, Box<dyn std::error::Error + Send + Sync>> {
    let response = client.get(format!("http://{address}/left").parse()?).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_PAGE).collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&body);
    // The text is printed: each line of it once, without control characters.
    let lines: Vec<String> = text.lines().map(|line| line.replace(char::is_control, " ")).collect();
    let text = lines.join(" ").trim().to_owned();
    Ok(match status.as_u16() {
        200 => Left::Yes(text),
        503 => Left::No(text),
        other => Left::No(format!("{address} responded {other}, and may not be an agent")),
    })
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}
