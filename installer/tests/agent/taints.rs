//! Taints, with an API server that grants the right to change them: those of the agent's node, and those of the
//! program name `istio-cni-taint`: `NodeReadiness` and the critical DaemonSets.

use crate::api_requests::{rights_in, used_rights};
use crate::node::FILE;
use crate::with_api_server::Cluster;
use crate::{NODE, TestCluster};
use gybe_api_server::{Fault, FaultKind, Verb};
use gybe_test_support::{Agent, cluster_environment, wait_for_at_most, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const NOT_READY: &str = "cni.istio.io/not-ready";

fn taint(key: &str, effect: &str) -> Value {
    json!({ "key": key, "effect": effect })
}

/// Returns a cluster whose node has these taints, with the right to change them, and the setting `node_taints`.
fn agents_cluster(test: &str, taints: &Value, setting: &str) -> Cluster {
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
    let cluster =
        agents_cluster("taint-removed", &before, "cni.istio.io/not-ready, NodeReadiness:NoSchedule");
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
    let cluster = agents_cluster("taint-off", &before, "");
    let agent = cluster.start_ready_agent();
    let turns = agent.metric("gybe_passes_total");
    cluster.node.put_conf(FILE, crate::node::PRIMARY);
    wait_until("another turn", || agent.metric("gybe_passes_total") > turns && agent.is_ready());
    assert_eq!((node(&cluster)["spec"]["taints"].clone(), patches(&cluster)), (before, 0));
}

#[test]
fn without_the_right_the_agent_stays_ready_and_logs_the_component() {
    let cluster = agents_cluster("taint-forbidden", &json!([taint(NOT_READY, "NoSchedule")]), NOT_READY);
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
    let invalid = agents_cluster("taint-invalid", &json!([]), NOT_READY);
    let cluster = agents_cluster("taint-set", &json!([]), NOT_READY);
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

const LIST: &str = "- {name: cni, namespace: kube-system, selector: app=cni}\n\
                    - {name: storage, namespace: storage, selector: 'app=csi,tier=node'}\n";

fn critical_taint() -> Value {
    json!({ "key": "NodeReadiness", "effect": "NoSchedule" })
}

/// Returns a cluster whose node has these taints, with the rights of the component.
fn cluster_with_taints(test: &str, taints: &Value) -> TestCluster {
    let cluster = TestCluster::new(test);
    symlink(env!("CARGO_BIN_EXE_gybe"), cluster.directory.join("istio-cni-taint")).unwrap();
    cluster.server.permit(Verb::Patch, "nodes");
    cluster.server.permit(Verb::Get, "configmaps");
    let metadata = json!({ "name": NODE, "labels": { "a": "b" } });
    cluster
        .server
        .put(json!({ "kind": "Node", "metadata": metadata, "spec": { "taints": taints } }))
        .unwrap();
    cluster
}

fn put_list(cluster: &TestCluster, text: &str) {
    let metadata = json!({ "namespace": "kube-system", "name": "single" });
    cluster
        .server
        .put(json!({ "kind": "ConfigMap", "metadata": metadata, "data": { "any": text } }))
        .unwrap();
}

fn put_pod(cluster: &TestCluster, namespace: &str, labels: &Value, node: &str, is_ready: bool) {
    let ready = if is_ready { "True" } else { "False" };
    let conditions =
        json!([{ "type": "Initialized", "status": "True" }, { "type": "Ready", "status": ready }]);
    cluster.server.put_pod(json!({
        "kind": "Pod",
        "metadata": { "namespace": namespace, "name": format!("pod-on-{node}"), "labels": labels },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Running", "conditions": conditions },
    }));
}

fn put_cni(cluster: &TestCluster, is_ready: bool) {
    put_pod(cluster, "kube-system", &json!({ "app": "cni" }), NODE, is_ready);
}

fn put_storage(cluster: &TestCluster, is_ready: bool) {
    put_pod(cluster, "storage", &json!({ "app": "csi", "tier": "node" }), NODE, is_ready);
}

fn taints(cluster: &TestCluster) -> Value {
    cluster.server.objects("Node").remove(0)["spec"]["taints"].clone()
}

#[expect(clippy::disallowed_methods, reason = "the program under test, by another name")]
fn istio_cni_taint(cluster: &TestCluster) -> Command {
    let mut command = Command::new(cluster.directory.join("istio-cni-taint"));
    command
        .env_clear()
        .envs(cluster_environment(cluster.server.address()))
        .env("GYBE_SERVICE_ACCOUNT_DIR", cluster.account.path());
    command
}

/// Checks once; returns the exit code and both outputs.
fn check(cluster: &TestCluster) -> (Option<i32>, String) {
    let ran = istio_cni_taint(cluster).arg("--run-as-daemon=false").output().unwrap();
    (ran.status.code(), [ran.stdout, ran.stderr].map(|text| String::from_utf8(text).unwrap()).concat())
}

#[test]
fn the_taint_is_removed_once_each_daemonset_has_a_ready_pod() {
    let other = json!({ "key": "NodeReadiness", "effect": "NoExecute" });
    let cluster = cluster_with_taints("critical-removed", &json!([other, critical_taint()]));
    put_list(&cluster, LIST);
    put_cni(&cluster, true);
    put_storage(&cluster, false);
    let mut daemon = Agent::start(istio_cni_taint(&cluster));
    let line = daemon.wait_for_message("checked the critical DaemonSets");
    assert_eq!((&line["configmap"], &line["unready"]), (&json!("kube-system/single"), &json!(["storage"])));
    assert_eq!(taints(&cluster), json!([other, critical_taint()]));
    put_storage(&cluster, true);
    wait_until("the removal", || taints(&cluster) == json!([other]));
    assert_eq!(cluster.server.objects("Node")[0]["metadata"]["labels"], json!({ "a": "b" }));
    assert!(daemon.terminate().success());
    // It uses the rights of the component and, of those of the base, two.
    let component =
        |name: &str| rights_in(&Path::new("../manifests/components").join(name).join("rbac.yaml"));
    let base = ["nodes watch", "pods list"].map(|it| it.split_once(' ').unwrap());
    let base = base.map(|(resource, verb)| (String::new(), resource.to_owned(), verb.to_owned()));
    assert!(rights_in(Path::new("../manifests/base/rbac.yaml")).is_superset(&base.clone().into()));
    let granted = component("istio-cni-taint").into_iter().chain(component("node-taint")).chain(base);
    let requests = cluster.server.requests();
    let used = requests.iter().map(|request| request.right().unwrap());
    let used: BTreeSet<_> = used.map(|(group, resource, verb)| (group, resource, verb.to_owned())).collect();
    assert_eq!(used, granted.collect());
}

#[test]
fn a_single_check_counts_only_ready_pods_of_its_node_that_the_selector_selects() {
    let cluster = cluster_with_taints("critical-once", &json!([critical_taint()]));
    put_list(&cluster, LIST);
    put_cni(&cluster, true);
    put_pod(&cluster, "storage", &json!({ "app": "csi", "tier": "node" }), "node-2", true);
    put_pod(&cluster, "storage", &json!({ "app": "csi" }), NODE, true);
    put_pod(&cluster, "other", &json!({ "app": "csi", "tier": "node" }), NODE, true);
    let (code, text) = check(&cluster);
    assert_eq!((code, taints(&cluster)), (Some(1), json!([critical_taint()])), "{text}");
    assert!(text.contains("node-1 has no ready pod of storage"), "{text}");
    put_storage(&cluster, true);
    let (code, text) = check(&cluster);
    assert_eq!((code, taints(&cluster)), (Some(0), json!([])), "{text}");
    // Without the taint it writes nothing, and needs no right to write.
    cluster.server.forbid(Verb::Patch, "nodes");
    assert_eq!(check(&cluster).0, Some(0));
}

#[test]
fn a_configmap_that_cannot_be_followed_changes_no_taint() {
    let cluster = cluster_with_taints("critical-invalid", &json!([critical_taint()]));
    put_cni(&cluster, true);
    let refused = |why: &str| {
        let (code, text) = check(&cluster);
        assert_eq!((code, taints(&cluster)), (Some(2), json!([critical_taint()])), "{text}");
        assert!(text.contains(why), "{text}");
    };
    refused("cannot read the ConfigMap kube-system/single: the API server responded 404");
    put_list(&cluster, "[]");
    refused("the ConfigMap kube-system/single is invalid: it lists no DaemonSet");
    put_list(&cluster, "{name: cni, namespace: kube-system, selector: cni}");
    refused("cannot list the pods of the DaemonSet cni: the API server responded 400");
    put_list(&cluster, "{name: cni, namespace: kube-system, selector: app=cni}");
    cluster.server.forbid(Verb::Patch, "nodes");
    refused("the component istio-cni-taint of the manifests grants the rights");
    cluster.server.permit(Verb::Patch, "nodes");
    assert_eq!((check(&cluster).0, taints(&cluster)), (Some(0), json!([])));
}

#[test]
fn the_taint_is_set_after_thirty_seconds_without_a_ready_pod_unless_the_configmap_is_invalid() {
    let (unready, invalid) =
        (cluster_with_taints("critical-set", &json!([])), cluster_with_taints("critical-kept", &json!([])));
    put_list(&unready, LIST);
    put_cni(&unready, true);
    put_list(&invalid, "[]");
    let daemons = [&unready, &invalid].map(|cluster| Agent::start(istio_cni_taint(cluster)));
    let is_set = || (taints(&unready) == json!([critical_taint()])).then_some(());
    assert!(wait_for_at_most(Duration::from_secs(90), is_set).is_some(), "{:?}", daemons[0].log());
    daemons[1].wait_for_message("the critical DaemonSets cannot be checked; the taint stays as it is");
    assert_eq!(taints(&invalid), json!([]));
}
