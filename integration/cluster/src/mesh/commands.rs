//! Gybe's own commands about nodes and pods, as an operator runs them.

use std::collections::BTreeSet;

use gybe_integration::failure::Failure;
use serde_json::Value;

use super::application::{self, Name};
use super::workstation::Workstation;
use crate::agent::NodeStatus;
use crate::cluster::has_condition;

/// The agents' pods in all namespaces.
const AGENTS: &str = "/api/v1/pods?labelSelector=app.kubernetes.io%2Fname%3Dgybe-node";

/// An agent that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Agent {
    pub(super) namespace: String,
    pod: String,
    pub(super) daemonset: String,
    pub(super) node: String,
}

#[cfg(test)]
impl Agent {
    pub(super) fn new(node: &str, pod: &str) -> Agent {
        let text = str::to_owned;
        Agent {
            namespace: text("gybe-system"),
            pod: text(pod),
            daemonset: text("gybe-node"),
            node: text(node),
        }
    }
}

/// Returns the agents that are ready, one for each node. Fails if there is none.
pub(super) fn agents(workstation: &Workstation) -> Result<Vec<Agent>, Failure> {
    let mut agents = ready_agents(workstation)?;
    agents.sort_by(|one, other| one.node.cmp(&other.node));
    agents.dedup_by(|one, other| one.node == other.node);
    if agents.is_empty() {
        return Err(Failure::new(
            "no agent of Gybe is ready; install Gybe (docs/INSTALL.md), or run gybe status",
        ));
    }
    Ok(agents)
}

/// Returns the agents that are ready: two on a node while a DaemonSet replaces its pod there.
pub(super) fn ready_agents(workstation: &Workstation) -> Result<Vec<Agent>, Failure> {
    Ok(workstation.api.list(AGENTS)?.iter().filter_map(agent).collect())
}

fn agent(pod: &Value) -> Option<Agent> {
    let text = |pointer| Some(pod.pointer(pointer)?.as_str()?.to_owned());
    let is_ready = has_condition(pod, "Ready") && pod.pointer("/metadata/deletionTimestamp").is_none();
    let agent = Agent {
        namespace: text("/metadata/namespace")?,
        pod: text("/metadata/name")?,
        daemonset: text("/metadata/ownerReferences/0/name")?,
        node: text("/spec/nodeName")?,
    };
    is_ready.then_some(agent)
}

/// Runs a command of gybe's in the container `repair` of a node's agent, as docs/TROUBLESHOOTING.md has it.
fn on_the_node(
    workstation: &Workstation,
    node: &str,
    command: &[&str],
    highest: i32,
) -> Result<String, Failure> {
    let agents = agents(workstation)?;
    let Some(agent) = agents.iter().find(|agent| agent.node == node) else {
        return Err(Failure::new(format!("node {node} has no agent of Gybe that is ready; run gybe status")));
    };
    let exec = ["-n", &agent.namespace, "exec", &agent.pod, "-c", "repair", "--", "gybe"];
    workstation.run("kubectl", &[&exec, command].concat(), highest)
}

/// Returns the node on which a pod runs.
pub(super) fn node_of(workstation: &Workstation, pod: Name<'_>) -> Result<String, Failure> {
    let found = application::get(workstation, pod)?.unwrap_or_default();
    let node = found.pointer("/spec/nodeName").and_then(Value::as_str);
    node.map(str::to_owned).ok_or_else(|| Failure::new(format!("pod {pod:?} has no node")))
}

/// The verdict for each pod, `NAMESPACE/NAME`.
pub(super) type Verdicts = Vec<(String, String)>;

/// Returns the verdicts of `gybe verify --all` on the nodes of these pods.
pub(super) fn verify(workstation: &Workstation, pods: &[Name<'_>]) -> Result<Verdicts, Failure> {
    let nodes = pods.iter().map(|pod| node_of(workstation, *pod)).collect::<Result<BTreeSet<_>, _>>()?;
    let mut all = Verdicts::new();
    for node in nodes {
        // It exits with 1 when a pod is not redirected.
        all.extend(verdicts(&on_the_node(workstation, &node, &["verify", "--all"], 1)?));
    }
    Ok(all)
}

/// Returns the verdicts that `gybe verify --all` has printed.
pub(super) fn verdicts(listed: &str) -> Verdicts {
    let rows = listed.lines().filter_map(|line| line.split_once(char::is_whitespace));
    rows.filter(|(pod, _)| pod.contains('/'))
        .map(|(pod, verdict)| (pod.to_owned(), verdict.trim().to_owned()))
        .collect()
}

/// Returns the backend that has written a pod's rules, as `gybe inspect` names it.
pub(super) fn backend_of(workstation: &Workstation, pod: Name<'_>) -> Result<String, Failure> {
    let (node, name) = (node_of(workstation, pod)?, format!("{}/{}", pod.0, pod.1));
    let listed = on_the_node(workstation, &node, &["inspect", "--pod", &name], 0)?;
    Ok(listed.split(':').next().unwrap_or_default().to_owned())
}

/// Returns the nodes of `gybe status` in each namespace with agents.
pub(super) fn status(workstation: &Workstation) -> Result<Vec<NodeStatus>, Failure> {
    let mut nodes = Vec::new();
    let namespaces = agents(workstation)?.into_iter().map(|agent| agent.namespace);
    for namespace in namespaces.collect::<BTreeSet<_>>() {
        // It exits with 1 when a node has a problem.
        let printed = workstation.run("gybe", &["status", "--json", "--namespace", &namespace], 1)?;
        nodes.extend(NodeStatus::list(&printed)?);
    }
    Ok(nodes)
}

/// Returns the node, the DaemonSet and the image of each agent that is ready. On a node that replaces its agent there are
/// two.
pub(super) fn images(workstation: &Workstation) -> Result<Vec<(String, String, String)>, Failure> {
    let of = |pod: &Value| {
        let Agent { node, daemonset, .. } = agent(pod)?;
        Some((node, daemonset, pod.pointer("/spec/containers/0/image")?.as_str()?.to_owned()))
    };
    Ok(workstation.api.list(AGENTS)?.iter().filter_map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_agent_that_ends_or_is_not_ready_runs_no_command() {
        let pod = |ready: &str, metadata: &Value| {
            let mut pod = json!({
                "metadata": { "namespace": "n", "name": "a", "ownerReferences": [{ "name": "gybe-node" }] },
                "spec": { "nodeName": "node" },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] },
            });
            if let (Some(all), Some(more)) =
                (pod.pointer_mut("/metadata").and_then(Value::as_object_mut), metadata.as_object())
            {
                all.extend(more.clone());
            }
            pod
        };
        let found = agent(&pod("True", &json!({})));
        assert_eq!(found.map(|agent| (agent.pod, agent.daemonset)), Some(("a".into(), "gybe-node".into())));
        assert_eq!(agent(&pod("False", &json!({}))), None);
        assert_eq!(agent(&pod("True", &json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }))), None);
    }
}
