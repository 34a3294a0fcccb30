//! Pods that Gybe's entry in the chain has seen: whom their connections meet.

use gybe_containerd_tests::sandbox::Users;
use gybe_containerd_tests::{Generation, Sandbox, manifest};
use gybe_netfilter::trace::Owner;

use crate::ground::{gybe_node, on_every_generation};
use crate::pod::{APPLICATION, Met, OUTSIDE, Outside, PROXY, Pod};

/// How many pods a kubelet lets a node have, by default.
const PODS_OF_A_NODE: usize = 110;

on_every_generation! {
    fn an_injected_pod_meets_its_proxy_both_ways(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::injected("shop", "cart");
        let pod = Pod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let outside = Outside::of(&node);
        assert_eq!(pod.addresses.len(), 2);
        for address in pod.addresses.iter().copied() {
            assert_eq!(outside.calls(address, 8080), Met::proxy(15006, address, 8080));
            assert_eq!(outside.calls(address, 15021), *"refused", "the proxy's own port, not captured");
        }
        for address in OUTSIDE {
            assert_eq!(pod.calls(APPLICATION, address, 80), Met::proxy(15001, address, 80));
            assert_eq!(pod.calls(PROXY, address, 80), *"outside");
        }
    }
}

on_every_generation! {
    fn a_pod_nobody_injected_meets_whom_it_calls(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::named("shop", "plain");
        let pod = Pod::start(&node, &sandbox, &manifest::plain(&sandbox));
        let outside = Outside::of(&node);
        for address in pod.addresses.iter().copied() {
            assert_eq!(outside.calls(address, 8080), *"app");
        }
        for address in OUTSIDE {
            assert_eq!(pod.calls(APPLICATION, address, 80), *"outside");
        }
    }
}

on_every_generation! {
    fn a_port_of_the_node_leads_to_the_proxy_of_its_pod(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::injected("shop", "cart").published(18080, 8080);
        let pod = Pod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let met = Outside::of(&node).calls(OUTSIDE[0], 18080);
        assert_eq!(met, Met::proxy(15006, pod.addresses[0], 8080));
    }
}

on_every_generation! {
    fn annotations_of_the_pod_decide_which_ports_are_captured(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::injected("shop", "cart")
            .annotated("traffic.sidecar.istio.io/excludeInboundPorts", "8080")
            .annotated("traffic.sidecar.istio.io/excludeOutboundPorts", "80");
        let pod = Pod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let outside = Outside::of(&node);
        assert_eq!(outside.calls(pod.addresses[0], 8080), *"app");
        assert_eq!(outside.calls(pod.addresses[0], 81), Met::proxy(15006, pod.addresses[0], 81));
        assert_eq!(pod.calls(APPLICATION, OUTSIDE[0], 80), *"outside");
        assert_eq!(pod.calls(APPLICATION, OUTSIDE[0], 81), Met::proxy(15001, OUTSIDE[0], 81));
    }
}

on_every_generation! {
    fn as_many_pods_as_a_node_can_have_come_at_once_and_each_is_redirected(generation: Generation) {
        let node = gybe_node(generation);
        let name = |number| Sandbox::injected("shop", &format!("cart-{number}"));
        let sandboxes: Vec<Sandbox> = (0..PODS_OF_A_NODE).map(name).collect();
        for sandbox in &sandboxes {
            manifest::publish(node.stage(), sandbox, &manifest::injected(sandbox)).unwrap();
        }
        let made = node.cri.run_together(&sandboxes).into_iter().map(Result::unwrap);
        let ids: Vec<String> = made.collect();
        let outside = Outside::of(&node);
        for id in &ids {
            let pod = Pod::inhabit(&node, id.clone());
            for address in pod.addresses.iter().copied() {
                assert_eq!(outside.calls(address, 8080), Met::proxy(15006, address, 8080));
            }
            for address in OUTSIDE {
                assert_eq!(pod.calls(APPLICATION, address, 80), Met::proxy(15001, address, 80));
            }
        }
        for outcome in node.cri.stop_together(&ids) {
            outcome.unwrap();
        }
    }
}

/// `hostUsers: false`: the rules name the proxy by its id in the pod, the kernel sees another.
fn a_pod_with_users_of_its_own_meets_its_proxy(generation: Generation) {
    let node = gybe_node(generation);
    let first = 65536;
    let mut sandbox = Sandbox::injected("shop", "cart");
    sandbox.users = Users::From(first);
    let pod = Pod::start(&node, &sandbox, &manifest::injected(&sandbox));
    let outside = Outside::of(&node);
    let seen_by_the_node = |owner: Owner| Owner { uid: first + owner.uid, gid: first + owner.gid };
    for address in pod.addresses.iter().copied() {
        assert_eq!(outside.calls(address, 8080), Met::proxy(15006, address, 8080));
    }
    for address in OUTSIDE {
        let met = pod.calls(seen_by_the_node(APPLICATION), address, 80);
        assert_eq!(met, Met::proxy(15001, address, 80));
        assert_eq!(pod.calls(seen_by_the_node(PROXY), address, 80), *"outside");
        assert_eq!(pod.calls(PROXY, address, 80), Met::proxy(15001, address, 80), "no user of this pod");
    }
}

#[test]
fn a_pod_of_1_7_with_users_of_its_own_meets_its_proxy() {
    a_pod_with_users_of_its_own_meets_its_proxy(Generation::V1_7);
}

#[test]
fn a_pod_of_2_x_with_users_of_its_own_meets_its_proxy() {
    a_pod_with_users_of_its_own_meets_its_proxy(Generation::V2);
}

on_every_generation! {
    /// containerd runs the plugin `loopback` beside the chain, and it refuses a `lo` that has an address
    /// of somebody else's. On a busy node it comes last.
    fn f19_a_loopback_plugin_that_looks_late_refuses_nothing_of_ours(generation: Generation) {
        let node = gybe_node(generation);
        node.slow_down("loopback").unwrap();
        let sandbox = Sandbox::injected("shop", "cart");
        let pod = Pod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let outside = Outside::of(&node);
        for address in pod.addresses.iter().copied() {
            assert_eq!(outside.calls(address, 8080), Met::proxy(15006, address, 8080));
        }
    }
}
