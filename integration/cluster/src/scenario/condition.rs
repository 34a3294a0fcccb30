//! The component `node-condition` with a real API server: the condition of each node, and what the policy of the component
//! refuses.

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::Releases;
use super::admission::{AdmissionChecks, OTHER_NODE, create_other_node, delete_component, delete_other_node};
use crate::agent::AgentApi;
use crate::api::{SETTING, wait_at_most};
use crate::cluster::Cluster;
use crate::network::NODE;

const COMPONENT: &str = "node-condition";

pub(super) fn run(cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
    create_other_node(cluster, &json!({}))?;
    releases.installed.install_with(cluster, COMPONENT, ("node_condition", "true"))?;
    wait_at_most(SETTING, "the condition of each node is True", || {
        let names = cluster.nodes().iter().map(|node| node.number.to_string());
        let all: Result<Vec<_>, Failure> = names.map(|name| status_of(cluster, &name)).collect();
        Ok(all?.iter().all(|status| status == "True"))
    })?;
    let (changes, as_expected) = changes_with_the_agents_token(cluster)?
        .report("Changes of the status of nodes with the agent's token", ["Node", "Patch"]);
    delete_component(cluster, COMPONENT)?;
    delete_other_node(cluster)?;
    releases.installed.install(cluster)?;
    Ok(Report { tables: vec![changes], targets: vec![as_expected] })
}

/// Returns the status of a node's condition; an empty text without one.
fn status_of(cluster: &Cluster, node: &str) -> Result<String, Failure> {
    let node = cluster.api.get(&format!("/api/v1/nodes/{node}"))?.unwrap_or_default();
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    let own = conditions.into_iter().flatten().find(|it| it.get("type").is_some_and(|it| it == "GybeReady"));
    Ok(own.and_then(|it| it.get("status")?.as_str()).unwrap_or_default().to_owned())
}

/// Patches the status of nodes with the tokens of the agent's pod and of no pod.
fn changes_with_the_agents_token(cluster: &Cluster) -> Result<AdmissionChecks, Failure> {
    let AgentApi { bound, unbound } = AgentApi::connect(cluster)?;
    let condition = |name: &str| json!({ "status": { "conditions": [{ "type": name, "status": "False" }] } });
    let long = "x".repeat(1_025);
    let long =
        json!({ "status": { "conditions": [{ "type": "GybeReady", "status": "False", "message": long }] } });
    let deleted = json!([{ "$patch": "delete", "type": "Ready" }]);
    let mut checks = AdmissionChecks::default();
    for (expected, api, name, patch) in [
        ("allowed", &bound, NODE, condition("GybeReady")),
        ("refused", &bound, NODE, long),
        ("refused", &bound, NODE, condition("Ready")),
        ("refused", &bound, NODE, condition("Other")),
        ("refused", &bound, NODE, json!({ "status": { "conditions": deleted } })),
        ("refused", &bound, NODE, json!({ "status": { "capacity": { "example.com/x": "4" } } })),
        ("refused", &bound, NODE, json!({ "status": { "volumesInUse": ["x"] } })),
        ("refused", &bound, NODE, json!({ "metadata": { "labels": { "x": "y" } } })),
        ("refused", &bound, NODE, json!({ "metadata": { "annotations": { "x": "y" } } })),
        ("refused", &bound, OTHER_NODE, condition("GybeReady")),
        ("refused", &unbound, NODE, condition("GybeReady")),
    ] {
        let response = api.patch_strategically(&format!("/api/v1/nodes/{name}/status"), &patch);
        checks.add(COMPONENT, expected, response, [name, &format!("`{patch}`")]);
    }
    Ok(checks)
}
