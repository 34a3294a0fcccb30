//! Gybe asking the node agent: what needs it, what does not, and what becomes of pods while it is away.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use gybe_containerd_tests::{Generation, Node, Sandbox, Trouble, manifest};
use nix::sys::signal::Signal;

use crate::ground::{agents_node, assert_nothing_is_left, on_every_generation, ours};
use crate::pod::{APPLICATION, Met, OUTSIDE, Outside, Pod};

/// How many pods a kubelet lets a node have, by default.
const PODS_OF_A_NODE: usize = 110;
/// One in so many is outside the mesh.
const UNMESHED: usize = 5;
/// How long each agent lives: it serves by then, and has not served all.
const A_LIFE: Duration = Duration::from_millis(300);

/// The refusal of a pod that only the agent could have told about, and what to do.
fn assert_the_agent_is_named(trouble: &Trouble) {
    for told in [
        r#"plugin type="gybe-cni" failed (add): gybe-cni cmdAdd GYBE-ADD-032: "#,
        "the node agent at /run/gybe/facts.sock",
        "check that the node agent (gybe node, DaemonSet gybe-node) runs on this node",
    ] {
        assert!(trouble.message().contains(told), "{told} is not in: {trouble}");
    }
}

on_every_generation! {
    fn annotations_alone_decide_while_no_agent_runs_and_a_meshed_pod_waits_for_it(generation: Generation) {
        let node = agents_node(generation);
        let mut meshed = Sandbox::injected("shop", "cart");
        assert_the_agent_is_named(&node.cri.run(&meshed).unwrap_err());
        assert_nothing_is_left(&node);

        let outside = Outside::of(&node);
        let excluded = Sandbox::injected("kube-system", "dns");
        for passes in [Sandbox::named("shop", "plain"), excluded] {
            let pod = Pod::inhabit(&node, node.cri.run(&passes).unwrap());
            assert_eq!(outside.calls(pod.addresses[0], 8080), *"app", "{passes:?}");
            assert_eq!(pod.calls(APPLICATION, OUTSIDE[0], 80), *"outside", "{passes:?}");
        }

        let _agent = node.start_agent(&ours("gybe")).unwrap();
        meshed.attempt = 1;
        let pod = Pod::start(&node, &meshed, &manifest::injected(&meshed));
        let address = pod.addresses[0];
        assert_eq!(outside.calls(address, 8080), Met::proxy(15006, address, 8080));
        assert_eq!(pod.calls(APPLICATION, OUTSIDE[0], 80), Met::proxy(15001, OUTSIDE[0], 80));
    }
}

/// As many as a node can have, and some of them outside the mesh.
fn a_node_full() -> Vec<Sandbox> {
    let pod = |number| match number % UNMESHED {
        0 => Sandbox::named("shop", &format!("plain-{number}")),
        _ => Sandbox::injected("shop", &format!("cart-{number}")),
    };
    (0..PODS_OF_A_NODE).map(pod).collect()
}

/// Starts an agent, kills it, starts another …, for as long as `work` goes on; tells how many died.
fn while_agents_die<T: Send>(node: &Node, work: impl FnOnce() -> T + Send) -> (T, usize) {
    thread::scope(|scope| {
        let (over, is_over) = channel::<()>();
        let work = scope.spawn(move || {
            let _told_when_dropped = over;
            work()
        });
        let mut dead = 0;
        loop {
            let agent = node.start_agent(&ours("gybe")).unwrap();
            let still = is_over.recv_timeout(A_LIFE);
            agent.end(Signal::SIGKILL).unwrap();
            dead += 1;
            if still != Err(RecvTimeoutError::Timeout) {
                return (work.join().unwrap(), dead);
            }
        }
    })
}

#[test]
fn f14_a_node_full_of_pods_starts_while_its_agent_is_killed_again_and_again() {
    let node = agents_node(Generation::V2);
    let mut sandboxes = a_node_full();
    for sandbox in &sandboxes {
        manifest::publish(node.stage(), sandbox, &manifest::injected(sandbox)).unwrap();
    }
    let kubelet = node.connect().unwrap();
    let (made, dead) = while_agents_die(&node, || kubelet.run_together(&sandboxes));
    let _agent = node.start_agent(&ours("gybe")).unwrap();
    let outside = Outside::of(&node);
    let mut refused = 0;
    for (sandbox, made) in sandboxes.iter_mut().zip(made) {
        let is_meshed = !sandbox.annotations.is_empty();
        let id = made.or_else(|trouble| {
            assert!(is_meshed, "{}: {trouble}", sandbox.name);
            assert_the_agent_is_named(&trouble);
            refused += 1;
            sandbox.attempt = 1;
            node.cri.run(sandbox)
        });
        let pod = Pod::inhabit(&node, id.unwrap());
        let address = pod.addresses[0];
        let met = outside.calls(address, 8080);
        if is_meshed {
            assert_eq!(met, Met::proxy(15006, address, 8080), "{}", sandbox.name);
        } else {
            assert_eq!(met, *"app", "{}", sandbox.name);
        }
    }
    let meshed = PODS_OF_A_NODE - PODS_OF_A_NODE.div_ceil(UNMESHED);
    println!("{dead} agents killed: of {meshed} meshed pods {refused} were refused once, of the others none");
}
