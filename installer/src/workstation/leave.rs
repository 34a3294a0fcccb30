//! The removal of Gybe from all nodes: the agents' DaemonSets, the ConfigMaps that they follow, and their page `/left`.

use super::agents::{self, AGENTS, AgentSelector};
use crate::agent_status::UNINSTALLED;
use crate::cluster::Cluster;
use crate::cluster::error::{ApiError, truncate};
use crate::cluster::objects::{DaemonSet, ObjectList, Pod};
use crate::cluster::pod_requests::invalid_name;
use crate::cluster::queries::{QueryError, run, send, write};
use futures::{StreamExt, TryStreamExt, stream};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Client;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::Request as ApiRequest;
use serde_json::json;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::time::timeout_at;

/// The number of agents that are queried at the same time.
const CONCURRENT: usize = 64;
/// The deadline of one agent's response.
pub(crate) const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of a page.
const MAX_PAGE: usize = 16 << 10;
/// The variable with the port of the page, and its default.
const PORT: (&str, u16) = ("HEALTH_PORT", 8000);
/// The volume of an agent's pod with its settings.
const CONFIG_VOLUME: &str = "config";

/// A DaemonSet of agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentDaemonSet {
    pub name: String,
    /// The number of nodes that should have an agent.
    pub desired: usize,
    /// The ConfigMap with the agents' settings; none if their pods mount none.
    pub config_map: Option<String>,
}

/// The pod of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentAddress {
    pub pod: String,
    /// None until it is scheduled.
    pub node: Option<String>,
    /// The node's; none until the kubelet has reported it.
    pub address: Option<IpAddr>,
    /// The port of its page; none if it serves none.
    pub port: Option<u16>,
}

/// An agent that is queried.
#[derive(Debug, Clone)]
pub(crate) struct RunningAgent {
    pub pod: String,
    pub address: SocketAddr,
}

/// An agent's response at `/left`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Left {
    /// The entry is removed; the text names the programs that stay.
    Yes(String),
    /// Why it is not, or why there is no response.
    No(String),
}

impl From<DaemonSet> for AgentDaemonSet {
    fn from(DaemonSet { metadata, spec, status }: DaemonSet) -> Self {
        let settings = spec.template.spec.volumes.into_iter().find(|volume| volume.name == CONFIG_VOLUME);
        Self {
            name: metadata.name,
            desired: status.desired_number_scheduled,
            config_map: settings.and_then(|volume| Some(volume.config_map?.name)),
        }
    }
}

/// Sets `mode: leave` in a ConfigMap. Needs `patch` on it.
///
/// # Errors
/// When the cluster cannot be reached, refuses, or does not respond in time.
pub(crate) fn set_mode_leave(
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
pub(crate) fn agent_addresses(
    cluster: &Cluster,
    namespace: &str,
    until: Instant,
) -> Result<Vec<AgentAddress>, QueryError> {
    let selector = AgentSelector { namespace: namespace.to_owned(), labels: AGENTS.to_owned() };
    let address = |pod: Pod| AgentAddress {
        port: pod.port(PORT.0, PORT.1),
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

/// Returns the DaemonSets of the agents. Needs `list` on DaemonSets.
///
/// # Errors
/// As [`set_mode_leave`].
pub(crate) fn agent_daemonsets(
    cluster: &Cluster,
    namespace: &str,
    until: Instant,
) -> Result<Vec<AgentDaemonSet>, QueryError> {
    let request = ApiRequest::new(format!("/apis/apps/v1/namespaces/{namespace}/daemonsets"));
    let request = request.list(&ListParams::default().labels(AGENTS)).map_err(|_| invalid_name())?;
    let ObjectList { items, .. } = send::<ObjectList<DaemonSet>>(cluster, request, until)?;
    Ok(items.into_iter().map(AgentDaemonSet::from).collect())
}

/// Queries the agents; the responses are in their order. In a pod of the cluster it queries them at their addresses,
/// because some clusters' API servers reach no such port of a node. Elsewhere through the API server, which needs
/// `get` on pods/proxy.
///
/// # Errors
/// When no thread for the requests can be started, or the cluster cannot be used, or the API server refuses them.
pub(crate) fn left(
    cluster: &Cluster,
    namespace: &str,
    agents: &[RunningAgent],
    until: Instant,
) -> Result<Vec<Left>, QueryError> {
    let direct = legacy::Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    run(async {
        let proxy = match cluster {
            Cluster::Own(_) => None,
            Cluster::Kubeconfig { .. } => Some(cluster.client().await?),
        };
        let (direct, proxy) = (&direct, proxy.as_ref());
        let queries = agents.iter().map(|agent| async move {
            let page = async {
                match proxy {
                    Some(client) => through_api_server(client, namespace, agent).await,
                    None => Ok(at_address(direct, agent.address).await),
                }
            };
            let before = until.min(Instant::now() + PAGE_TIMEOUT);
            timeout_at(before.into(), page)
                .await
                .unwrap_or_else(|_| Ok(Left::No(format!("{} did not respond in time", agent.address))))
        });
        Ok(stream::iter(queries).buffered(CONCURRENT).try_collect().await?)
    })?
}

async fn through_api_server(
    client: &Client,
    namespace: &str,
    agent: &RunningAgent,
) -> Result<Left, ApiError> {
    let path = agents::page_path(namespace, &agent.pod, agent.address.port(), "left");
    Ok(match agents::page(client, &path).await {
        Ok(page) => left_of(200, &page, agent.address),
        // Only the API server itself gives a reason; the page of another program may have this status too.
        Err(fault) if fault.is_forbidden() && fault.has_reason() => return Err(fault),
        Err(ApiError::Refused { status, sentence, .. }) => {
            left_of(status, sentence.as_bytes(), agent.address)
        }
        Err(fault) => Left::No(fault.to_string()),
    })
}

async fn at_address(client: &legacy::Client<HttpConnector, Empty<Bytes>>, address: SocketAddr) -> Left {
    let response = async {
        let response = client.get(format!("http://{address}/left").parse()?).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), MAX_PAGE).collect().await?.to_bytes();
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(left_of(status, &body, address))
    };
    response.await.unwrap_or_else(|why| Left::No(format!("{address}: {}", innermost(&*why))))
}

/// Another program may listen at the port: only the agent's own text counts.
fn left_of(status: u16, body: &[u8], address: SocketAddr) -> Left {
    let text = String::from_utf8_lossy(body);
    // The text is printed: each line of it once, without control characters.
    let lines: Vec<String> = text.lines().map(|line| line.replace(char::is_control, " ")).collect();
    let text = lines.join(" ").trim().to_owned();
    match status {
        200 if text.starts_with(UNINSTALLED) => Left::Yes(text),
        503 => Left::No(text),
        _ => Left::No(format!("{address} responded {status}, not as an agent: {}", truncate(&text))),
    }
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}
