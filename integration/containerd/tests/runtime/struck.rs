//! The plugin killed at each system call of an ADD, with containerd around it: the sandbox fails, and
//! fails whole.

use gybe_containerd_tests::{Chain, Generation, Node, Sandbox, chain, manifest};
use serde_json::{Value, json};

use crate::ground::{assert_nothing_is_left, node_of, on_every_generation, ours};
use crate::pod::{Met, Outside, Pod};

/// So many at once, each struck at a call of its own.
const VOLLEY: usize = 16;
/// Far more calls than an ADD makes.
const ENDLESS: usize = 2_000;

/// Gybe, with somebody around it who kills.
fn struck_gybe() -> Value {
    let mut entry = chain::gybe();
    entry["around"] = json!(ours("gybe-cni"));
    entry["type"] = json!("gybe-striker");
    entry
}

fn published(node: &Node, sandbox: Sandbox) -> Sandbox {
    manifest::publish(node.stage(), &sandbox, &manifest::injected(&sandbox)).unwrap();
    sandbox
}

/// It is redirected; then it goes.
fn assert_is_redirected(node: &Node, id: &str) {
    let pod = Pod::inhabit(node, id.to_owned());
    let outside = Outside::of(node);
    for address in pod.addresses.iter().copied() {
        assert_eq!(outside.calls(address, 8080), Met::proxy(15006, address, 8080));
    }
    node.cri.stop(id).unwrap();
    node.cri.remove(id).unwrap();
}

on_every_generation! {
    fn f15_killed_at_any_system_call_of_an_add_no_pod_runs_and_the_next_one_is_redirected(generation: Generation) {
        let node = node_of(generation, &Chain::of_reference_plugins(generation).then(struck_gybe()));
        let (mut killed, mut lived) = (0, 0);
        for first in (1..ENDLESS).step_by(VOLLEY) {
            let aim = |at: usize| {
                let pod = Sandbox::injected("shop", &format!("cart-{at}"));
                published(&node, pod.annotated("strike", &at.to_string()))
            };
            let pods: Vec<Sandbox> = (first..first + VOLLEY).map(aim).collect();
            for (pod, made) in pods.iter().zip(node.cri.run_together(&pods)) {
                match made {
                    Err(trouble) => {
                        assert!(trouble.message().contains("killed"), "{}: {trouble}", pod.name);
                        killed += 1;
                    }
                    // It makes fewer calls: nobody struck.
                    Ok(id) => {
                        assert_is_redirected(&node, &id);
                        lived += 1;
                    }
                }
            }
            assert_nothing_is_left(&node);
            let next = published(&node, Sandbox::injected("shop", &format!("after-{first}")));
            assert_is_redirected(&node, &node.cri.run(&next).unwrap());
            if lived >= VOLLEY {
                println!("containerd {generation}: gybe-cni killed at each of the {killed} system calls of an ADD");
                return;
            }
        }
        panic!("a plugin of endless system calls");
    }
}
