//! Single API requests: for the agent's node, and for the state of its DaemonSet.

use crate::ground::{CALL, Ground, NODE};
use gybe_api_server::{Fault, FaultKind, Network, Verb};
use gybe_installer::agent::cluster::{Cluster, DaemonSetState, ServiceAccount, daemonset_state, node_labels};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn soon() -> Instant {
    Instant::now() + CALL
}

fn daemonset() -> Value {
    json!({ "kind": "DaemonSet", "metadata": { "namespace": "gybe-system", "name": "gybe-node" } })
}

fn fate(ground: &Ground) -> DaemonSetState {
    let before = Instant::now();
    let fate = daemonset_state(&ground.cluster(), "gybe-system", "gybe-node", soon());
    assert!(before.elapsed() < CALL + Duration::from_secs(5), "{:?}: {fate:?}", before.elapsed());
    fate
}

#[test]
fn a_nodes_labels_are_returned() {
    let ground = Ground::new("labels");
    let node = |labels: Value| json!({ "kind": "Node", "metadata": { "name": NODE, "labels": labels } });
    ground.server.put(node(json!({ "gybe.dev/backend": "nft", "kubernetes.io/os": "linux" }))).unwrap();
    let labels = node_labels(&ground.cluster(), NODE, soon()).unwrap();
    assert_eq!((labels.len(), labels["gybe.dev/backend"].as_str()), (2, "nft"));
    ground.server.put(node(Value::Null)).unwrap();
    assert!(node_labels(&ground.cluster(), NODE, soon()).unwrap().is_empty());
    let missing = node_labels(&ground.cluster(), "node-2", soon()).unwrap_err().to_string();
    assert!(missing.contains("404") && missing.contains("node-2"), "{missing}");
    let nonsense = node_labels(&ground.cluster(), "a b", soon()).unwrap_err().to_string();
    assert!(nonsense.contains("a name in the request is invalid"), "{nonsense}");
    let paths: Vec<_> = ground.server.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(paths, ["/api/v1/nodes/node-1", "/api/v1/nodes/node-1", "/api/v1/nodes/node-2"]);
}

#[test]
fn a_daemonset_is_there_or_on_its_way_out_or_gone() {
    let ground = Ground::new("daemonset");
    assert_eq!(fate(&ground), DaemonSetState::Absent);
    ground.server.put(daemonset()).unwrap();
    assert_eq!(fate(&ground), DaemonSetState::Present);
    let mut leaving = daemonset();
    leaving["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
    ground.server.put(leaving).unwrap();
    assert_eq!(fate(&ground), DaemonSetState::BeingDeleted);
    ground.server.delete(&daemonset());
    assert_eq!(fate(&ground), DaemonSetState::Absent);
}

#[test]
fn a_daemonset_is_absent_only_when_the_api_server_says_not_found() {
    let ground = Ground::new("not-gone");
    ground.server.put(daemonset()).unwrap();
    ground.server.tokens().revoke_all();
    assert!(matches!(fate(&ground), DaemonSetState::Refused(why) if why.contains("401")));
    ground.rotate();
    ground.server.forbid(Verb::Get, "daemonsets");
    assert!(matches!(fate(&ground), DaemonSetState::Refused(why) if why.contains("403")));
    ground.server.permit(Verb::Get, "daemonsets");
    // A 404 of an intermediary, such as a proxy, does not mean that the DaemonSet was deleted.
    for trouble in [
        FaultKind::Fails(404),
        FaultKind::Fails(500),
        FaultKind::TooManyRequests(1),
        FaultKind::Silent,
        FaultKind::Disconnects,
    ] {
        ground.server.add_fault(Fault::always(trouble));
        assert!(matches!(fate(&ground), DaemonSetState::Unknown(_)), "{trouble:?}");
        ground.server.clear_faults();
    }
    for network in [Network::Unreachable, Network::Silent, Network::Refusing] {
        ground.server.set_network(network).unwrap();
        assert!(matches!(fate(&ground), DaemonSetState::Unknown(_)), "{network:?}");
    }
    ground.server.set_network(Network::Open).unwrap();
    assert_eq!(fate(&ground), DaemonSetState::Present);
    let nowhere = daemonset_state(&ground.cluster(), "", "gybe-node", soon());
    assert!(matches!(nowhere, DaemonSetState::Unknown(_)), "{nowhere:?}");
}

#[test]
fn what_is_missing_to_ask_is_named() {
    let ground = Ground::new("missing");
    let told = |cluster: &Cluster| node_labels(cluster, NODE, soon()).unwrap_err();
    let Cluster::Own(account) = ground.cluster() else { unreachable!("it is made so") };
    let nowhere = ServiceAccount { directory: ground.directory.join("nowhere"), ..account.clone() };
    let fault = told(&Cluster::Own(nowhere)).to_string();
    assert!(fault.contains("nowhere/ca.crt cannot be read"), "{fault}");
    std::fs::remove_file(account.directory.join("token")).unwrap();
    let fault = told(&Cluster::Own(account.clone())).to_string();
    assert!(fault.contains("serviceaccount/token cannot be used: No such file"), "{fault}");
    let fault = told(&Cluster::Own(ServiceAccount { port: "none".into(), ..account })).to_string();
    assert!(fault.contains("no address"), "{fault}");
}
