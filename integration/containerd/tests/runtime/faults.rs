//! Gybe in a chain where something goes wrong, or comes twice: what the kubelet is told, and what
//! is left.

use std::io::Read;
use std::net::Shutdown;
use std::thread;

use gybe_containerd_tests::{Call, Chain, Generation, Hold, Sandbox, calls, chain, manifest};
use serde_json::{Value, json};

use crate::ground::{
    assert_nothing_is_left, gybe_node, gybe_node_with, killed_during_add, node, on_every_generation, ours,
};
use crate::pod::{Met, Outside, Pod};

const HOLD: &str = "/run/gybe/hold.sock";

fn adds(calls: &[Call]) -> Vec<&Call> {
    calls.iter().filter(|call| call.verb() == "ADD").collect()
}

/// Gybe, run by a recorder that first waits.
fn held_gybe() -> Value {
    let mut entry = chain::gybe();
    entry["around"] = json!(ours("gybe-cni"));
    entry["type"] = json!(calls::RECORDER);
    entry["calls"] = json!(calls::DIRECTORY);
    entry["hold"] = json!(HOLD);
    entry
}

on_every_generation! {
    fn the_result_of_the_chain_passes_gybe_unchanged(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::injected("shop", "cart");
        Pod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let calls = node.calls().unwrap();
        let [before, behind] = adds(&calls)[..] else { panic!("not two recorders: {calls:?}") };
        assert_eq!(before.stdin("/prevResult"), behind.stdin("/prevResult"));
        assert_ne!(*behind.stdin("/prevResult"), Value::Null);
    }
}

on_every_generation! {
    fn f20_a_pod_can_be_stopped_twice_and_removed_and_nothing_is_left(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::injected("shop", "cart");
        let pod = Pod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let id = pod.id.clone();
        drop(pod);
        node.cri.stop(&id).unwrap();
        node.cri.stop(&id).unwrap();
        node.cri.remove(&id).unwrap();
        assert_nothing_is_left(&node);
    }
}

on_every_generation! {
    fn a_bad_annotation_is_told_to_the_kubelet_and_nothing_is_left(generation: Generation) {
        let node = gybe_node(generation);
        let annotation = "traffic.sidecar.istio.io/excludeInboundPorts";
        let sandbox = Sandbox::injected("shop", "cart").annotated(annotation, "80,ftp");
        manifest::publish(node.stage(), &sandbox, &manifest::injected(&sandbox)).unwrap();
        let trouble = node.cri.run(&sandbox).unwrap_err();
        for told in [
            r#"plugin type="gybe-cni" failed (add): gybe-cni cmdAdd GYBE-ADD-011"#,
            annotation,
            "ftp",
            "; correct the annotation in the pod's template",
        ] {
            assert!(trouble.message().contains(told), "{told} is not in: {trouble}");
        }
        assert_nothing_is_left(&node);
    }
}

on_every_generation! {
    fn f04_a_pod_nobody_knows_is_refused_until_somebody_does(generation: Generation) {
        let node = gybe_node(generation);
        let mut sandbox = Sandbox::injected("shop", "cart");
        let trouble = node.cri.run(&sandbox).unwrap_err();
        assert!(trouble.message().contains("GYBE-ADD-017"), "{trouble}");
        assert_nothing_is_left(&node);
        sandbox.attempt = 1;
        let pod = Pod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let address = pod.addresses[0];
        assert_eq!(Outside::of(&node).calls(address, 8080), Met::proxy(15006, address, 8080));
    }
}

on_every_generation! {
    fn f15_after_containerd_was_killed_during_an_add_the_next_try_is_redirected(generation: Generation) {
        let mut behind = chain::recorder();
        behind["hold"] = json!(HOLD);
        let node = gybe_node_with(generation, behind);
        let hold = Hold::at(node.stage(), HOLD).unwrap();
        let mut sandbox = Sandbox::injected("shop", "cart");
        manifest::publish(node.stage(), &sandbox, &manifest::injected(&sandbox)).unwrap();
        let (lost, plugin) = killed_during_add(node, &hold, &sandbox);
        drop(plugin);
        let node = lost.recover().unwrap();
        for id in node.cri.list().unwrap() {
            node.cri.stop(&id).unwrap();
            node.cri.remove(&id).unwrap();
        }
        sandbox.attempt = 1;
        let kubelet = node.connect().unwrap();
        let id = thread::scope(|scope| {
            let adding = scope.spawn(|| kubelet.run(&sandbox));
            drop(hold.wait().unwrap());
            adding.join().unwrap().unwrap()
        });
        let pod = Pod::inhabit(&node, id);
        let address = pod.addresses[0];
        assert_eq!(Outside::of(&node).calls(address, 8080), Met::proxy(15006, address, 8080));
    }
}

on_every_generation! {
    fn f15_a_plugin_whose_containerd_was_killed_comes_to_its_end(generation: Generation) {
        let node = node(generation, &Chain::of_reference_plugins(generation).then(held_gybe()));
        let hold = Hold::at(node.stage(), HOLD).unwrap();
        let sandbox = Sandbox::injected("shop", "cart");
        manifest::publish(node.stage(), &sandbox, &manifest::injected(&sandbox)).unwrap();
        let (lost, mut plugin) = killed_during_add(node, &hold, &sandbox);
        plugin.shutdown(Shutdown::Write).unwrap();
        let mut ended = String::new();
        plugin.read_to_string(&mut ended).unwrap();
        assert_eq!(ended, "exit status: 1", "nobody reads the result, and the runtime would say so");
        let node = lost.recover().unwrap();
        for id in node.cri.list().unwrap() {
            node.cri.stop(&id).unwrap();
            node.cri.remove(&id).unwrap();
        }
    }
}
