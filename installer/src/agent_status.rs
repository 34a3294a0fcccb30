//! The node agent's status, which `gybe doctor` queries over the facts socket, one line of JSON each way, and which
//! `gybe status` reads from the page `/status`. The plugin's queries about pods use the same socket (`gybe_plugin::facts::wire`).

use gybe_plugin::facts::{AgentError, AgentFault, exchange};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// How the page `/left` of an agent begins once its entry is removed. Agents and `gybe leave` may differ in version.
pub(crate) const UNINSTALLED: &str = "uninstalled";

/// The version of the request and of its response.
const VERSION: u64 = 1;

/// The agent's status, as `/readyz` reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentStatus {
    pub ready: bool,
    /// Whether it removes Gybe's entry from the node, or has removed it (`mode: leave`).
    pub leaves: bool,
    /// Why it is not ready.
    pub reasons: Vec<String>,
    /// Why it does not learn of new pods at present; pods that it knows stay known.
    pub unwatched: Option<String>,
    /// Why it still uses an older ConfigMap.
    pub settings: Option<String>,
    /// Why it is not known whether running pods are redirected.
    pub repair: Option<String>,
    /// The programs that keep undoing its changes, and in which directory.
    pub conflicts: Vec<String>,
    /// Notes for operators.
    pub notes: Vec<String>,
    /// Where `shape: auto` puts the entry, and why, in a sentence; none with another shape.
    pub shape: Option<String>,
    /// Whether its settings have `plugin_dir: confirmed`.
    pub plugin_dir_confirmed: bool,
    /// Whether another agent of the node leads, and this one changes nothing.
    pub standby: bool,
    /// Why only a restart of its container helps.
    pub restart: Option<String>,
    /// Its ports at which it cannot listen.
    pub ports: Vec<TakenPort>,
    /// The pods whose last ADD the plugin refused within the last ten minutes, the last one first.
    pub refused: Vec<RefusedPod>,
    /// The version of the agent.
    pub version: String,
    /// The backend that writes the rules of this node's pods; none while it is not known.
    pub backend: Option<String>,
    /// The known pods of the node.
    pub pods: u64,
    /// Running pods that should be redirected and are not, or of which that is not known; none where no process repairs
    /// pods, or one has stopped renewing a 0.
    pub not_redirected: Option<u64>,
    /// None where ambient mode is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ambient: Option<AmbientCounts>,
}

/// The ztunnels and the ambient pods of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AmbientCounts {
    /// The connected ztunnels.
    pub ztunnels: usize,
    /// The pods with which the agent serves ztunnel.
    pub pods: usize,
    /// The pods that an earlier agent may have handed over.
    pub kept: usize,
    /// The pods that the newest ztunnel has not acknowledged.
    pub pending: usize,
}

/// A port at which the agent cannot listen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenPort {
    pub purpose: PortPurpose,
    pub address: SocketAddr,
    pub why: String,
}

/// What a port of the agent is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortPurpose {
    Health,
    Metrics,
    /// A purpose that only newer agents know.
    #[serde(other)]
    Unknown,
}

impl PortPurpose {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Metrics => "metrics",
            Self::Unknown => "unknown purpose",
        }
    }
}

impl fmt::Display for TakenPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { purpose, address, why } = self;
        write!(f, "the agent cannot listen at {address} ({}): {why}", purpose.name())
    }
}

/// A pod whose last ADD the plugin refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedPod {
    /// NAMESPACE/NAME.
    pub pod: String,
    /// The id of the last error, its cause and its hint.
    pub error: String,
    /// The refused ADDs.
    pub count: u64,
    /// The time since the last one.
    pub seconds: u64,
}

/// What a reason in [`AgentStatus::repair`] explains.
pub(crate) const RUNNING_PODS: &str = "whether running pods are redirected is not known";

/// The members of the page `/status` beside `agent`, which has the others.
const OF_NODE: [&str; 4] = ["version", "backend", "pods", "not_redirected"];

/// The page `/status` of an agent, for `gybe status`.
pub(crate) fn page(status: &AgentStatus) -> Value {
    let mut agent = json!(status);
    let members = agent.as_object_mut().into_iter();
    let mut page: Map<String, Value> =
        members.flat_map(|agent| OF_NODE.iter().filter_map(|key| agent.remove_entry(*key))).collect();
    page.insert("agent".to_owned(), agent);
    page.into()
}

/// Reads the page `/status`; none if it is not one.
pub(crate) fn read_page(page: &[u8]) -> Option<AgentStatus> {
    let mut page: Map<String, Value> = serde_json::from_slice(page).ok()?;
    let agent = match page.remove("agent") {
        None => Map::new(),
        Some(Value::Object(agent)) => agent,
        Some(_) => return None,
    };
    page.retain(|key, _| OF_NODE.contains(&key.as_str()));
    page.extend(agent.into_iter().filter(|(key, _)| !OF_NODE.contains(&key.as_str())));
    AgentStatus::deserialize(Value::Object(page)).ok()
}

/// Reports whether a line that is not a query about a pod requests the status.
pub(crate) fn is_request(line: &[u8]) -> bool {
    let request: Value = serde_json::from_slice(line).unwrap_or_default();
    request.get("version") == Some(&json!(VERSION)) && request.get("status") == Some(&json!(true))
}

/// Encodes the response as a line.
pub(crate) fn encode_response(status: &AgentStatus) -> String {
    format!("{}\n", json!({ "version": VERSION, "status": status }))
}

/// Queries the status of the agent at `socket`; none if the agent's version has no status.
///
/// # Errors
/// If no agent responds within `timeout`.
pub(crate) fn query(socket: &Path, timeout: Duration) -> Result<Option<AgentStatus>, AgentError> {
    let request = |_| format!("{}\n", json!({ "version": VERSION, "status": true }));
    let bytes = exchange(socket, request, Instant::now() + timeout)
        .map_err(|fault: AgentFault| AgentError { socket: socket.to_owned(), fault })?;
    let response: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    Ok(response.get("status").and_then(|status| AgentStatus::deserialize(status).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_plugin::facts::wire;

    #[test]
    fn a_request_for_the_status_is_not_a_query_about_a_pod_and_the_reverse() {
        let request = br#"{"version":1,"status":true}"#;
        assert!(is_request(request) && wire::decode_request(request).is_err());
        for line in [
            &br#"{"version":1,"namespace":"shop","name":"cart-0"}"#[..],
            br#"{"version":2,"status":true}"#,
            br#"{"version":1,"status":false}"#,
            br#"{"status":true}"#,
            b"[]",
            b"",
        ] {
            assert!(!is_request(line), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn the_page_has_the_nodes_figures_beside_the_agent_and_absent_members_are_empty() {
        let status = AgentStatus {
            ready: true,
            version: "1.2.3".to_owned(),
            backend: Some("nft".to_owned()),
            pods: 7,
            not_redirected: Some(1),
            ..AgentStatus::default()
        };
        let page = page(&status);
        assert_eq!(page["backend"], "nft");
        assert_eq!((&page["agent"]["ready"], page["agent"].get("backend")), (&json!(true), None));
        assert_eq!(read_page(page.to_string().as_bytes()), Some(status));
        assert_eq!(read_page(br#"{"pods":7}"#), Some(AgentStatus { pods: 7, ..AgentStatus::default() }));
        assert_eq!(read_page(b"[]"), None);
    }

    #[test]
    fn unknown_members_and_purposes_of_a_newer_agents_status_do_not_hide_the_rest() {
        let port = json!({ "purpose": "debug", "address": "127.0.0.1:6060", "why": "in use" });
        let newer = json!({ "ready": false, "reasons": ["x"], "weather": "fair", "ports": [port] });
        let read = AgentStatus::deserialize(&newer).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 6060));
        let port = TakenPort { purpose: PortPurpose::Unknown, address, why: "in use".to_owned() };
        let known =
            AgentStatus { reasons: vec!["x".to_owned()], ports: vec![port], ..AgentStatus::default() };
        assert_eq!(read, known);
    }
}
