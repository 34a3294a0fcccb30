//! How containerd calls a plugin: the behaviour that Gybe relies on.

use gybe_containerd_tests::{Conflist, Generation, Node, PausePoint, RecordedCall, Sandbox, conflist};
use serde_json::{Value, json};

use crate::fixture::{entries, kill_containerd_during_add, node, on_every_generation};

const PAUSE_SOCKET: &str = "/run/gybe/pause.sock";
/// host-local's files of assigned addresses.
const LEASES: &str = "/var/lib/cni/networks/gybe-test";

fn conflist_with_recorder(generation: Generation) -> Conflist {
    Conflist::reference_plugins(generation).with_plugin(conflist::recorder())
}

/// A conflist whose recorder has another key.
fn conflist_with_recorder_key(generation: Generation, key: &str, value: &str) -> Conflist {
    let mut entry = conflist::recorder();
    entry[key] = Value::from(value);
    Conflist::reference_plugins(generation).with_plugin(entry)
}

/// A call. DELs differ in whether they have the namespace's path and the result of the ADD.
#[derive(Debug, PartialEq)]
enum CallKind {
    Add,
    DelWithNetnsAndResult,
    DelWithNetns,
    DelWithoutNetns,
}

/// Returns the calls for the first sandbox whose ADD came to the recorder. When a plugin before it refuses a sandbox,
/// the recorder gets only DELs, and the next attempt has another container id.
fn kinds(node: &Node) -> Vec<CallKind> {
    let calls = node.recorded_calls().unwrap();
    let id = |call: &RecordedCall| call.variable("CNI_CONTAINERID").to_owned();
    let added = calls.iter().find(|call| call.command() == "ADD").map(id);
    calls.iter().filter(|call| Some(id(call)) == added).filter_map(kind).collect()
}

fn kind(call: &RecordedCall) -> Option<CallKind> {
    let netns = !call.variable("CNI_NETNS").is_empty();
    let result = !call.stdin("/prevResult").is_null();
    match (call.command(), netns, result) {
        ("ADD", true, true) => Some(CallKind::Add),
        ("DEL", true, true) => Some(CallKind::DelWithNetnsAndResult),
        ("DEL", true, false) => Some(CallKind::DelWithNetns),
        ("DEL", false, false) => Some(CallKind::DelWithoutNetns),
        ("STATUS", false, false) => None,
        other => panic!("an unexpected kind of call: {other:?}"),
    }
}

on_every_generation! {
    fn a_sandbox_has_two_addresses_and_a_namespace(generation: Generation) {
        let node = node(generation, &conflist_with_recorder(generation));
        let id = node.cri.run(&Sandbox::new("shop", "cart")).unwrap();
        let status = node.cri.sandbox_status(&id).unwrap();
        assert!(status.ready);
        assert_eq!(status.addresses.len(), 2, "{status:?}");
        assert!(node.host().path(status.netns.unwrap()).exists());
        assert_eq!(node.cri.list().unwrap(), [id]);
    }
}

on_every_generation! {
    fn an_add_has_the_annotations_and_the_result_of_the_plugins_before(generation: Generation) {
        let node = node(generation, &conflist_with_recorder(generation));
        let pod = Sandbox::new("shop", "cart")
            .with_annotation("sidecar.istio.io/status", "{}")
            .with_host_port(18080, 8080);
        let id = node.cri.run(&pod).unwrap();
        let calls = node.recorded_calls().unwrap();
        let add = calls.iter().find(|call| call.command() == "ADD").unwrap();

        assert_eq!(add.argument("K8S_POD_NAMESPACE"), Some("shop"));
        assert_eq!(add.argument("K8S_POD_NAME"), Some("cart"));
        assert_eq!(add.argument("K8S_POD_UID"), Some(Sandbox::new("shop", "cart").uid().as_str()));
        assert_eq!(add.argument("K8S_POD_INFRA_CONTAINER_ID"), Some(id.as_str()));
        assert_eq!(add.argument("IgnoreUnknown"), Some("1"));
        assert_eq!(add.variable("CNI_CONTAINERID"), id);
        assert_eq!(*add.stdin("/cniVersion"), generation.cni_version());
        let annotations = add.stdin("/runtimeConfig/io.kubernetes.cri.pod-annotations");
        assert_eq!(*annotations, json!({ "sidecar.istio.io/status": "{}" }));
        let addresses = add.stdin("/prevResult/ips").as_array().unwrap();
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        let interfaces = add.stdin("/prevResult/interfaces").as_array().unwrap();
        let in_pod = interfaces.iter().find(|interface| interface["sandbox"] == add.variable("CNI_NETNS"));
        assert_eq!(in_pod.unwrap()["name"], "eth0");
    }
}

on_every_generation! {
    fn containerd_repeats_dels(generation: Generation) {
        let node = node(generation, &conflist_with_recorder(generation));
        let id = node.cri.run(&Sandbox::new("shop", "cart")).unwrap();
        node.cri.stop(&id).unwrap();
        node.cri.delete(&id).unwrap();
        let expected = [
            CallKind::Add,
            CallKind::DelWithNetnsAndResult,
            CallKind::DelWithoutNetns,
            CallKind::DelWithoutNetns,
        ];
        assert_eq!(kinds(&node), expected);
        assert_eq!(node.cri.list().unwrap(), [""; 0]);
    }
}

on_every_generation! {
    fn the_kubelet_receives_the_error_of_an_add_and_the_network_is_removed(generation: Generation) {
        let conflist = conflist_with_recorder_key(generation, "fail_add", "the reason");
        let node = node(generation, &conflist);
        let error = node.cri.run(&Sandbox::new("shop", "cart")).unwrap_err();
        let expected = r#"plugin type="gybe-recorder" failed (add): the reason"#;
        assert!(error.message().contains(expected), "{error}");
        let kinds = kinds(&node);
        assert_eq!(kinds[0], CallKind::Add);
        assert!(kinds[1..].iter().all(|kind| *kind == CallKind::DelWithNetns), "{kinds:?}");
        assert!(!kinds[1..].is_empty());
        assert_eq!(node.cri.list().unwrap(), [""; 0]);
        assert_eq!(entries(&node, "/run/netns"), [""; 0]);
        assert_eq!(entries(&node, LEASES).len(), 3, "a lock and the last address of each range");
    }
}

on_every_generation! {
    fn containerd_killed_during_an_add_calls_del_after_its_restart_except_1_7(generation: Generation) {
        let node = node(generation, &conflist_with_recorder_key(generation, "pause_at", PAUSE_SOCKET));
        let pause_point = PausePoint::listen(node.host(), PAUSE_SOCKET).unwrap();
        let sandbox = Sandbox::new("shop", "cart");
        let (killed, plugin) = kill_containerd_during_add(node, &pause_point, &sandbox);
        drop(plugin);
        let node = killed.restart_containerd().unwrap();
        for id in node.cri.list().unwrap() {
            node.cri.delete(&id).unwrap();
        }
        let expected = [CallKind::Add, CallKind::DelWithNetns, CallKind::DelWithoutNetns];
        match generation {
            Generation::V1_6 | Generation::V2 => assert_eq!(kinds(&node), expected),
            // It stores a sandbox only after its network: the namespace is never removed.
            Generation::V1_7 => assert_eq!(kinds(&node), [CallKind::Add]),
        }
    }
}

#[test]
fn containerd_2_x_calls_status_and_reports_the_network_ready() {
    let generation = Generation::V2;
    let node = node(generation, &conflist_with_recorder(generation));
    let network = node.cri.network_condition().unwrap();
    assert!(network.holds, "{network:?}");
    let calls = node.recorded_calls().unwrap();
    let status = calls.iter().find(|call| call.command() == "STATUS").unwrap();
    assert!(status.stdin("/prevResult").is_null());
    assert_eq!(status.variable("CNI_CONTAINERID"), "");
}

#[test]
fn containerd_2_x_reports_the_error_of_a_status_to_the_kubelet() {
    let generation = Generation::V2;
    let conflist = conflist_with_recorder_key(generation, "fail_status", "the kernel lacks nft_redir");
    let network = node(generation, &conflist).cri.network_condition().unwrap();
    assert!(!network.holds);
    assert!(network.message.contains("the kernel lacks nft_redir"), "{network:?}");
}
