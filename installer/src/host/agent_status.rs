//! The node agent's own word on how it stands, asked over its facts socket by `gybe doctor`: one line of
//! JSON each way, beside the plugin's questions about pods (`gybe_plugin::facts::wire`).

use gybe_plugin::facts::{AgentError, AgentFault, exchange};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// The version of the request and of its answer.
const VERSION: u64 = 1;

/// How the agent stands: what `/readyz` says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentStatus {
    /// Whether it is ready.
    pub ready: bool,
    /// Whether it takes the node out of the chain, or has (`mode: leave`).
    pub leaves: bool,
    /// Why it is not ready.
    pub reasons: Vec<String>,
    /// Why it follows an older ConfigMap.
    pub settings: Option<String>,
    /// Who keeps undoing its changes, and where.
    pub conflicts: Vec<String>,
    /// What else should be known.
    pub notes: Vec<String>,
    /// Whether it is set to `plugin_dir: confirmed`.
    pub plugin_dir_confirmed: bool,
}

/// Reports whether a line that is no question about a pod asks for the status.
pub(crate) fn is_request(line: &[u8]) -> bool {
    let asked: Value = serde_json::from_slice(line).unwrap_or_default();
    asked.get("version") == Some(&json!(VERSION)) && asked.get("status") == Some(&json!(true))
}

/// The answer's line.
pub(crate) fn answer(status: &AgentStatus) -> String {
    format!("{}\n", json!({ "version": VERSION, "status": status }))
}

/// Asks the agent at `socket`; none when it answers and is of a version that does not say.
///
/// # Errors
/// When no agent answers in time.
pub(crate) fn ask(socket: &Path, patience: Duration) -> Result<Option<AgentStatus>, AgentError> {
    let request = |_| format!("{}\n", json!({ "version": VERSION, "status": true }));
    let bytes = exchange(socket, request, Instant::now() + patience)
        .map_err(|fault: AgentFault| AgentError { socket: socket.to_owned(), fault })?;
    let answered: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    Ok(answered.get("status").and_then(|status| AgentStatus::deserialize(status).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_plugin::facts::wire;

    #[test]
    fn a_request_for_the_status_is_no_question_about_a_pod_and_the_other_way_round() {
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
    fn a_newer_agents_status_is_read_as_far_as_it_is_known() {
        let newer = json!({ "ready": false, "reasons": ["x"], "weather": "fair" });
        let read = AgentStatus::deserialize(&newer).unwrap();
        assert_eq!(read, AgentStatus { reasons: vec!["x".to_owned()], ..AgentStatus::default() });
    }
}
