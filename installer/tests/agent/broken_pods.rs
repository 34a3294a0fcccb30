//! Running pods that are not redirected, as the process that repairs pods reports them to the agent: events about
//! repairs, and the modes `delete` and `label`, with an API server that grants the rights of their components.

use crate::api_requests::{rights_in, used_rights};
use crate::node::FILE;
use crate::with_api_server::Cluster;
use gybe_api_server::Verb;
use gybe_test_support::{Agent, wait_until};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const LABEL: &str = "cni.istio.io/uninitialized";

fn socket_of(cluster: &Cluster) -> PathBuf {
    cluster.node.root.join("probe/repair.sock")
}

/// Sends a message as the process that repairs pods does, and waits until the agent closes the connection. `judgement`
/// answers its request for a judgement.
fn report(cluster: &Cluster, message: &Value, judgement: impl FnOnce() -> Value) {
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    wait_until("the agent's socket", || {
        connect(fd.as_raw_fd(), &UnixAddr::new(&socket_of(cluster)).unwrap()).is_ok()
    });
    // The agent may close the connection before it has read a message that is too long.
    let _ = send(fd.as_raw_fd(), message.to_string().as_bytes(), MsgFlags::MSG_NOSIGNAL);
    let mut request = [0; 16];
    let mut receive = || recv(fd.as_raw_fd(), &mut request, MsgFlags::empty()).unwrap_or_default();
    if receive() > 0 {
        send(fd.as_raw_fd(), judgement().to_string().as_bytes(), MsgFlags::MSG_NOSIGNAL).unwrap();
        assert_eq!(receive(), 0);
    }
}

/// The judgement that each sandbox of the pod should be redirected and is not.
fn not_redirected() -> Value {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap();
    json!({ "at": { "secs": now.tv_sec(), "nanos": now.tv_nsec() }, "verdict": "not-redirected" })
}

fn report_pod_judged(cluster: &Cluster, name: &str, judgement: impl FnOnce() -> Value) {
    let found = json!({ "not-redirected": { "why": "NOT REDIRECTED: it has no rules" } });
    let message = json!({ "namespace": "shop", "name": name, "uid": uid(name), "found": found });
    report(cluster, &message, judgement);
}

fn report_pod(cluster: &Cluster, name: &str) {
    report_pod_judged(cluster, name, not_redirected);
}

/// A pod on this node whose init container has failed once.
fn pod(name: &str) -> Value {
    let mut pod: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["uid"] = json!(uid(name));
    pod["spec"]["nodeName"] = json!("node-1");
    let failed = json!({ "terminated": { "exitCode": 126, "reason": "Error" } });
    pod["status"] = json!({ "phase": "Pending", "initContainerStatuses": [
        { "name": "istio-validation", "state": { "waiting": {} }, "lastState": failed },
    ] });
    pod
}

fn uid(name: &str) -> String {
    format!("5f1d6c1e-{name}")
}

/// Returns a cluster with these pods in which a mode's component and setting are in effect.
fn cluster(test: &str, settings: &[(&str, &str)], pods: &[&str]) -> Cluster {
    let cluster = Cluster::new(test);
    cluster.server.permit(Verb::Delete, "pods");
    cluster.server.permit(Verb::Patch, "pods/status");
    for name in pods {
        cluster.server.put_pod(pod(name));
    }
    cluster.node.set_configmap(settings);
    // As the process that repairs pods does: its counts are in the metrics, too.
    let counts = json!({ "repaired": 0, "failed": 0, "not_redirected": 1 });
    cluster.node.root.write("probe/repairs.json", counts.to_string());
    cluster
}

fn names(cluster: &Cluster) -> Vec<String> {
    let pods = cluster.server.objects("Pod");
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn label(cluster: &Cluster, name: &str, key: &str) -> Value {
    let pods = cluster.server.objects("Pod");
    let pod = pods.iter().find(|pod| pod["metadata"]["name"] == name).unwrap();
    pod["metadata"]["labels"][key].clone()
}

fn event(cluster: &Cluster, reason: &str) -> Value {
    let mut found = Value::Null;
    wait_until(reason, || {
        let events = cluster.server.objects("Event");
        found = events.into_iter().find(|event| event["reason"] == reason).unwrap_or_default();
        !found.is_null()
    });
    found
}

fn count(agent: &Agent, kind: &str, result: &str) -> f64 {
    agent.metric(&format!("istio_cni_repair_pods_repaired_total{{type=\"{kind}\",result=\"{result}\"}}"))
}

fn wait_for_count(agent: &Agent, kind: &str, result: &str, expected: f64) {
    wait_until(&format!("{expected} {kind} {result}"), || count(agent, kind, result) == expected);
}

/// Returns the right of each request since `start`, in order, with the methods that write.
fn writes(cluster: &Cluster) -> Vec<(String, String)> {
    let requests = cluster.server.requests();
    let writes = requests.into_iter().filter(|it| it.method == "DELETE" || it.path.ends_with("/status"));
    writes.map(|it| (it.method, it.path)).collect()
}

/// Asserts that the agent uses each right of the base and of this component, and no other.
fn assert_rights(cluster: &Cluster, component: &str) {
    cluster.node.query("shop", "cart-unknown", "u");
    let base = rights_in(Path::new("../manifests/base/rbac.yaml"));
    let component = rights_in(&Path::new("../manifests/components").join(component).join("rbac.yaml"));
    let mut granted: Vec<_> = base.union(&component).cloned().collect();
    // One event has no repeat to patch.
    granted.retain(|(_, resource, verb)| (resource.as_str(), verb.as_str()) != ("events", "patch"));
    wait_until("all rights", || used_rights(cluster).len() >= granted.len());
    assert_eq!(used_rights(cluster), granted.into_iter().collect());
}

#[test]
fn delete_deletes_the_reported_pod_with_an_event_and_with_the_rights_of_its_component() {
    let cluster = cluster("broken-delete", &[("repair", "delete")], &["cart-0", "cart-1"]);
    cluster.set_daemonset(true);
    let agent = cluster.start_ready_agent();
    assert_eq!(fs::metadata(socket_of(&cluster)).unwrap().permissions().mode() & 0o777, 0o600);
    report_pod(&cluster, "cart-0");
    wait_until("the deletion", || names(&cluster) == ["cart-1"]);
    let event = event(&cluster, "DeleteBrokenPod");
    assert_eq!((&event["regarding"]["uid"], &event["type"]), (&json!(uid("cart-0")), &json!("Warning")));
    assert!(event["note"].as_str().unwrap().contains("NOT REDIRECTED: it has no rules"), "{event}");
    wait_for_count(&agent, "delete", "success", 1.0);
    let path = "/api/v1/namespaces/shop/pods/cart-0".to_owned();
    assert_eq!(writes(&cluster), [("DELETE".to_owned(), path)]);
    assert_rights(&cluster, "repair-delete");
}

#[test]
fn a_socket_that_cannot_be_created_is_tried_again() {
    let cluster = cluster("broken-socket", &[("repair", "label")], &["cart-0"]);
    cluster.node.root.write("probe/repair.sock/file", "");
    let agent = cluster.start_ready_agent();
    agent.wait_for_message("findings about running pods cannot be received");
    fs::remove_dir_all(socket_of(&cluster)).unwrap();
    report_pod(&cluster, "cart-0");
    wait_until("the label", || label(&cluster, "cart-0", LABEL) == "true");
}

#[test]
fn label_labels_the_reported_pod_once_with_an_event_and_with_the_rights_of_its_component() {
    let cluster = cluster("broken-label", &[("repair", "label")], &["cart-0"]);
    cluster.set_daemonset(true);
    let agent = cluster.start_ready_agent();
    report_pod(&cluster, "cart-0");
    wait_until("the label", || label(&cluster, "cart-0", LABEL) == "true");
    assert_eq!(label(&cluster, "cart-0", "app"), "cart");
    let event = event(&cluster, "LabelBrokenPod");
    assert!(event["note"].as_str().unwrap().contains("cni.istio.io/uninitialized=true"), "{event}");
    report_pod(&cluster, "cart-0");
    wait_for_count(&agent, "label", "skip", 1.0);
    fs::write(cluster.node.conf_path(FILE), "{").unwrap();
    wait_until("the agent to be unready", || !agent.is_ready());
    report_pod(&cluster, "cart-0");
    let is_not_in_force = |line: &Value| line["why"].as_str().is_some_and(|why| why.contains("not in force"));
    agent.wait_for_line(is_not_in_force);
    let path = "/api/v1/namespaces/shop/pods/cart-0/status".to_owned();
    assert_eq!(writes(&cluster), [("PATCH".to_owned(), path)]);
    assert_rights(&cluster, "repair-label");
}

#[test]
fn a_pod_with_another_uid_on_another_node_or_outside_of_the_selectors_is_left_alone() {
    let settings = [
        ("repair", "delete"),
        ("repair_label_selector", "app!=shop"),
        ("repair_field_selector", "status.phase=Pending"),
        ("repair_exit_code", "126"),
    ];
    let pods = ["same", "other-uid", "other-node", "selected-not", "running", "passed", "leaving"];
    let cluster = cluster("broken-left", &settings, &pods);
    for (name, pointer, value) in [
        ("other-uid", "/metadata/uid", json!("another")),
        ("other-node", "/spec/nodeName", json!("node-2")),
        ("selected-not", "/metadata/labels/app", json!("shop")),
        ("running", "/status/phase", json!("Running")),
        ("passed", "/status/initContainerStatuses/0/lastState/terminated/exitCode", json!(0)),
    ] {
        let mut pod = pod(name);
        *pod.pointer_mut(pointer).unwrap() = value;
        cluster.server.put_pod(pod);
    }
    let mut leaving = pod("leaving");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    cluster.server.put_pod(leaving);
    let agent = cluster.start_ready_agent();
    for name in pods.iter().filter(|name| **name != "same") {
        report_pod(&cluster, name);
    }
    wait_for_count(&agent, "delete", "skip", 6.0);
    assert_eq!((names(&cluster).len(), writes(&cluster)), (7, Vec::new()));
    // The control: the one that meets every condition.
    report_pod(&cluster, "same");
    wait_until("the deletion", || names(&cluster).len() == 6);
}

#[test]
fn nothing_is_deleted_while_a_replacement_would_not_be_redirected_and_at_most_ten_pods_a_minute() {
    let pods: Vec<String> = (0..12).map(|n| format!("cart-{n}")).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let cluster = cluster("broken-many", &[("repair", "delete")], &pods);
    let agent = cluster.start_ready_agent();
    let conf = fs::read(cluster.node.conf_path(FILE)).unwrap();
    fs::write(cluster.node.conf_path(FILE), "{").unwrap();
    wait_until("the agent to be unready", || !agent.is_ready());
    report_pod(&cluster, "cart-0");
    let line = agent.wait_for_message("a pod that is not redirected is left alone");
    assert!(line["why"].as_str().unwrap().contains("a replacement may not be redirected"), "{line}");
    assert_eq!(names(&cluster).len(), 12);
    fs::write(cluster.node.conf_path(FILE), conf).unwrap();
    wait_until("readiness", || agent.is_ready());
    pods.iter().for_each(|name| report_pod(&cluster, name));
    wait_for_count(&agent, "delete", "skip", 3.0);
    assert_eq!((count(&agent, "delete", "success"), names(&cluster).len()), (10.0, 2));
}

#[test]
fn a_pod_is_left_alone_unless_it_is_judged_again_and_the_settings_stay() {
    let settings = [("repair", "delete"), ("exclude_namespaces", "kube-system")];
    let cluster = cluster("broken-judged", &settings, &["cart-0", "cart-1"]);
    let agent = cluster.start_ready_agent();
    let left_alone = |expected: &str| {
        let line = agent.next_message("gybe node: a pod that is not redirected is left alone");
        assert!(line["why"].as_str().unwrap().contains(expected), "{expected}: {line}");
    };
    let kept = || fs::read_to_string(cluster.node.root.join("probe/repair.json")).unwrap();
    for (judgement, why) in [
        (
            json!({ "at": not_redirected()["at"], "verdict": { "left-alone": { "why": "it is redirected" } } }),
            "it is redirected",
        ),
        (json!({ "at": { "secs": 0, "nanos": 0 }, "verdict": "not-redirected" }), "took too long"),
        (json!("x"), "has not judged it again"),
    ] {
        report_pod_judged(&cluster, "cart-0", || judgement);
        left_alone(why);
    }
    let excluded = || cluster.node.entry(FILE).map(|entry| entry["exclude_namespaces"].clone());
    for (changed, mode, namespaces) in [
        ([("repair", "off"), settings[1]], "off", json!(["kube-system"])),
        ([settings[0], ("exclude_namespaces", "kube-system,shop")], "delete", json!(["kube-system", "shop"])),
    ] {
        wait_until("settings in force", || {
            let mut is_judged = false;
            report_pod_judged(&cluster, "cart-0", || {
                is_judged = true;
                cluster.node.set_configmap(&changed);
                wait_until("the new settings", || {
                    kept().contains(mode) && excluded().as_ref() == Some(&namespaces)
                });
                not_redirected()
            });
            is_judged
        });
        assert_eq!(names(&cluster).len(), 2, "{mode}");
        cluster.node.set_configmap(&settings);
        wait_until("the former settings", || {
            kept().contains("delete") && excluded() == Some(json!(["kube-system"]))
        });
    }
    wait_until("the deletion, once the settings are in force", || {
        report_pod(&cluster, "cart-1");
        names(&cluster) == ["cart-0"]
    });
    assert_eq!(writes(&cluster).len(), 1);
}

#[test]
fn a_pod_that_changes_while_it_is_judged_is_left_alone() {
    for mode in ["delete", "label"] {
        let cluster = cluster(&format!("broken-changed-{mode}"), &[("repair", mode)], &["cart-0"]);
        let agent = cluster.start_ready_agent();
        report_pod_judged(&cluster, "cart-0", || {
            let mut changed = pod("cart-0");
            changed["metadata"]["labels"]["app"] = json!("changed");
            cluster.server.put_pod(changed);
            not_redirected()
        });
        let line = agent.wait_for_message("a pod that is not redirected is left alone");
        assert!(line["why"].as_str().unwrap().contains("it has changed"), "{line}");
        assert_eq!((names(&cluster).len(), label(&cluster, "cart-0", LABEL)), (1, Value::Null));
        report_pod(&cluster, "cart-0");
        wait_for_count(&agent, mode, "success", 1.0);
        assert_eq!(writes(&cluster).len(), 2);
        // Such a refusal may be that of a repeated deletion, the first of which took effect.
        let counted = fs::read_to_string(cluster.node.root.join("probe/deletions.json"));
        let counted = counted.map(|kept| serde_json::from_str::<Value>(&kept).unwrap()["requested"].clone());
        let requested = counted.ok().map(|requested| requested.as_array().unwrap().len());
        assert_eq!(requested, (mode == "delete").then_some(2));
    }
}

#[test]
fn other_modes_write_nothing_and_without_the_right_the_component_is_logged() {
    let cluster = cluster("broken-modes", &[("repair", "repair")], &["cart-0"]);
    let agent = cluster.start_ready_agent();
    report_pod(&cluster, "cart-0");
    // Messages are handled in order: after an event about the second one the first one was ignored.
    let repaired = json!({ "repaired": {
        "backend": "nft", "open_connections": 2, "captures_dns": true, "drops_invalid": false,
        "since_add": { "secs": 3, "nanos": 0 },
    } });
    let message =
        |found: &Value| json!({ "namespace": "shop", "name": "cart-0", "uid": "u-0", "found": found });
    report(&cluster, &message(&repaired), not_redirected);
    assert_eq!(agent.metric("gybe_pod_repair_seconds_sum"), 3.0);
    let event = event(&cluster, "RedirectionRepaired");
    assert_eq!((&event["type"], &event["action"]), (&json!("Normal"), &json!("Repair")));
    let note = event["note"].as_str().unwrap();
    assert!(
        note.contains("nft wrote its rules; 2 TCP connections") && note.contains("DNS queries"),
        "{note}"
    );
    report(&cluster, &message(&json!({ "not-repaired": { "why": "no backend works" } })), not_redirected);
    let failed = self::event(&cluster, "RepairFailed");
    assert!(failed["note"].as_str().unwrap().contains("no backend works"), "{failed}");
    assert_eq!(writes(&cluster), []);
    // A message that is no finding changes nothing, and the socket goes on answering.
    report(
        &cluster,
        &json!({ "namespace": "../shop", "name": "x", "uid": "u", "found": repaired }),
        not_redirected,
    );
    report(&cluster, &json!("x".repeat(100_000)), not_redirected);
    agent.wait_for_message("a finding was refused");
    cluster.server.forbid(Verb::Delete, "pods");
    cluster.node.set_configmap(&[("repair", "delete")]);
    wait_until("the mode", || {
        report_pod(&cluster, "cart-0");
        count(&agent, "delete", "fail") >= 1.0
    });
    let line = agent.wait_for_message("a pod that is not redirected cannot be changed");
    assert!(line["cause"].as_str().unwrap().contains("403"), "{line}");
    assert!(line["hint"].as_str().unwrap().contains("component repair-delete"), "{line}");
    assert!(agent.is_ready() && names(&cluster) == ["cart-0"]);
}

#[test]
fn events_that_the_api_server_refuses_are_counted_as_dropped() {
    let cluster = cluster("broken-events", &[], &[]);
    cluster.server.forbid(Verb::Create, "events");
    let agent = cluster.start_ready_agent();
    assert_eq!(agent.metric("gybe_events_dropped_total"), 0.0);
    let found = json!({ "not-repaired": { "why": "no backend works" } });
    report(
        &cluster,
        &json!({ "namespace": "shop", "name": "cart-0", "uid": "u-0", "found": found }),
        not_redirected,
    );
    wait_until("a dropped event", || agent.metric("gybe_events_dropped_total") == 1.0);
}
