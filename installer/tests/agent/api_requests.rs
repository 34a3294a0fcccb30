//! Single API requests: the state of the agent's DaemonSet, and the Kubernetes events that the agent writes about
//! refused pods and about its node, and with which rights.

use crate::node::{FILE, PRIMARY};
use crate::with_api_server::Cluster;
use crate::{QUERY_DEADLINE, TestCluster};
use gybe_api_server::{Fault, FaultKind, Network, Verb};
use gybe_installer::cluster::{self, DaemonSetState, ServiceAccount, daemonset_state};
use gybe_test_support::{Agent, PATIENCE, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sends the log line of a refused ADD, as the plugin does.
fn refuse(cluster: &Cluster, pod: &str, cause: &str) {
    let uid = format!("K8S_POD_UID={pod}-uid");
    let line = json!({
        "time": "2026-01-02T03:04:05.000006Z", "level": "error", "msg": "gybe-cni cmdAdd error", "verb": "ADD",
        "decision": "error", "id": "GYBE-ADD-011", "code": 11, "cause": cause, "hint": "", "took_us": 900,
        "args": format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};{uid}"),
    });
    let plugin = UnixDatagram::unbound().unwrap();
    plugin.send_to(line.to_string().as_bytes(), cluster.node.root.join("run/log.sock")).unwrap();
}

fn events(cluster: &Cluster) -> Vec<Value> {
    cluster.server.objects("Event")
}

/// Waits for the only event with that reason.
fn event(cluster: &Cluster, reason: &str) -> Value {
    let of_reason =
        || -> Vec<Value> { events(cluster).into_iter().filter(|event| event["reason"] == reason).collect() };
    wait_until(reason, || !of_reason().is_empty());
    assert_eq!(of_reason().len(), 1, "{:#?}", of_reason());
    of_reason().remove(0)
}

#[test]
fn a_refused_pod_gets_an_event_and_its_repeats_are_a_series() {
    let cluster = Cluster::new("events-refused");
    let _agent = cluster.start_ready_agent();
    refuse(&cluster, "cart-0", "no source of facts knows the pod\nspoofed=1");
    let first = event(&cluster, "RedirectionRefused");
    let typed: k8s_openapi::api::events::v1::Event = serde_json::from_value(first.clone()).unwrap();
    assert_eq!(typed.note.as_deref(), Some("GYBE-ADD-011: no source of facts knows the pod spoofed=1"));
    let regarding = typed.regarding.unwrap();
    assert_eq!((regarding.kind.as_deref(), regarding.api_version.as_deref()), (Some("Pod"), Some("v1")));
    assert_eq!((regarding.namespace.as_deref(), regarding.name.as_deref()), (Some("shop"), Some("cart-0")));
    assert_eq!(regarding.uid.as_deref(), Some("cart-0-uid"));
    assert_eq!((typed.type_.as_deref(), typed.action.as_deref()), (Some("Warning"), Some("Add")));
    assert_eq!(typed.reporting_controller.as_deref(), Some("gybe.dev/agent"));
    assert_eq!(typed.reporting_instance.as_deref(), Some("node-1"));
    assert!(typed.event_time.is_some() && typed.series.is_none(), "{first}");
    refuse(&cluster, "cart-0", "no source of facts knows the pod\nspoofed=1");
    wait_until("a series", || events(&cluster)[0]["series"]["count"] == 2);
    assert_eq!(events(&cluster).len(), 1);
    refuse(&cluster, "cart-1", "another pod");
    wait_until("another event", || events(&cluster).len() == 2);
}

#[test]
fn lost_and_restored_redirection_are_events_about_the_node() {
    let cluster = Cluster::new("events-lost");
    let _agent = cluster.start_ready_agent();
    fs::remove_file(cluster.node.conf_path(FILE)).unwrap();
    let lost = event(&cluster, "RedirectionLost");
    assert_eq!(
        lost["regarding"],
        json!({ "apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1" })
    );
    assert_eq!((&lost["metadata"]["namespace"], &lost["type"]), (&json!("default"), &json!("Warning")));
    assert!(!lost["note"].as_str().unwrap().is_empty());
    cluster.node.put_conf(FILE, PRIMARY);
    assert_eq!(event(&cluster, "RedirectionRestored")["type"], "Normal");
    assert!(cluster.node.entry(FILE).is_some());
}

#[test]
fn f05_the_start_of_a_conflict_is_an_event_about_the_node() {
    let cluster = Cluster::new("events-conflict");
    let agent = cluster.start_ready_agent();
    wait_until("a conflict", || {
        cluster.node.put_conf(FILE, PRIMARY);
        wait_until("the entry", || cluster.node.entry(FILE).is_some());
        agent.metric("gybe_conflict{what=\"conf\"}") == 1.0
    });
    let began = event(&cluster, "ConflictBegan");
    assert_eq!((&began["type"], &began["regarding"]["kind"]), (&json!("Warning"), &json!("Node")));
}

#[test]
fn f01_events_wait_while_the_api_server_fails_and_delay_nothing() {
    let cluster = Cluster::new("events-failing");
    let agent = cluster.start_ready_agent();
    cluster.server.add_fault(Fault::always(FaultKind::Fails(500)).at(Verb::Create));
    refuse(&cluster, "cart-0", "why");
    agent.wait_for_message("an event cannot be written");
    assert!(agent.is_ready(), "{:?}", agent.get("/readyz"));
    let repaired = agent.metric("gybe_repairs_total{what=\"conf\"}");
    // The agent does not count a rewrite that it first observes in the pass in which its settings change.
    wait_until("a repair", || {
        cluster.node.put_conf(FILE, PRIMARY);
        wait_until("the entry", || cluster.node.entry(FILE).is_some());
        agent.metric("gybe_repairs_total{what=\"conf\"}") > repaired
    });
    cluster.server.clear_faults();
    event(&cluster, "RedirectionRefused");
}

#[test]
fn no_event_is_written_while_they_are_switched_off_or_forbidden() {
    let cluster = Cluster::new("events-off");
    cluster.node.set_configmap(&[("events", "false")]);
    let agent = cluster.start_ready_agent();
    refuse(&cluster, "cart-0", "why");
    wait_until("the line", || agent.get("/metrics").1.contains("decision=\"error\""));
    cluster.node.set_configmap(&[("events", "true")]);
    cluster.server.forbid(Verb::Create, "events");
    // The setting is followed within a turn, so lines are sent until the first request.
    wait_until("a refused request", || {
        refuse(&cluster, "cart-1", "why");
        cluster
            .server
            .requests()
            .iter()
            .any(|request| request.path.ends_with("/events") && request.code == Some(403))
    });
    agent.wait_for_message("an event cannot be written");
    assert_eq!(events(&cluster), [Value::Null; 0]);
    assert!(!cluster.server.requests().iter().any(|request| request.body.contains("cart-0")));
    assert!(agent.is_ready());
}

#[test]
fn of_two_agents_on_a_node_only_the_leader_writes_events() {
    let cluster = Cluster::new("events-two");
    let start = |pod: &str| {
        let directory = cluster.node.root.join(pod);
        fs::create_dir_all(&directory).unwrap();
        let mut command = cluster.node.command();
        command.env("GYBE_POD_DIR", &directory).env("POD_NAME", pod);
        Agent::start(command)
    };
    let old = start("gybe-node-old");
    wait_until("readiness", || old.is_ready());
    refuse(&cluster, "cart-0", "why");
    wait_until("the old agent's event", || events(&cluster).len() == 1);
    let new = start("gybe-node-new");
    old.wait_for_message("hands over to a newer agent");
    wait_until("readiness", || new.is_ready());
    refuse(&cluster, "cart-1", "why");
    wait_until("the new agent's event", || events(&cluster).len() == 2);
    let instances: Vec<_> =
        events(&cluster).into_iter().map(|event| event["reportingInstance"].clone()).collect();
    assert_eq!(instances, ["gybe-node-old", "gybe-node-new"]);
}

/// Returns the rights in the rules of a manifest: API group, resource and verb of each.
pub(crate) fn rights_in(manifest: &Path) -> BTreeSet<(String, String, String)> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(manifest).unwrap()).unwrap();
    let texts = |rule: &Value, key: &str| -> Vec<String> {
        rule[key].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in documents.iter().flat_map(|document| document["rules"].as_array()).flatten() {
        for group in texts(rule, "apiGroups") {
            for resource in texts(rule, "resources") {
                let verbs = texts(rule, "verbs").into_iter();
                rights.extend(verbs.map(|verb| (group.clone(), resource.clone(), verb)));
            }
        }
    }
    rights
}

pub(crate) fn used_rights(cluster: &Cluster) -> BTreeSet<(String, String, String)> {
    let requests = cluster.server.requests();
    let rights = requests.iter().map(|request| request.right().unwrap());
    rights.map(|(group, resource, verb)| (group, resource, verb.to_owned())).collect()
}

#[test]
fn the_agent_uses_each_right_of_its_manifest_and_no_other() {
    let cluster = Cluster::new("events-rights");
    cluster.set_daemonset(true);
    let _agent = cluster.start_ready_agent();
    // A pod that the watch does not deliver is requested by its name.
    cluster.node.query("shop", "cart-9", "cart-9");
    refuse(&cluster, "cart-0", "why");
    wait_until("an event", || events(&cluster).len() == 1);
    refuse(&cluster, "cart-0", "why");
    let granted = rights_in(Path::new("../manifests/base/rbac.yaml"));
    wait_until("all rights", || used_rights(&cluster).len() >= granted.len());
    assert_eq!(used_rights(&cluster), granted);
}

fn soon() -> Instant {
    Instant::now() + QUERY_DEADLINE
}

fn daemonset() -> Value {
    json!({ "kind": "DaemonSet", "metadata": { "namespace": "gybe-system", "name": "gybe-node" } })
}

fn daemonset_of(cluster: &TestCluster) -> DaemonSetState {
    daemonset_within(PATIENCE, cluster)
}

fn daemonset_within(time: Duration, cluster: &TestCluster) -> DaemonSetState {
    let before = Instant::now();
    let state = daemonset_state(&cluster.settings(), "gybe-system", "gybe-node", before + time);
    assert!(before.elapsed() < time + Duration::from_secs(5), "{:?}: {state:?}", before.elapsed());
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
        let state = daemonset_within(QUERY_DEADLINE, &cluster);
        assert!(matches!(state, DaemonSetState::Unknown(_)), "{fault:?}");
        cluster.server.clear_faults();
    }
    for network in [Network::Unreachable, Network::Silent, Network::Refusing] {
        cluster.server.set_network(network).unwrap();
        let state = daemonset_within(QUERY_DEADLINE, &cluster);
        assert!(matches!(state, DaemonSetState::Unknown(_)), "{network:?}");
    }
    cluster.server.set_network(Network::Open).unwrap();
    assert_eq!(daemonset_of(&cluster), DaemonSetState::Present);
    // The server's sentence has the name.
    let long = daemonset_state(&cluster.settings(), "gybe-system", &"x".repeat(20_000), soon());
    assert!(matches!(&long, DaemonSetState::Unknown(why) if why.contains("daemonsets")), "{long:?}");
    let nowhere = daemonset_state(&cluster.settings(), "", "gybe-node", soon());
    assert!(matches!(nowhere, DaemonSetState::Unknown(_)), "{nowhere:?}");
}

#[test]
fn a_missing_part_of_the_service_account_is_named() {
    let cluster = TestCluster::new("missing");
    let error_of =
        |cluster: &cluster::Cluster| match daemonset_state(cluster, "gybe-system", "gybe-node", soon()) {
            DaemonSetState::Unknown(why) => why,
            other => panic!("{other:?}"),
        };
    let cluster::Cluster::Own(account) = cluster.settings() else { unreachable!() };
    let nowhere = ServiceAccount { directory: cluster.directory.join("nowhere"), ..account.clone() };
    let fault = error_of(&cluster::Cluster::Own(nowhere));
    assert!(fault.contains("nowhere/ca.crt cannot be read"), "{fault}");
    fs::remove_file(account.directory.join("token")).unwrap();
    let fault = error_of(&cluster::Cluster::Own(account.clone()));
    assert!(fault.contains("serviceaccount/token cannot be used: No such file"), "{fault}");
    let fault = error_of(&cluster::Cluster::Own(ServiceAccount { port: "none".into(), ..account }));
    assert!(fault.contains("no address"), "{fault}");
}
