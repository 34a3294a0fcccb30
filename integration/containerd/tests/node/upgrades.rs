//! Upgrades, and agents that end during one, while pods start: a pod that needs the agent is refused until one runs,
//! and no pod starts without redirection.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use gybe_containerd_tests::{Generation, HarnessError, Node, Sandbox};
use nix::sys::signal::Signal;

use crate::conflist_state::{ConflistState, assert_every_load_succeeded, wait_until_loaded, while_observing};
use crate::fixture::{Image, assert_no_sandbox_is_left, install, node, start_installing};
use crate::load::{WITHOUT_AGENT, inspect_pod, meshed_pod, under_load};

/// Pods that start at the same time during each upgrade.
const PODS: usize = 20;
const UPGRADES: usize = 6;
const ENDED_AGENTS: u64 = 12;

/// Runs each pod again that was refused without an agent; asserts that each pod is redirected, and deletes it. Returns
/// the number of refused pods.
fn run_refused_again(
    node: &Node,
    pods: &mut [Sandbox],
    start: Instant,
    results: Vec<Result<String, HarnessError>>,
) -> usize {
    let mut refused = 0;
    for (pod, result) in pods.iter_mut().zip(results) {
        let id = result.or_else(|error| {
            assert!(error.message().contains(WITHOUT_AGENT), "{}: {error}", pod.name);
            refused += 1;
            pod.attempt = 1;
            node.cri.run(pod)
        });
        let id = id.unwrap();
        let started = inspect_pod(node, &node.cri, pod, &id, start);
        assert!(started.is_redirected, "{started:?}");
        node.cri.delete(&id).unwrap();
    }
    refused
}

#[test]
fn f09_pods_that_start_during_an_upgrade_are_redirected() {
    let node = node(Generation::V2);
    let mut agent = install(&node, Image::One);
    wait_until_loaded(&node, ConflistState { revision: 0, has_gybe: true });
    let mut refused = 0;
    let (_, observations) = while_observing(&node, || {
        for round in 0..UPGRADES {
            let image = [Image::Two, Image::One][round % 2];
            let mut pods: Vec<Sandbox> =
                (0..PODS).map(|number| meshed_pod(&node, &format!("cart-{round}-{number}"))).collect();
            let start = Instant::now();
            let kubelet = node.connect().unwrap();
            let (next, results) = thread::scope(|scope| {
                let starting = scope.spawn(|| kubelet.run_concurrently(&pods));
                // A DaemonSet stops the old agent before it starts the new one.
                agent.stop(Signal::SIGTERM).unwrap();
                let next = install(&node, image);
                (next, starting.join().unwrap())
            });
            agent = next;
            refused += run_refused_again(&node, &mut pods, start, results);
        }
    });
    let all = UPGRADES * PODS;
    println!(
        "{UPGRADES} upgrades, {all} starting pods: {refused} refused between two agents, all redirected"
    );
    let has_gybe = observations.iter().all(|observation| observation.state.has_gybe);
    assert!(has_gybe, "Gybe left the conflist: {observations:?}");
    assert_every_load_succeeded(&node);
    assert_no_sandbox_is_left(&node);
}

#[test]
fn f14_agents_killed_or_stopped_at_any_time_of_an_upgrade_leave_gybe_in_place() {
    let node = node(Generation::V2);
    install(&node, Image::One).stop(Signal::SIGKILL).unwrap();
    wait_until_loaded(&node, ConflistState { revision: 0, has_gybe: true });
    let ((_, result), observations) = while_observing(&node, || {
        under_load(&node, |load| {
            for number in 1..=ENDED_AGENTS {
                let image = [Image::One, Image::Two][usize::from(number % 2 == 1)];
                let signal = [Signal::SIGKILL, Signal::SIGTERM][usize::from(number % 3 == 0)];
                let agent = start_installing(&node, image);
                // Each agent ends at another time; the channel never receives.
                let (_sender, never) = channel::<()>();
                let _ = never.recv_timeout(Duration::from_millis(number * 15));
                agent.stop(signal).unwrap();
                load.wait_for(1);
            }
            let agent = install(&node, Image::Two);
            // Pods that were already starting may be refused; later ones are not.
            load.wait_for(8);
            agent
        })
    });
    result.print(&format!("{ENDED_AGENTS} agents ended during an upgrade"), &observations);
    result.assert_refused_only_without_agent();
    assert!(!result.started.is_empty());
    assert!(result.not_redirected(&observations).is_empty());
    assert!(observations.iter().all(|observation| observation.state.has_gybe));
    assert_every_load_succeeded(&node);
    assert_no_sandbox_is_left(&node);
}
