//! The taints of the agent's node, with an API server that grants the right to change them.

use crate::events::{rights_in, used_rights};
use crate::with_api_server::{Cluster, FILE};
use gybe_api_server::{Fault, FaultKind, Verb};
use gybe_test_support::{wait_for_at_most, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

const NOT_READY: &str = "cni.istio.io/not-ready";

fn taint(key: &str, effect: &str) -> Value {
    json!({ "key": key, "effect": effect })
}

/// Returns a cluster whose node has these taints, with the right to change them, and the setting `node_taints`.
fn cluster(test: &str, taints: &Value, setting: &str) -> Cluster {
    let cluster = Cluster::new(test);
    cluster.server.permit(Verb::Patch, "nodes");
    let labels = json!({ "kubernetes.io/os": "linux" });
    let metadata = json!({ "name": "node-1", "labels": labels });
    let spec = json!({ "podCIDR": "10.1.0.0/24", "taints": taints });
    cluster.server.put(json!({ "kind": "Node", "metadata": metadata, "spec": spec })).unwrap();
    cluster.node.set_configmap(&[("node_taints", setting)]);
    cluster
}

fn node(cluster: &Cluster) -> Value {
    cluster.server.objects("Node").remove(0)
}

fn patches(cluster: &Cluster) -> usize {
    cluster
        .server
        .requests()
        .iter()
        .filter(|it| it.method == "PATCH" && it.path.ends_with("/nodes/node-1"))
        .count()
}

#[test]
fn a_ready_agent_removes_the_named_taints_and_nothing_else() {
    let other = json!({ "key": NOT_READY, "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z" });
    let before = json!([taint("NodeReadiness", "NoSchedule"), other, taint(NOT_READY, "NoSchedule")]);
    let cluster = cluster("taint-removed", &before, "cni.istio.io/not-ready, NodeReadiness:NoSchedule");
    cluster.set_daemonset(true);
    let agent = cluster.start_ready_agent();
    wait_until("the removal", || node(&cluster)["spec"]["taints"] == json!([other]));
    let node = node(&cluster);
    assert_eq!(node["spec"]["podCIDR"], "10.1.0.0/24");
    assert_eq!(node["metadata"]["labels"], json!({ "kubernetes.io/os": "linux" }));
    assert_eq!(patches(&cluster), 1);
    let line = agent.wait_for_message("removed the node's taints");
    assert_eq!(line["taints"], json!(["NodeReadiness:NoSchedule", "cni.istio.io/not-ready:NoSchedule"]));
    wait_until("an event", || {
        cluster.server.objects("Event").iter().any(|event| event["reason"] == "TaintRemoved")
    });
    // The rights of the base and of the component, each used.
    cluster.node.query("shop", "cart-9", "cart-9");
    let base = rights_in(Path::new("../manifests/base/rbac.yaml"));
    let component = rights_in(Path::new("../manifests/components/node-taint/rbac.yaml"));
    let mut granted: Vec<_> = base.union(&component).cloned().collect();
    // One event has no repeat to patch.
    granted.retain(|(_, resource, verb)| (resource.as_str(), verb.as_str()) != ("events", "patch"));
    wait_until("all rights", || used_rights(&cluster).len() >= granted.len());
    assert_eq!(used_rights(&cluster), granted.into_iter().collect());
}

#[test]
fn without_the_setting_the_node_is_never_written() {
    let before = json!([taint(NOT_READY, "NoSchedule")]);
    let cluster = cluster("taint-off", &before, "");
    let agent = cluster.start_ready_agent();
    let turns = agent.metric("gybe_passes_total");
    cluster.node.put_conf(FILE, crate::node::PRIMARY);
    wait_until("another turn", || agent.metric("gybe_passes_total") > turns && agent.is_ready());
    assert_eq!((node(&cluster)["spec"]["taints"].clone(), patches(&cluster)), (before, 0));
}

#[test]
fn without_the_right_the_agent_stays_ready_and_logs_the_component() {
    let cluster = cluster("taint-forbidden", &json!([taint(NOT_READY, "NoSchedule")]), NOT_READY);
    cluster.server.forbid(Verb::Patch, "nodes");
    let agent = cluster.start_ready_agent();
    let line = agent.wait_for_message("the node's taints cannot be changed");
    assert!(line["cause"].as_str().unwrap().contains("403"), "{line}");
    assert!(line["hint"].as_str().unwrap().contains("component node-taint"), "{line}");
    assert!(agent.is_ready());
    cluster.server.permit(Verb::Patch, "nodes");
    cluster.server.add_fault(Fault::always(FaultKind::Fails(503)).at(Verb::Patch));
    let is_unavailable = |line: &Value| line["cause"].as_str().is_some_and(|cause| cause.contains("503"));
    assert_eq!(agent.wait_for_line(is_unavailable)["hint"], Value::Null);
    // Once nothing prevents it, the taint is removed.
    cluster.server.clear_faults();
    wait_until("the removal", || node(&cluster)["spec"]["taints"] == json!([]));
}

#[test]
fn the_taint_is_set_after_thirty_seconds_without_redirection_unless_the_configmap_is_invalid() {
    let invalid = cluster("taint-invalid", &json!([]), NOT_READY);
    let cluster = cluster("taint-set", &json!([]), NOT_READY);
    let agents = [cluster.start_ready_agent(), invalid.start_ready_agent()];
    invalid.node.set_configmap(&[("node_taints", NOT_READY), ("mode", "instal")]);
    wait_until("the invalid setting", || agents[1].metric("gybe_settings_followed") == 0.0);
    for cluster in [&invalid, &cluster] {
        fs::remove_file(cluster.node.conf_path(FILE)).unwrap();
    }
    let is_set = || node(&cluster)["spec"]["taints"] == json!([taint(NOT_READY, "NoSchedule")]);
    assert!(
        wait_for_at_most(Duration::from_secs(60), || is_set().then_some(())).is_some(),
        "{}",
        node(&cluster)
    );
    agents[0].wait_for_message("set the node's taints");
    assert_eq!((patches(&cluster), patches(&invalid)), (1, 0));
}
