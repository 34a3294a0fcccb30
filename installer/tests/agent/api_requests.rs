//! Single API requests: the state of the agent's DaemonSet.

use crate::cluster::{QUERY_DEADLINE, TestCluster};
use gybe_api_server::{Fault, FaultKind, Network, Verb};
use gybe_installer::cluster::{Cluster, DaemonSetState, ServiceAccount, daemonset_state};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn soon() -> Instant {
    Instant::now() + QUERY_DEADLINE
}

fn daemonset() -> Value {
    json!({ "kind": "DaemonSet", "metadata": { "namespace": "gybe-system", "name": "gybe-node" } })
}

fn daemonset_of(cluster: &TestCluster) -> DaemonSetState {
    let before = Instant::now();
    let state = daemonset_state(&cluster.settings(), "gybe-system", "gybe-node", soon());
    assert!(before.elapsed() < QUERY_DEADLINE + Duration::from_secs(5), "{:?}: {state:?}", before.elapsed());
    state
}

#[test]
fn a_daemonset_is_present_being_deleted_or_absent() {
    let cluster = TestCluster::new("daemonset");
    assert_eq!(daemonset_of(&cluster), DaemonSetState::Absent);
    cluster.server.put(daemonset()).unwrap();
    assert_eq!(daemonset_of(&cluster), DaemonSetState::Present);
    let mut leaving = daemonset();
    leaving["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
    cluster.server.put(leaving).unwrap();
    assert_eq!(daemonset_of(&cluster), DaemonSetState::BeingDeleted);
    cluster.server.delete(&daemonset());
    assert_eq!(daemonset_of(&cluster), DaemonSetState::Absent);
}

#[test]
fn a_daemonset_is_absent_only_after_the_api_servers_not_found() {
    let cluster = TestCluster::new("not-gone");
    cluster.server.put(daemonset()).unwrap();
    cluster.server.tokens().revoke_all();
    assert!(matches!(daemonset_of(&cluster), DaemonSetState::Refused(why) if why.contains("401")));
    cluster.rotate();
    cluster.server.forbid(Verb::Get, "daemonsets");
    assert!(matches!(daemonset_of(&cluster), DaemonSetState::Refused(why) if why.contains("403")));
    cluster.server.permit(Verb::Get, "daemonsets");
    // A 404 of an intermediary, such as a proxy, does not mean that the DaemonSet was deleted.
    for fault in [
        FaultKind::Fails(404),
        FaultKind::Fails(500),
        FaultKind::TooManyRequests(1),
        FaultKind::Silent,
        FaultKind::Disconnects,
    ] {
        cluster.server.add_fault(Fault::always(fault));
        assert!(matches!(daemonset_of(&cluster), DaemonSetState::Unknown(_)), "{fault:?}");
        cluster.server.clear_faults();
    }
    for network in [Network::Unreachable, Network::Silent, Network::Refusing] {
        cluster.server.set_network(network).unwrap();
        assert!(matches!(daemonset_of(&cluster), DaemonSetState::Unknown(_)), "{network:?}");
    }
    cluster.server.set_network(Network::Open).unwrap();
    assert_eq!(daemonset_of(&cluster), DaemonSetState::Present);
    let nowhere = daemonset_state(&cluster.settings(), "", "gybe-node", soon());
    assert!(matches!(nowhere, DaemonSetState::Unknown(_)), "{nowhere:?}");
}

#[test]
fn a_missing_part_of_the_service_account_is_named() {
    let cluster = TestCluster::new("missing");
    let error_of = |cluster: &Cluster| match daemonset_state(cluster, "gybe-system", "gybe-node", soon()) {
        DaemonSetState::Unknown(why) => why,
        other => panic!("{other:?}"),
    };
    let Cluster::Own(account) = cluster.settings() else { unreachable!() };
    let nowhere = ServiceAccount { directory: cluster.directory.join("nowhere"), ..account.clone() };
    let fault = error_of(&Cluster::Own(nowhere));
    assert!(fault.contains("nowhere/ca.crt cannot be read"), "{fault}");
    std::fs::remove_file(account.directory.join("token")).unwrap();
    let fault = error_of(&Cluster::Own(account.clone()));
    assert!(fault.contains("serviceaccount/token cannot be used: No such file"), "{fault}");
    let fault = error_of(&Cluster::Own(ServiceAccount { port: "none".into(), ..account }));
    assert!(fault.contains("no address"), "{fault}");
}
