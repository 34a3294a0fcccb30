//! The condition `GybeReady` of the agent's node, with an API server that grants the right to change it.

use crate::api_requests::{rights_in, used_rights};
use crate::node::FILE;
use crate::with_api_server::Cluster;
use gybe_api_server::Verb;
use gybe_test_support::{wait_for_at_most, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Returns a cluster whose node has the kubelet's condition, with the right to change conditions and the setting.
fn cluster_with_right(test: &str) -> Cluster {
    let cluster = Cluster::new(test);
    cluster.server.permit(Verb::Patch, "nodes/status");
    let status = json!({ "capacity": { "cpu": "2" }, "conditions": [kubelets()] });
    let metadata = json!({ "name": "node-1", "labels": { "a": "b" } });
    cluster.server.put(json!({ "kind": "Node", "metadata": metadata, "status": status })).unwrap();
    cluster.node.set_configmap(&[("node_condition", "true")]);
    cluster
}

fn kubelets() -> Value {
    json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-02T03:04:05Z" })
}

fn conditions(cluster: &Cluster) -> Vec<Value> {
    cluster.server.objects("Node").remove(0)["status"]["conditions"].as_array().unwrap().clone()
}

/// Returns status and reason of the agent's condition; null without one.
fn state(cluster: &Cluster) -> (Value, Value) {
    let condition = conditions(cluster).into_iter().find(|it| it["type"] == "GybeReady").unwrap_or_default();
    (condition["status"].clone(), condition["reason"].clone())
}

fn patches(cluster: &Cluster) -> usize {
    cluster.server.requests().iter().filter(|it| it.path.ends_with("/nodes/node-1/status")).count()
}

#[test]
fn the_condition_is_true_while_the_agent_is_ready_and_unknown_once_it_has_ended() {
    let cluster = cluster_with_right("condition");
    cluster.set_daemonset(true);
    let mut agent = cluster.start_ready_agent();
    wait_until("the condition", || state(&cluster) == (json!("True"), json!("AgentReady")));
    let all = conditions(&cluster);
    assert_eq!((all.len(), &all[0]), (2, &kubelets()));
    let ready = all[1].clone();
    assert_eq!(ready["lastHeartbeatTime"], ready["lastTransitionTime"]);
    assert_eq!(agent.metric("gybe_unready{reason=\"NotInstalled\"}"), 0.0);
    agent.wait_for_message("set the node's condition");
    // It is written again when it changes, and every five minutes.
    cluster.node.put_conf(FILE, crate::node::PRIMARY);
    let turns = agent.metric("gybe_passes_total");
    wait_until("another turn", || agent.metric("gybe_passes_total") > turns && agent.is_ready());
    assert_eq!(patches(&cluster), 1);
    // The rights of the base and of the component, each used.
    cluster.node.query("shop", "cart-9", "cart-9");
    let mut granted = rights_in(Path::new("../manifests/base/rbac.yaml"));
    granted.extend(rights_in(Path::new("../manifests/components/node-condition/rbac.yaml")));
    granted.retain(|(_, resource, _)| resource != "events");
    let used = || used_rights(&cluster).into_iter().filter(|(_, resource, _)| resource != "events");
    wait_until("all rights", || used().count() >= granted.len());
    assert_eq!(used().collect::<Vec<_>>(), granted.into_iter().collect::<Vec<_>>());
    assert!(agent.terminate().success());
    assert_eq!(state(&cluster), (json!("Unknown"), json!("AgentStopped")));
    let stopped = conditions(&cluster).remove(1);
    assert!(stopped["lastTransitionTime"].as_str() > ready["lastTransitionTime"].as_str(), "{stopped}");
}

#[test]
fn the_condition_is_false_with_the_reason_after_thirty_seconds_without_readiness() {
    let (cluster, off) = (cluster_with_right("condition-false"), cluster_with_right("condition-off"));
    off.node.set_configmap(&[]);
    for cluster in [&cluster, &off] {
        fs::remove_file(cluster.node.conf_path(FILE)).unwrap();
    }
    let (agent, mut other) = (cluster.node.start_agent(), off.node.start_agent());
    let is_false = || (state(&cluster) == (json!("False"), json!("NotInstalled"))).then_some(());
    assert!(wait_for_at_most(Duration::from_secs(90), is_false).is_some(), "{:?}", conditions(&cluster));
    let message = conditions(&cluster).remove(1)["message"].as_str().unwrap().to_owned();
    assert!(
        !message.is_empty() && agent.get("/readyz").1.contains(message.split("; ").next().unwrap()),
        "{message}"
    );
    assert_eq!(agent.metric("gybe_unready{reason=\"NotInstalled\"}"), 1.0);
    assert!(other.terminate().success());
    assert_eq!((state(&off), patches(&off)), ((Value::Null, Value::Null), 0));
}

#[test]
fn without_the_right_the_agent_stays_ready_and_logs_the_component() {
    let cluster = cluster_with_right("condition-forbidden");
    cluster.server.forbid(Verb::Patch, "nodes/status");
    let agent = cluster.start_ready_agent();
    let line = agent.wait_for_message("the node's condition cannot be changed");
    assert!(line["cause"].as_str().unwrap().contains("403"), "{line}");
    assert!(line["hint"].as_str().unwrap().contains("component node-condition"), "{line}");
    assert!(agent.is_ready());
    cluster.server.permit(Verb::Patch, "nodes/status");
    wait_until("the condition", || state(&cluster).0 == "True");
}

#[test]
fn the_condition_stays_when_the_setting_is_switched_off_and_in_mode_leave() {
    let (off, leaving) =
        (cluster_with_right("condition-switched-off"), cluster_with_right("condition-leave"));
    let (mut agent, other) = (off.start_ready_agent(), leaving.start_ready_agent());
    for cluster in [&off, &leaving] {
        wait_until("the condition", || state(cluster).0 == "True");
    }
    off.node.set_configmap(&[]);
    leaving.node.set_configmap(&[("node_condition", "true"), ("mode", "leave")]);
    wait_until("the uninstall", || other.metric("gybe_left") == 1.0);
    assert_eq!(agent.wait_for_message("the settings changed")["keys"], json!(["node_condition"]));
    let turns = agent.metric("gybe_passes_total");
    wait_until("another turn", || agent.metric("gybe_passes_total") > turns);
    assert!(agent.terminate().success());
    for cluster in [&off, &leaving] {
        assert_eq!((state(cluster), patches(cluster)), ((json!("True"), json!("AgentReady")), 1));
    }
}
