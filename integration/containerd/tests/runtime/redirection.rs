//! Where connections of pods end with Gybe in the conflist.

use gybe_containerd_tests::sandbox::UserNamespace;
use gybe_containerd_tests::{Generation, Sandbox, manifest};
use gybe_netfilter::model::packet::Owner;

use crate::fixture::{entries, gybe_node, on_every_generation, turn_of_many_sandboxes};
use crate::pod::{APPLICATION, Destination, OUTSIDE, OutsideClient, PROXY, RunningPod};

/// The kubelet's default limit of pods on a node.
const PODS_OF_A_NODE: usize = 110;

on_every_generation! {
    fn connections_to_and_from_an_injected_pod_reach_its_proxy(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::injected("shop", "cart");
        let pod = RunningPod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let outside = OutsideClient::new(&node);
        assert_eq!(pod.addresses.len(), 2);
        for address in pod.addresses.iter().copied() {
            assert_eq!(outside.connect(address, 8080), Destination::proxy(15006, address, 8080));
            assert_eq!(outside.connect(address, 15021), *"refused", "the proxy's own port, not captured");
        }
        for address in OUTSIDE {
            assert_eq!(pod.connect(APPLICATION, address, 80), Destination::proxy(15001, address, 80));
            assert_eq!(pod.connect(PROXY, address, 80), *"outside");
        }
    }
}

on_every_generation! {
    fn connections_of_a_pod_without_a_proxy_are_not_redirected(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::new("shop", "plain");
        let pod = RunningPod::start(&node, &sandbox, &manifest::plain(&sandbox));
        let outside = OutsideClient::new(&node);
        for address in pod.addresses.iter().copied() {
            assert_eq!(outside.connect(address, 8080), *"app");
        }
        for address in OUTSIDE {
            assert_eq!(pod.connect(APPLICATION, address, 80), *"outside");
        }
    }
}

on_every_generation! {
    fn a_host_port_leads_to_the_pods_proxy(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::injected("shop", "cart").with_host_port(18080, 8080);
        let pod = RunningPod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let destination = OutsideClient::new(&node).connect(OUTSIDE[0], 18080);
        assert_eq!(destination, Destination::proxy(15006, pod.addresses[0], 8080));
    }
}

on_every_generation! {
    fn annotations_exclude_ports(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::injected("shop", "cart")
            .with_annotation("traffic.sidecar.istio.io/excludeInboundPorts", "8080")
            .with_annotation("traffic.sidecar.istio.io/excludeOutboundPorts", "80");
        let pod = RunningPod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let outside = OutsideClient::new(&node);
        assert_eq!(outside.connect(pod.addresses[0], 8080), *"app");
        assert_eq!(outside.connect(pod.addresses[0], 81), Destination::proxy(15006, pod.addresses[0], 81));
        assert_eq!(pod.connect(APPLICATION, OUTSIDE[0], 80), *"outside");
        assert_eq!(pod.connect(APPLICATION, OUTSIDE[0], 81), Destination::proxy(15001, OUTSIDE[0], 81));
    }
}

on_every_generation! {
    fn all_pods_of_a_full_node_that_start_at_once_are_redirected(generation: Generation) {
        let _turn = turn_of_many_sandboxes();
        let node = gybe_node(generation);
        let name = |number| Sandbox::injected("shop", &format!("cart-{number}"));
        let sandboxes: Vec<Sandbox> = (0..PODS_OF_A_NODE).map(name).collect();
        for sandbox in &sandboxes {
            manifest::publish(node.host(), sandbox, &manifest::injected(sandbox)).unwrap();
        }
        let ids = node.cri.run_concurrently(&sandboxes).into_iter().map(Result::unwrap);
        let ids: Vec<String> = ids.collect();
        let outside = OutsideClient::new(&node);
        for id in &ids {
            let pod = RunningPod::in_sandbox(&node, id.clone());
            for address in pod.addresses.iter().copied() {
                assert_eq!(outside.connect(address, 8080), Destination::proxy(15006, address, 8080));
            }
            for address in OUTSIDE {
                assert_eq!(pod.connect(APPLICATION, address, 80), Destination::proxy(15001, address, 80));
            }
        }
        for outcome in node.cri.stop_concurrently(&ids) {
            outcome.unwrap();
        }
    }
}

/// `hostUsers: false`: the rules contain the proxy's id in the pod, the node's kernel has another.
fn assert_pod_with_user_namespace_is_redirected(generation: Generation) {
    let node = gybe_node(generation);
    let first_id = 65536;
    let mut sandbox = Sandbox::injected("shop", "cart");
    sandbox.users = UserNamespace::Own { first_id };
    let pod = RunningPod::start(&node, &sandbox, &manifest::injected(&sandbox));
    let outside = OutsideClient::new(&node);
    let on_the_node = |owner: Owner| Owner { uid: first_id + owner.uid, gid: first_id + owner.gid };
    for address in pod.addresses.iter().copied() {
        assert_eq!(outside.connect(address, 8080), Destination::proxy(15006, address, 8080));
    }
    for address in OUTSIDE {
        let destination = pod.connect(on_the_node(APPLICATION), address, 80);
        assert_eq!(destination, Destination::proxy(15001, address, 80));
        assert_eq!(pod.connect(on_the_node(PROXY), address, 80), *"outside");
        assert_eq!(
            pod.connect(PROXY, address, 80),
            Destination::proxy(15001, address, 80),
            "not a user of this pod"
        );
    }
}

#[test]
fn a_pod_with_a_user_namespace_is_redirected_on_1_7() {
    assert_pod_with_user_namespace_is_redirected(Generation::V1_7);
}

#[test]
fn a_pod_with_a_user_namespace_is_redirected_on_2_x() {
    assert_pod_with_user_namespace_is_redirected(Generation::V2);
}

on_every_generation! {
    /// containerd runs the plugin `loopback` at the same time as the conflist; it refuses a `lo` with an unexpected
    /// address. On a busy node it runs last.
    fn f19_a_delayed_loopback_plugin_accepts_the_addresses_of_gybe(generation: Generation) {
        let node = gybe_node(generation);
        node.delay_plugin("loopback").unwrap();
        let sandbox = Sandbox::injected("shop", "cart");
        let pod = RunningPod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let outside = OutsideClient::new(&node);
        for address in pod.addresses.iter().copied() {
            assert_eq!(outside.connect(address, 8080), Destination::proxy(15006, address, 8080));
        }
    }
}

on_every_generation! {
    /// An ADD looks for this file (`plugin/src/loopback.rs`), and otherwise searches containerd's threads.
    fn f19_the_runtime_caches_the_result_of_loopback_until_the_sandboxs_end(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::injected("shop", "cart");
        let pod = RunningPod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let file = format!("cni-loopback-{}-lo", pod.id);
        let is_cached = || entries(&node, "/var/lib/cni/results").contains(&file);
        assert!(is_cached());
        node.cri.delete(&pod.id).unwrap();
        assert!(!is_cached());
    }
}
