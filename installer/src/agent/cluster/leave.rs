//! The removal of Gybe from all nodes: the agents' addresses, the ConfigMaps that they follow, and their page `/left`.

use super::access::{Cluster, ClusterError};
use super::agents::{self, AGENTS, AgentPod, AgentSelector};
use super::error::ApiError;
use super::pod_requests::invalid_name;
use super::queries::{QueryError, run, send, write};
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
use tokio::time::{timeout, timeout_at};

/// The number of agents that are queried at the same time.
const CONCURRENT: usize = 64;
/// The deadline of one agent's response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of a page.
const MAX_PAGE: usize = 16 << 10;

/// The pod of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentAddress {
    pub pod: String,
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
struct DaemonSets {
    items: Vec<DaemonSet>,
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

/// Returns the pods of the agents, with the address of each. Needs `list` on pods.
///
/// # Errors
/// As [`set_mode_leave`].
pub fn agent_addresses(
    cluster: &Cluster,
    namespace: &str,
    until: Instant,
) -> Result<Vec<AgentAddress>, QueryError> {
    let selector = AgentSelector { namespace: namespace.to_owned(), labels: AGENTS.to_owned() };
    let address = |pod: AgentPod| AgentAddress {
        pod: pod.metadata.name,
        node: Some(pod.spec.node_name).filter(|node| !node.is_empty()),
        address: pod.status.host_ip.parse().ok(),
    };
    run(async {
        let client = cluster.client().await?;
        let pods = timeout_at(until.into(), agents::list(&client, &selector)).await;
        let pods = pods.unwrap_or(Err(ApiError::Unreadable("is not complete before the deadline")))?;
        Ok(pods.into_iter().map(address).collect())
    })?
}

/// Returns the number of nodes that should have an agent. Needs `list` on DaemonSets.
///
/// # Errors
/// As [`set_mode_leave`].
pub fn desired_agents(cluster: &Cluster, namespace: &str, until: Instant) -> Result<usize, QueryError> {
    let request = ApiRequest::new(format!("/apis/apps/v1/namespaces/{namespace}/daemonsets"));
    let request = request.list(&ListParams::default().labels(AGENTS)).map_err(|_| invalid_name())?;
    let DaemonSets { items } = send(cluster, request, until)?;
    Ok(items.iter().map(|set| set.status.desired_number_scheduled).sum())
}

/// Queries the agents at these addresses; the responses are in their order.
///
/// # Errors
/// When no thread for the requests can be started.
pub fn left(addresses: &[SocketAddr]) -> Result<Vec<Left>, ClusterError> {
    let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    run(async {
        let client = &client;
        let queries = addresses.iter().copied().map(|address| async move {
            match timeout(TIMEOUT, query(client, address)).await {
                Ok(left) => left.unwrap_or_else(|why| Left::No(format!("{address}: {}", innermost(&*why)))),
                Err(_) => Left::No(format!("{address} did not respond within {} s", TIMEOUT.as_secs())),
            }
        });
        stream::iter(queries).buffered(CONCURRENT).collect().await
    })
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
