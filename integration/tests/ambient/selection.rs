//! Which pods are ambient, as ADDs and `gybe explain` show it.

use crate::fixture::{MODE, Node, Pod, is_ambient};
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::programs::ours;
use gybe_test_support::{facts, wait_until};
use serde_json::json;

/// Adds a pod in a new namespace; reports whether it is ambient.
fn added(node: &Node, pod: Pod) -> bool {
    let (pod, netns) = (pod.put(node), Namespace::new().unwrap());
    node.added(&pod, &netns);
    is_ambient(&netns)
}

#[test]
fn labels_of_the_pod_and_of_its_namespace_decide_and_a_changed_one_for_the_next_pod() {
    let node = Node::start("ambient-labels");
    let _ztunnel = node.ztunnel(&[]);
    assert!(added(&node, Pod::new("shop", "a")));
    assert!(added(&node, Pod::new("plain", "b").with_labels(json!({ MODE: "ambient" }))));
    assert!(!added(&node, Pod::new("plain", "c")));
    node.put_namespace("plain", &json!({ MODE: "ambient" }));
    let mut pods = 0..;
    wait_until("the namespace's label is known", || {
        added(&node, Pod::new("plain", &format!("later-{}", pods.next().unwrap())))
    });
}

#[test]
fn a_pod_of_a_new_namespace_waits_until_its_labels_are_known() {
    let node = Node::start("ambient-new-namespace");
    let (_ztunnel, netns) = (node.ztunnel(&[]), Namespace::new().unwrap());
    let pod = Pod::new("new", "a").put(&node);
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| node.added(&pod, &netns));
        node.put_namespace("new", &json!({ MODE: "ambient" }));
        adding.join().unwrap();
    });
    assert!(is_ambient(&netns));
    node.refused(
        &Pod::new("absent", "a").put(&node),
        &Namespace::new().unwrap(),
        "032",
        "labels of namespace absent",
    );
}

#[test]
fn without_a_uid_from_the_runtime_facts_decide_about_no_pod_without_a_sidecar() {
    let node = Node::start("ambient-no-uid");
    let _ztunnel = node.ztunnel(&[]);
    let added = |pod: Pod| {
        let (pod, netns) = (pod.put(&node), Namespace::new().unwrap());
        netns.run(|| gybe_integration::namespace::sh("ip address add 10.244.0.10/32 dev lo")).unwrap();
        let mut call = node.prepared("ADD", &pod, &netns);
        let args = call.env["CNI_ARGS"].replace(&format!(";K8S_POD_UID={}", pod.uid), "");
        call.env.insert("CNI_ARGS".into(), args);
        call.run(&node.directory, "").unwrap()
    };
    // The facts may be those of an earlier pod, ambient or not, and the new one the opposite.
    for pod in [Pod::new("shop", "a"), Pod::new("plain", "b")] {
        let refused = added(pod);
        assert!(refused.out.contains("GYBE-ADD-018") && refused.out.contains("\"code\":11"), "{refused:?}");
        assert!(refused.out.contains("CNI_ARGS has no K8S_POD_UID"), "{refused:?}");
    }
    let sidecar = added(Pod::new("shop", "c").with_sidecar());
    assert_eq!(sidecar.code, Some(0), "{sidecar:?}");
}

#[test]
fn the_selectors_of_the_settings_replace_the_default_ones() {
    let selectors = "- podSelector: { matchLabels: { tier: web } }\n  namespaceSelector: { matchExpressions: [{ key: team, operator: Exists }] }\n";
    let node = Node::with_settings("ambient-selectors", &[("ambient_enablement_selectors", selectors)]);
    let _ztunnel = node.ztunnel(&[]);
    node.put_namespace("plain", &json!({ "team": "a" }));
    let web = || json!({ "tier": "web" });
    let mut pods = 0..;
    wait_until("the namespace's label is known", || {
        added(&node, Pod::new("plain", &format!("web-{}", pods.next().unwrap())).with_labels(web()))
    });
    assert!(!added(&node, Pod::new("plain", "db").with_labels(json!({ "tier": "db" }))));
    assert!(!added(&node, Pod::new("shop", "web").with_labels(web())));
}

#[test]
fn annotations_of_the_pod_change_its_rules() {
    let node = Node::start("ambient-annotations");
    let _ztunnel = node.ztunnel(&[]);
    let rules = |name: &str, annotation: (&str, &str)| {
        let pod = Pod::new("shop", name).with_annotation(annotation.0, annotation.1).put(&node);
        let netns = Namespace::new().unwrap();
        node.added(&pod, &netns);
        crate::fixture::inspect(&netns)
    };
    let default = rules("default", ("example.com/x", "y"));
    assert!(default.contains("inbound-to-ztunnel") && default.contains("dns-to-ztunnel-udp"), "{default}");
    let gateway = rules("gateway", ("ambient.istio.io/bypass-inbound-capture", "true"));
    assert!(!gateway.contains("inbound-to-ztunnel") && gateway.contains("outbound-to-ztunnel"), "{gateway}");
    let without_dns = rules("no-dns", ("ambient.istio.io/dns-capture", "false"));
    assert!(!without_dns.contains("dns-to-ztunnel"), "{without_dns}");
    let machine = rules("machine", ("istio.io/reroute-virtual-interfaces", "tap0, tap1"));
    assert!(machine.contains("machine-to-ztunnel"), "{machine}");
    // A text that is no boolean counts as no annotation, and the plugin logs it.
    let unclear = rules("unclear", ("ambient.istio.io/dns-capture", "maybe"));
    assert!(unclear.contains("dns-to-ztunnel-udp"), "{unclear}");
    let warning = "annotation ambient.istio.io/dns-capture is neither true nor false";
    let line = node.agent().wait_for_line(|line| line["doubt"] == warning);
    assert_eq!(line["pod"], "shop/unclear");
}

#[test]
fn explain_names_the_label_and_the_selector() {
    let node = Node::start("ambient-explain");
    let conf_dir = node.directory.path().join("net.d").display().to_string();
    let explained = |pod: &Pod| {
        let ran = ours("gybe", &["explain", &pod.reference(), "--conf-dir", &conf_dir], "").unwrap();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.out
    };
    for (pod, text) in [
        (Pod::new("shop", "a"), format!("ambient: namespace label {MODE}=ambient (enablement selector 2)")),
        (Pod::new("shop", "b").with_sidecar(), "not ambient: it has a sidecar".to_owned()),
        (Pod::new("plain", "c"), "not ambient: no enablement selector selects it".to_owned()),
    ] {
        let pod = pod.put(&node);
        wait_until(&text, || explained(&pod).contains(&text));
    }
}

#[test]
fn a_plugin_of_before_ambient_mode_gets_no_ambient_pod() {
    let node = Node::start("ambient-older");
    let socket = node.directory.run().join("facts.sock");
    let [ambient, plain] = ["shop", "plain"].map(|namespace| Pod::new(namespace, "a").put(&node));
    for (pod, is_refused) in [(&ambient, true), (&plain, false)] {
        let (namespace, name) = pod.names();
        let request = facts::request(namespace, name, &pod.uid);
        wait_until("the agent knows the pod", || {
            let response = facts::query(&socket, &request);
            let fault = response["fault"].as_str();
            assert!(!is_refused || response["pod"].is_null(), "{response}");
            match is_refused {
                true => fault.is_some_and(|why| why.contains("without ambient mode")),
                false => response["pod"].is_object() && fault.is_none(),
            }
        });
    }
}

#[test]
fn a_source_that_does_not_know_the_labels_of_namespaces_decides_about_no_pod_without_a_sidecar() {
    let node = Node::start("ambient-directory");
    let added = |pod: &Pod| {
        let manifests = node.put_manifest(pod);
        let netns = Namespace::new().unwrap();
        netns.run(|| gybe_integration::namespace::sh("ip address add 10.244.0.10/32 dev lo")).unwrap();
        let mut call = node.prepared("ADD", pod, &netns);
        call.stdin["facts"] = json!({ "socket": "", "directory": manifests });
        call.run(&node.directory, "").unwrap()
    };
    let refused = added(&Pod::new("shop", "a"));
    assert!(refused.out.contains("GYBE-ADD-037") && refused.out.contains("\"code\":11"), "{refused:?}");
    assert_eq!(added(&Pod::new("shop", "b").with_sidecar()).code, Some(0));
}
