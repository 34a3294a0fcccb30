//! Faults and repeated calls: the errors that the kubelet receives, and what is left on the node.

use std::io::Read;
use std::net::Shutdown;
use std::thread;

use gybe_containerd_tests::{
    Conflist, Generation, PausePoint, RecordedCall, Sandbox, conflist, manifest, recorder,
};
use serde_json::{Value, json};

use crate::fixture::{
    assert_no_sandbox_is_left, gybe_node, gybe_node_with, kill_containerd_during_add, node,
    on_every_generation, program,
};
use crate::pod::{Destination, OutsideClient, RunningPod};

const PAUSE_SOCKET: &str = "/run/gybe/pause.sock";

fn adds(calls: &[RecordedCall]) -> Vec<&RecordedCall> {
    calls.iter().filter(|call| call.command() == "ADD").collect()
}

/// Gybe as the delegate of a recorder that pauses first.
fn pausing_gybe() -> Value {
    let mut entry = conflist::gybe();
    entry["delegate"] = json!(program("gybe-cni"));
    entry["type"] = json!(recorder::PLUGIN);
    entry["calls"] = json!(recorder::DIRECTORY);
    entry["pause_at"] = json!(PAUSE_SOCKET);
    entry
}

on_every_generation! {
    fn gybe_returns_the_result_of_the_plugins_before_unchanged(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::injected("shop", "cart");
        RunningPod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let calls = node.recorded_calls().unwrap();
        let [before, after] = adds(&calls)[..] else { panic!("not two recorders: {calls:?}") };
        assert_eq!(before.stdin("/prevResult"), after.stdin("/prevResult"));
        assert_ne!(*after.stdin("/prevResult"), Value::Null);
    }
}

on_every_generation! {
    fn f20_a_pod_that_is_stopped_twice_and_removed_leaves_nothing(generation: Generation) {
        let node = gybe_node(generation);
        let sandbox = Sandbox::injected("shop", "cart");
        let pod = RunningPod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let id = pod.id.clone();
        drop(pod);
        node.cri.stop(&id).unwrap();
        node.cri.delete(&id).unwrap();
        assert_no_sandbox_is_left(&node);
    }
}

on_every_generation! {
    fn the_kubelet_receives_the_error_about_an_annotation_and_nothing_is_left(generation: Generation) {
        let node = gybe_node(generation);
        let annotation = "traffic.sidecar.istio.io/excludeInboundPorts";
        let sandbox = Sandbox::injected("shop", "cart").with_annotation(annotation, "80,ftp");
        manifest::publish(node.host(), &sandbox, &manifest::injected(&sandbox)).unwrap();
        let error = node.cri.run(&sandbox).unwrap_err();
        for part in [
            r#"plugin type="gybe-cni" failed (add): gybe-cni cmdAdd GYBE-ADD-011"#,
            annotation,
            "ftp",
            "; correct the annotation in the pod's template",
        ] {
            assert!(error.message().contains(part), "{part} is not in: {error}");
        }
        assert_no_sandbox_is_left(&node);
    }
}

on_every_generation! {
    fn f04_a_pod_without_facts_is_refused_until_its_manifest_is_published(generation: Generation) {
        let node = gybe_node(generation);
        let mut sandbox = Sandbox::injected("shop", "cart");
        let error = node.cri.run(&sandbox).unwrap_err();
        assert!(error.message().contains("GYBE-ADD-017"), "{error}");
        assert_no_sandbox_is_left(&node);
        sandbox.attempt = 1;
        let pod = RunningPod::start(&node, &sandbox, &manifest::injected(&sandbox));
        let address = pod.addresses[0];
        assert_eq!(OutsideClient::new(&node).connect(address, 8080), Destination::proxy(15006, address, 8080));
    }
}

on_every_generation! {
    fn f15_after_a_crash_of_containerd_during_an_add_the_next_attempt_is_redirected(generation: Generation) {
        let mut recorder = conflist::recorder();
        recorder["pause_at"] = json!(PAUSE_SOCKET);
        let node = gybe_node_with(generation, recorder);
        let pause_point = PausePoint::listen(node.host(), PAUSE_SOCKET).unwrap();
        let mut sandbox = Sandbox::injected("shop", "cart");
        manifest::publish(node.host(), &sandbox, &manifest::injected(&sandbox)).unwrap();
        let (killed, plugin) = kill_containerd_during_add(node, &pause_point, &sandbox);
        drop(plugin);
        let node = killed.restart_containerd().unwrap();
        for id in node.cri.list().unwrap() {
            node.cri.delete(&id).unwrap();
        }
        sandbox.attempt = 1;
        let kubelet = node.connect().unwrap();
        let id = thread::scope(|scope| {
            let adding = scope.spawn(|| kubelet.run(&sandbox));
            drop(pause_point.wait().unwrap());
            adding.join().unwrap().unwrap()
        });
        let pod = RunningPod::in_sandbox(&node, id);
        let address = pod.addresses[0];
        assert_eq!(OutsideClient::new(&node).connect(address, 8080), Destination::proxy(15006, address, 8080));
    }
}

on_every_generation! {
    fn f15_a_plugin_ends_after_its_containerd_was_killed(generation: Generation) {
        let node = node(generation, &Conflist::reference_plugins(generation).with_plugin(pausing_gybe()));
        let pause_point = PausePoint::listen(node.host(), PAUSE_SOCKET).unwrap();
        let sandbox = Sandbox::injected("shop", "cart");
        manifest::publish(node.host(), &sandbox, &manifest::injected(&sandbox)).unwrap();
        let (killed, mut plugin) = kill_containerd_during_add(node, &pause_point, &sandbox);
        plugin.shutdown(Shutdown::Write).unwrap();
        let mut status = String::new();
        plugin.read_to_string(&mut status).unwrap();
        assert_eq!(status, "exit status: 1", "no process reads the result");
        let node = killed.restart_containerd().unwrap();
        for id in node.cri.list().unwrap() {
            node.cri.delete(&id).unwrap();
        }
    }
}
