//! Faults and repeated calls: the errors that the kubelet receives, and what is left on the node; an ADD killed at each
//! of its system calls, and lost cached results.

use crate::fixture::{
    assert_no_sandbox_is_left, entries, error_chain, gybe_node, gybe_node_with, kill_containerd_during_add,
    node, node_with_gybe, on_every_generation, program, turn_of_many_sandboxes,
};
use crate::pod::{Destination, OutsideClient, RunningPod};
use gybe_containerd_tests::{
    Conflist, Generation, Node, PausePoint, RecordedCall, Sandbox, conflist, manifest, recorder,
};
use serde_json::{Value, json};
use std::io::Read;
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::{fs, thread};

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

/// libcni's cached results (`CacheDir`, libcni/api.go).
const RESULTS: &str = "/var/lib/cni/results";

/// The cached results of the only sandbox.
fn cached_results(node: &Node) -> Vec<PathBuf> {
    let files = entries(node, RESULTS).into_iter();
    files.map(|file| node.host().path(RESULTS).join(file)).collect()
}

/// Starts a pod and damages its cached results.
fn pod_with_damaged_result(node: &Node, name: &str, damage: impl Fn(&Path)) -> String {
    let sandbox = Sandbox::injected("shop", name);
    let pod = RunningPod::start(node, &sandbox, &manifest::injected(&sandbox));
    assert!(!cached_results(node).is_empty(), "containerd caches results there");
    cached_results(node).iter().for_each(|file| damage(file));
    pod.id.clone()
}

fn delete(node: &Node, id: &str) {
    node.cri.delete(id).unwrap();
    assert!(node.host().pod_links().unwrap().is_empty(), "a link is left");
}

/// Deletes a sandbox. In older runtimes libcni fails at a file that it cannot read and calls no plugin
/// (<https://github.com/containerd/containerd/issues/8197>); without the file the deletion succeeds.
fn delete_with_damaged_result(node: &Node, id: &str, generation: Generation) {
    if generation != Generation::V2 {
        let refused = node.cri.stop(id).unwrap_err();
        assert!(error_chain(&refused).contains("cached result"), "{}", error_chain(&refused));
        assert!(!error_chain(&refused).contains("gybe-cni"), "{}", error_chain(&refused));
        cached_results(node).iter().for_each(|file| fs::remove_file(file).unwrap());
    }
    delete(node, id);
}

on_every_generation! {
    fn f31_a_sandbox_with_an_empty_truncated_or_missing_cached_result_can_be_deleted(generation: Generation) {
        let node = gybe_node(generation);
        let empty = pod_with_damaged_result(&node, "empty-0", |file| fs::write(file, "").unwrap());
        delete_with_damaged_result(&node, &empty, generation);
        let truncated = pod_with_damaged_result(&node, "truncated-0", |file| {
            let whole = fs::read(file).unwrap();
            fs::write(file, &whole[..whole.len() / 2]).unwrap();
        });
        delete_with_damaged_result(&node, &truncated, generation);
        let missing = pod_with_damaged_result(&node, "missing-0", |file| fs::remove_file(file).unwrap());
        delete(&node, &missing);
    }
}

/// Pods that start at the same time, each killed at another system call.
const CONCURRENT: usize = 16;
/// Far more system calls than an ADD makes.
const LIMIT: usize = 2_000;

/// Gybe as the delegate of the crash injector.
fn crashing_gybe() -> Value {
    let mut entry = conflist::gybe();
    entry["delegate"] = json!(program("gybe-cni"));
    entry["type"] = json!("gybe-crash-injector");
    entry
}

fn publish(node: &Node, sandbox: Sandbox) -> Sandbox {
    manifest::publish(node.host(), &sandbox, &manifest::injected(&sandbox)).unwrap();
    sandbox
}

/// Asserts that a sandbox is redirected, and deletes it.
fn assert_redirected_and_delete(node: &Node, outside: &OutsideClient, id: &str) {
    let pod = RunningPod::in_sandbox(node, id.to_owned());
    for address in pod.addresses.iter().copied() {
        assert_eq!(outside.connect(address, 8080), Destination::proxy(15006, address, 8080));
    }
    node.cri.delete(id).unwrap();
}

on_every_generation! {
    fn f15_a_pod_whose_add_is_killed_at_any_system_call_fails_and_the_next_pod_is_redirected(generation: Generation) {
        let _turn = turn_of_many_sandboxes();
        let node = node_with_gybe(generation, &Conflist::reference_plugins(generation).with_plugin(crashing_gybe()));
        let outside = OutsideClient::new(&node);
        let (mut killed, mut completed) = (0, 0);
        for first in (1..LIMIT).step_by(CONCURRENT) {
            let pod_killed_at = |at: usize| {
                let pod = Sandbox::injected("shop", &format!("cart-{at}"));
                publish(&node, pod.with_annotation("crash-at", &at.to_string()))
            };
            let pods: Vec<Sandbox> = (first..first + CONCURRENT).map(pod_killed_at).collect();
            for (pod, result) in pods.iter().zip(node.cri.run_concurrently(&pods)) {
                match result {
                    Err(error) => {
                        assert!(error.message().contains("killed"), "{}: {error}", pod.name);
                        killed += 1;
                    }
                    // The ADD makes fewer system calls than this pod's number.
                    Ok(id) => {
                        assert_redirected_and_delete(&node, &outside, &id);
                        completed += 1;
                    }
                }
            }
            assert_no_sandbox_is_left(&node);
            let next = publish(&node, Sandbox::injected("shop", &format!("after-{first}")));
            assert_redirected_and_delete(&node, &outside, &node.cri.run(&next).unwrap());
            if completed >= CONCURRENT {
                println!("containerd {generation}: gybe-cni killed at each of the {killed} system calls of an ADD");
                return;
            }
        }
        panic!("an ADD makes more than {LIMIT} system calls");
    }
}
