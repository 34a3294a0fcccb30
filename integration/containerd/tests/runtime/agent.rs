//! The plugin with the node agent as its source of facts: which pods need the agent, and what happens while none runs.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use gybe_containerd_tests::{Generation, HarnessError, Node, Sandbox, manifest};
use nix::sys::signal::Signal;

use crate::fixture::{
    assert_no_sandbox_is_left, node_with_agent_facts, on_every_generation, program, turn_of_many_sandboxes,
};
use crate::pod::{APPLICATION, Destination, OUTSIDE, OutsideClient, RunningPod};

/// The kubelet's default limit of pods on a node.
const PODS_OF_A_NODE: usize = 110;
/// Every fifth pod is not meshed.
const UNMESHED_INTERVAL: usize = 5;
/// The time until an agent is killed: long enough to serve, too short to serve every pod.
const AGENT_LIFETIME: Duration = Duration::from_millis(300);

/// Asserts that a refusal names the agent and what to do.
fn assert_names_the_agent(error: &HarnessError) {
    for part in [
        r#"plugin type="gybe-cni" failed (add): gybe-cni cmdAdd GYBE-ADD-032: "#,
        "the node agent at /run/gybe/facts.sock",
        "check that the node agent (gybe node, DaemonSet gybe-node) runs on this node",
    ] {
        assert!(error.message().contains(part), "{part} is not in: {error}");
    }
}

on_every_generation! {
    fn without_an_agent_unmeshed_pods_start_and_meshed_pods_are_refused_until_one_runs(generation: Generation) {
        let node = node_with_agent_facts(generation);
        let mut meshed = Sandbox::injected("shop", "cart");
        assert_names_the_agent(&node.cri.run(&meshed).unwrap_err());
        assert_no_sandbox_is_left(&node);

        let outside = OutsideClient::new(&node);
        let excluded = Sandbox::injected("kube-system", "dns");
        for unmeshed in [Sandbox::new("shop", "plain"), excluded] {
            let pod = RunningPod::in_sandbox(&node, node.cri.run(&unmeshed).unwrap());
            assert_eq!(outside.connect(pod.addresses[0], 8080), *"app", "{unmeshed:?}");
            assert_eq!(pod.connect(APPLICATION, OUTSIDE[0], 80), *"outside", "{unmeshed:?}");
        }

        let _agent = node.start_agent(&program("gybe")).unwrap();
        meshed.attempt = 1;
        let pod = RunningPod::start(&node, &meshed, &manifest::injected(&meshed));
        let address = pod.addresses[0];
        assert_eq!(outside.connect(address, 8080), Destination::proxy(15006, address, 8080));
        assert_eq!(pod.connect(APPLICATION, OUTSIDE[0], 80), Destination::proxy(15001, OUTSIDE[0], 80));
    }
}

/// As many pods as a node may have; some are not meshed.
fn full_node() -> Vec<Sandbox> {
    let pod = |number| match number % UNMESHED_INTERVAL {
        0 => Sandbox::new("shop", &format!("plain-{number}")),
        _ => Sandbox::injected("shop", &format!("cart-{number}")),
    };
    (0..PODS_OF_A_NODE).map(pod).collect()
}

/// Starts and kills agents, one after another, while `work` runs; returns the number of killed agents.
fn while_agents_are_killed<T: Send>(node: &Node, work: impl FnOnce() -> T + Send) -> (T, usize) {
    thread::scope(|scope| {
        let (end, is_over) = channel::<()>();
        let work = scope.spawn(move || {
            let _dropped_at_the_end = end;
            work()
        });
        let mut killed = 0;
        loop {
            let agent = node.start_agent(&program("gybe")).unwrap();
            let work_ended = is_over.recv_timeout(AGENT_LIFETIME);
            agent.stop(Signal::SIGKILL).unwrap();
            killed += 1;
            if work_ended != Err(RecvTimeoutError::Timeout) {
                return (work.join().unwrap(), killed);
            }
        }
    })
}

#[test]
fn f14_all_pods_of_a_full_node_start_although_its_agent_is_killed_repeatedly() {
    let _turn = turn_of_many_sandboxes();
    let node = node_with_agent_facts(Generation::V2);
    let mut sandboxes = full_node();
    for sandbox in &sandboxes {
        manifest::publish(node.host(), sandbox, &manifest::injected(sandbox)).unwrap();
    }
    let kubelet = node.connect().unwrap();
    let (results, killed) = while_agents_are_killed(&node, || kubelet.run_concurrently(&sandboxes));
    let _agent = node.start_agent(&program("gybe")).unwrap();
    let outside = OutsideClient::new(&node);
    let mut refused = 0;
    for (sandbox, result) in sandboxes.iter_mut().zip(results) {
        let is_meshed = !sandbox.annotations.is_empty();
        let id = result.or_else(|error| {
            assert!(is_meshed, "{}: {error}", sandbox.name);
            assert_names_the_agent(&error);
            refused += 1;
            sandbox.attempt = 1;
            node.cri.run(sandbox)
        });
        let pod = RunningPod::in_sandbox(&node, id.unwrap());
        let address = pod.addresses[0];
        let destination = outside.connect(address, 8080);
        if is_meshed {
            assert_eq!(destination, Destination::proxy(15006, address, 8080), "{}", sandbox.name);
        } else {
            assert_eq!(destination, *"app", "{}", sandbox.name);
        }
    }
    let meshed = PODS_OF_A_NODE - PODS_OF_A_NODE.div_ceil(UNMESHED_INTERVAL);
    println!(
        "{killed} agents killed: {refused} of {meshed} meshed pods were refused once, no unmeshed pod was"
    );
}
