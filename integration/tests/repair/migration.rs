//! `gybe migrate --dry-run` on a node whose pods have the rules of istio-cni.

use crate::node::{Node, Pod};
use gybe_integration::programs::run;
use serde_json::{Value, json};

/// The rules that istio-cni writes for the pod of the example.
const ISTIO: &str = "*nat
:ISTIO_INBOUND - [0:0]
:ISTIO_REDIRECT - [0:0]
:ISTIO_IN_REDIRECT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -p tcp -j ISTIO_INBOUND
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A ISTIO_INBOUND -p tcp --dport 15008 -j RETURN
-A ISTIO_INBOUND -p tcp --dport 15090 -j RETURN
-A ISTIO_INBOUND -p tcp --dport 15021 -j RETURN
-A ISTIO_INBOUND -p tcp --dport 15020 -j RETURN
-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -p tcp --dport 3306 -j RETURN
-A ISTIO_OUTPUT -s 127.0.0.6/32 -o lo -j RETURN
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp ! --dport 15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp ! --dport 15008 -m owner --gid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
-A ISTIO_OUTPUT -j ISTIO_REDIRECT
COMMIT
";

/// A pod of the mesh with these rules.
fn pod(node: &Node, number: u32, rules: &str) -> Pod {
    let pod = node.unredirected(number);
    let written = pod.netns.run(|| run("iptables-nft-restore", &[], rules)).unwrap().unwrap();
    assert_eq!(written.code, Some(0), "{written:?}");
    pod
}

/// Changes the manifest of the example.
type Change<'a> = &'a dyn Fn(&mut Value);

/// The pods' manifests as `kubectl get pods -o json` prints them.
fn list(node: &Node, pods: &[(&Pod, Change<'_>)]) -> String {
    let manifest = |(pod, change): &(&Pod, Change<'_>)| {
        let mut manifest: Value = serde_json::from_str(include_str!("../../../examples/pod.json")).unwrap();
        manifest["metadata"]["name"] = json!(pod.name());
        manifest["metadata"]["uid"] = json!(pod.uid());
        change(&mut manifest);
        manifest
    };
    let list = json!({ "kind": "List", "items": pods.iter().map(manifest).collect::<Vec<_>>() });
    node.root.write("pods.json", list.to_string()).display().to_string()
}

#[test]
fn pods_that_gybe_would_treat_otherwise_are_named_with_the_connections() {
    let node = Node::new("migrate", "auto");
    let alike = pod(&node, 1, ISTIO);
    let more_ports = pod(&node, 2, &ISTIO.replace("--dport 3306", "--dport 3307"));
    let unmeshed = pod(&node, 3, ISTIO);
    let unredirected = node.unredirected(4);
    let own_init = pod(&node, 5, ISTIO);
    let unlisted = pod(&node, 6, ISTIO);
    let same: Change<'_> = &|_| ();
    let no_proxy: Change<'_> = &|pod| pod["spec"]["initContainers"] = json!([]);
    let istio_init: Change<'_> = &|pod| pod["spec"]["initContainers"][0]["name"] = "istio-init".into();
    let pods = list(
        &node,
        &[
            (&alike, same),
            (&more_ports, same),
            (&unmeshed, no_proxy),
            (&unredirected, same),
            (&own_init, istio_init),
        ],
    );
    let before: Vec<String> = [&alike, &unredirected].map(Pod::rules).into();
    let ran = node.gybe(&["migrate", "--dry-run", "--json", "--pods", &pods]);
    let json: Value = serde_json::from_str(&ran.out).unwrap_or_else(|why| panic!("{why}: {ran:?}"));
    assert_eq!((ran.code, &json["holds"]), (Some(1), &json!(false)), "{ran:?}");
    let change = |pod: &Pod| {
        let found = json["sandboxes"].as_array().unwrap().iter().find(|one| one["name"] == pod.name());
        let found = found.unwrap_or_else(|| panic!("{}: {json:#}", pod.name()));
        (found["change"].as_str().unwrap().to_owned(), found["reasons"].to_string())
    };
    for (pod, expected, says) in [
        (&alike, "none", "the same connections"),
        (&more_ports, "otherwise", ":3306 goes to port 15001 of the pod instead of keeping its destination"),
        (&unmeshed, "otherwise", "instead of keeping its destination"),
        (&unredirected, "otherwise", "keeps its destination instead of port 15001 of the proxy"),
        (&own_init, "none", "istio-init"),
        (&unlisted, "unknown", "the node agent at"),
    ] {
        let (change, reasons) = change(pod);
        assert_eq!(change, expected, "{}: {reasons}", pod.name());
        assert!(reasons.contains(says), "{}: {reasons}", pod.name());
    }
    assert!(change(&more_ports).1.contains(":3307 keeps its destination instead of port 15001"));
    assert_eq!([&alike, &unredirected].map(Pod::rules).to_vec(), before);
}

#[test]
fn a_node_on_which_nothing_would_change_has_exit_code_0() {
    let node = Node::new("migrate-same", "auto");
    let pods = [pod(&node, 1, ISTIO), pod(&node, 2, ISTIO)];
    let listed = list(&node, &[(&pods[0], &|_| ()), (&pods[1], &|_| ())]);
    let ran = node.gybe(&["migrate", "--dry-run", "--pods", &listed]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.out.ends_with("2 sandboxes: 0 would be treated otherwise, 0 unknown\n"), "{ran:?}");
    let without = node.gybe(&["migrate", "--pods", &listed]);
    assert!(without.code == Some(2) && without.err.contains("--dry-run"), "{without:?}");
}
