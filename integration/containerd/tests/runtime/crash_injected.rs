//! The plugin is killed at each system call of an ADD under containerd: the sandbox fails and leaves nothing.

use gybe_containerd_tests::{Conflist, Generation, Node, Sandbox, conflist, manifest};
use serde_json::{Value, json};

use crate::fixture::{assert_no_sandbox_is_left, node_with_gybe, on_every_generation, program};
use crate::pod::{Destination, OutsideClient, RunningPod};

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
fn assert_redirected_and_delete(node: &Node, id: &str) {
    let pod = RunningPod::in_sandbox(node, id.to_owned());
    let outside = OutsideClient::new(node);
    for address in pod.addresses.iter().copied() {
        assert_eq!(outside.connect(address, 8080), Destination::proxy(15006, address, 8080));
    }
    node.cri.delete(id).unwrap();
}

on_every_generation! {
    fn f15_a_pod_whose_add_is_killed_at_any_system_call_fails_and_the_next_pod_is_redirected(generation: Generation) {
        let node = node_with_gybe(generation, &Conflist::reference_plugins(generation).with_plugin(crashing_gybe()));
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
                        assert_redirected_and_delete(&node, &id);
                        completed += 1;
                    }
                }
            }
            assert_no_sandbox_is_left(&node);
            let next = publish(&node, Sandbox::injected("shop", &format!("after-{first}")));
            assert_redirected_and_delete(&node, &node.cri.run(&next).unwrap());
            if completed >= CONCURRENT {
                println!("containerd {generation}: gybe-cni killed at each of the {killed} system calls of an ADD");
                return;
            }
        }
        panic!("an ADD makes more than {LIMIT} system calls");
    }
}
