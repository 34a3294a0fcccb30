//! How containerd calls a plugin: what Gybe builds upon, so that a runtime which changes it is
//! noticed here and not on a node.

use gybe_containerd_tests::{Call, Chain, Generation, Hold, Node, Sandbox, chain};
use serde_json::{Value, json};

use crate::ground::{entries, killed_during_add, node, on_every_generation};

const HOLD: &str = "/run/gybe/hold.sock";
/// Where host-local notes which addresses are taken.
const LEASES: &str = "/var/lib/cni/networks/gybe-test";

fn recorded(generation: Generation) -> Chain {
    Chain::of_reference_plugins(generation).then(chain::recorder())
}

/// The chain with a recorder that has one more key.
fn recorded_with(generation: Generation, key: &str, value: &str) -> Chain {
    let mut entry = chain::recorder();
    entry[key] = Value::from(value);
    Chain::of_reference_plugins(generation).then(entry)
}

/// A DEL is told apart by what it knows: the namespace's path, and what ADD had answered.
#[derive(Debug, PartialEq)]
enum Kind {
    Add,
    DelKnowingAll,
    DelKnowingNetns,
    DelKnowingNothing,
}

fn kinds(node: &Node) -> Vec<Kind> {
    let calls = node.calls().unwrap();
    calls.iter().filter_map(kind).collect()
}

fn kind(call: &Call) -> Option<Kind> {
    let netns = !call.variable("CNI_NETNS").is_empty();
    let result = !call.stdin("/prevResult").is_null();
    match (call.verb(), netns, result) {
        ("ADD", true, true) => Some(Kind::Add),
        ("DEL", true, true) => Some(Kind::DelKnowingAll),
        ("DEL", true, false) => Some(Kind::DelKnowingNetns),
        ("DEL", false, false) => Some(Kind::DelKnowingNothing),
        ("STATUS", false, false) => None,
        other => panic!("a call nobody has seen before: {other:?}"),
    }
}

on_every_generation! {
    fn a_sandbox_comes_up_with_two_addresses_and_its_namespace(generation: Generation) {
        let node = node(generation, &recorded(generation));
        let id = node.cri.run(&Sandbox::named("shop", "cart")).unwrap();
        let standing = node.cri.standing(&id).unwrap();
        assert!(standing.ready);
        assert_eq!(standing.addresses.len(), 2, "{standing:?}");
        assert!(node.stage().path(standing.netns.unwrap()).exists());
        assert_eq!(node.cri.list().unwrap(), [id]);
    }
}

on_every_generation! {
    fn an_add_brings_annotations_and_what_the_plugins_before_have_done(generation: Generation) {
        let node = node(generation, &recorded(generation));
        let pod = Sandbox::named("shop", "cart")
            .annotated("sidecar.istio.io/status", "{}")
            .published(18080, 8080);
        let id = node.cri.run(&pod).unwrap();
        let calls = node.calls().unwrap();
        let add = calls.iter().find(|call| call.verb() == "ADD").unwrap();

        assert_eq!(add.argument("K8S_POD_NAMESPACE"), Some("shop"));
        assert_eq!(add.argument("K8S_POD_NAME"), Some("cart"));
        assert_eq!(add.argument("K8S_POD_UID"), Some("uid-of-shop-cart"));
        assert_eq!(add.argument("K8S_POD_INFRA_CONTAINER_ID"), Some(id.as_str()));
        assert_eq!(add.argument("IgnoreUnknown"), Some("1"));
        assert_eq!(add.variable("CNI_CONTAINERID"), id);
        assert_eq!(*add.stdin("/cniVersion"), generation.cni_version());
        let annotations = add.stdin("/runtimeConfig/io.kubernetes.cri.pod-annotations");
        assert_eq!(*annotations, json!({ "sidecar.istio.io/status": "{}" }));
        let addresses = add.stdin("/prevResult/ips").as_array().unwrap();
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        let interfaces = add.stdin("/prevResult/interfaces").as_array().unwrap();
        let inside = interfaces.iter().find(|one| one["sandbox"] == add.variable("CNI_NETNS"));
        assert_eq!(inside.unwrap()["name"], "eth0");
    }
}

on_every_generation! {
    fn a_sandbox_is_taken_down_more_than_once(generation: Generation) {
        let node = node(generation, &recorded(generation));
        let id = node.cri.run(&Sandbox::named("shop", "cart")).unwrap();
        node.cri.stop(&id).unwrap();
        node.cri.stop(&id).unwrap();
        node.cri.remove(&id).unwrap();
        let expected = [
            Kind::Add,
            Kind::DelKnowingAll,
            Kind::DelKnowingNothing,
            Kind::DelKnowingNothing,
        ];
        assert_eq!(kinds(&node), expected);
        assert_eq!(node.cri.list().unwrap(), [""; 0]);
    }
}

on_every_generation! {
    fn a_refused_add_is_told_to_the_kubelet_and_taken_down(generation: Generation) {
        let chain = recorded_with(generation, "refuse", "no, and this is why");
        let node = node(generation, &chain);
        let trouble = node.cri.run(&Sandbox::named("shop", "cart")).unwrap_err();
        let wanted = r#"plugin type="gybe-recorder" failed (add): no, and this is why"#;
        assert!(trouble.message().contains(wanted), "{trouble}");
        let kinds = kinds(&node);
        assert_eq!(kinds[0], Kind::Add);
        assert!(kinds[1..].iter().all(|kind| *kind == Kind::DelKnowingNetns), "{kinds:?}");
        assert!(!kinds[1..].is_empty());
        assert_eq!(node.cri.list().unwrap(), [""; 0]);
        assert_eq!(entries(&node, "/run/netns"), [""; 0]);
        assert_eq!(entries(&node, LEASES).len(), 3, "a lock, and the last address of each range");
    }
}

on_every_generation! {
    fn containerd_killed_during_an_add_takes_it_down_later_or_never(generation: Generation) {
        let node = node(generation, &recorded_with(generation, "hold", HOLD));
        let hold = Hold::at(node.stage(), HOLD).unwrap();
        let sandbox = Sandbox::named("shop", "cart");
        let (lost, plugin) = killed_during_add(node, &hold, &sandbox);
        drop(plugin);
        let node = lost.recover().unwrap();
        for id in node.cri.list().unwrap() {
            node.cri.stop(&id).unwrap();
            node.cri.remove(&id).unwrap();
        }
        let known = [Kind::Add, Kind::DelKnowingNetns, Kind::DelKnowingNothing];
        match generation {
            Generation::V1_6 | Generation::V2 => assert_eq!(kinds(&node), known),
            // It writes a sandbox down only after its network: the namespace stays for ever.
            Generation::V1_7 => assert_eq!(kinds(&node), [Kind::Add]),
        }
    }
}

#[test]
fn a_2_x_asks_for_status_and_is_content() {
    let generation = Generation::V2;
    let node = node(generation, &recorded(generation));
    let network = node.cri.network().unwrap();
    assert!(network.holds, "{network:?}");
    let calls = node.calls().unwrap();
    let status = calls.iter().find(|call| call.verb() == "STATUS").unwrap();
    assert!(status.stdin("/prevResult").is_null());
    assert_eq!(status.variable("CNI_CONTAINERID"), "");
}

#[test]
fn a_2_x_tells_the_kubelet_why_a_status_failed() {
    let generation = Generation::V2;
    let chain = recorded_with(generation, "unfit", "the kernel lacks nft_redir");
    let network = node(generation, &chain).cri.network().unwrap();
    assert!(!network.holds);
    assert!(network.message.contains("the kernel lacks nft_redir"), "{network:?}");
}
