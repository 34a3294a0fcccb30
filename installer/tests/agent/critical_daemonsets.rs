//! The program name `istio-cni-taint` with an API server: the taint `NodeReadiness` and the critical DaemonSets.

use crate::cluster::{NODE, TestCluster};
use crate::events::rights_in;
use gybe_api_server::Verb;
use gybe_test_support::{Agent, wait_for_at_most, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIST: &str = "- {name: cni, namespace: kube-system, selector: app=cni}\n\
                    - {name: storage, namespace: storage, selector: 'app=csi,tier=node'}\n";

fn taint() -> Value {
    json!({ "key": "NodeReadiness", "effect": "NoSchedule" })
}

/// Returns a cluster whose node has these taints, with the rights of the component.
fn cluster(test: &str, taints: &Value) -> TestCluster {
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
    let address = cluster.server.address();
    let mut command = Command::new(cluster.directory.join("istio-cni-taint"));
    command
        .env_clear()
        .env("KUBERNETES_SERVICE_HOST", address.ip().to_string())
        .env("KUBERNETES_SERVICE_PORT", address.port().to_string())
        .env("KUBERNETES_NODE_NAME", NODE)
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
    let cluster = cluster("critical-removed", &json!([other, taint()]));
    put_list(&cluster, LIST);
    put_cni(&cluster, true);
    put_storage(&cluster, false);
    let mut daemon = Agent::start(istio_cni_taint(&cluster));
    let line = daemon.wait_for_message("checked the critical DaemonSets");
    assert_eq!((&line["configmap"], &line["unready"]), (&json!("kube-system/single"), &json!(["storage"])));
    assert_eq!(taints(&cluster), json!([other, taint()]));
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
    let cluster = cluster("critical-once", &json!([taint()]));
    put_list(&cluster, LIST);
    put_cni(&cluster, true);
    put_pod(&cluster, "storage", &json!({ "app": "csi", "tier": "node" }), "node-2", true);
    put_pod(&cluster, "storage", &json!({ "app": "csi" }), NODE, true);
    put_pod(&cluster, "other", &json!({ "app": "csi", "tier": "node" }), NODE, true);
    let (code, text) = check(&cluster);
    assert_eq!((code, taints(&cluster)), (Some(1), json!([taint()])), "{text}");
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
    let cluster = cluster("critical-invalid", &json!([taint()]));
    put_cni(&cluster, true);
    let refused = |why: &str| {
        let (code, text) = check(&cluster);
        assert_eq!((code, taints(&cluster)), (Some(2), json!([taint()])), "{text}");
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
    let (unready, invalid) = (cluster("critical-set", &json!([])), cluster("critical-kept", &json!([])));
    put_list(&unready, LIST);
    put_cni(&unready, true);
    put_list(&invalid, "[]");
    let daemons = [&unready, &invalid].map(|cluster| Agent::start(istio_cni_taint(cluster)));
    let is_set = || (taints(&unready) == json!([taint()])).then_some(());
    assert!(wait_for_at_most(Duration::from_secs(90), is_set).is_some(), "{:?}", daemons[0].log());
    daemons[1].wait_for_message("the critical DaemonSets cannot be checked; the taint stays as it is");
    assert_eq!(taints(&invalid), json!([]));
}
