//! One version after the other, and agents that die on the way, while pods start: what only an agent
//! can tell is waited for, and no pod passes the proxy by.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use gybe_containerd_tests::{Generation, Node, Sandbox, Trouble};
use nix::sys::signal::Signal;

use crate::ground::{Image, assert_nothing_is_stuck, begin, install, node};
use crate::load::{WITHOUT_AGENT, look, meshed, under_load};
use crate::state::State;
use crate::views::{assert_always_loadable, until_loaded, watched};

/// On their way at once while a version changes.
const TOGETHER: usize = 20;
const UPGRADES: usize = 6;
const DEATHS: u64 = 12;

/// Pods to be started at once.
fn a_crowd(node: &Node, round: usize) -> Vec<Sandbox> {
    (0..TOGETHER).map(|number| meshed(node, &format!("cart-{round}-{number}"))).collect()
}

/// Whoever was refused, for want of an agent, is tried again now that there is one; each is looked at,
/// and goes. Tells how many that were.
fn settle(
    node: &Node,
    pods: &mut [Sandbox],
    (begun, made): (Instant, Vec<Result<String, Trouble>>),
) -> usize {
    let mut refused = 0;
    for (pod, made) in pods.iter_mut().zip(made) {
        let id = made.or_else(|trouble| {
            assert!(trouble.message().contains(WITHOUT_AGENT), "{}: {trouble}", pod.name);
            refused += 1;
            pod.attempt = 1;
            node.cri.run(pod)
        });
        let id = id.unwrap();
        let started = look(node, &node.cri, pod, (&id, begun));
        assert!(started.is_redirected, "{started:?}");
        node.cri.stop(&id).unwrap();
        node.cri.remove(&id).unwrap();
    }
    refused
}

#[test]
fn f09_upgraded_while_twenty_pods_start_each_is_redirected() {
    let node = node(Generation::V2);
    let mut agent = install(&node, Image::One);
    until_loaded(&node, State { nth: 0, gybe: true });
    let mut refused = 0;
    let (_, views) = watched(&node, || {
        for round in 0..UPGRADES {
            let image = [Image::Two, Image::One][round % 2];
            let (mut pods, begun) = (a_crowd(&node, round), Instant::now());
            let kubelet = node.connect().unwrap();
            let (next, made) = thread::scope(|scope| {
                let starting = scope.spawn(|| kubelet.run_together(&pods));
                // As a DaemonSet rolls: the old one is told to go, then the new one comes.
                agent.end(Signal::SIGTERM).unwrap();
                let next = install(&node, image);
                (next, starting.join().unwrap())
            });
            agent = next;
            refused += settle(&node, &mut pods, (begun, made));
        }
    });
    let all = UPGRADES * TOGETHER;
    println!(
        "{UPGRADES} upgrades, {all} pods on their way: {refused} refused between two agents, all redirected"
    );
    assert!(views.iter().all(|view| view.state.gybe), "Gybe never left the chain: {views:?}");
    assert_always_loadable(&node);
    assert_nothing_is_stuck(&node);
}

#[test]
fn f14_agents_killed_and_told_to_stop_at_any_moment_of_an_upgrade_leave_all_in_place() {
    let node = node(Generation::V2);
    install(&node, Image::One).end(Signal::SIGKILL).unwrap();
    until_loaded(&node, State { nth: 0, gybe: true });
    let ((_, tally), views) = watched(&node, || {
        under_load(&node, |load| {
            for death in 1..=DEATHS {
                let image = [Image::One, Image::Two][usize::from(death % 2 == 1)];
                let signal = [Signal::SIGKILL, Signal::SIGTERM][usize::from(death % 3 == 0)];
                let agent = begin(&node, image);
                // Nobody sends: another moment of its work each time.
                let (_sender, never) = channel::<()>();
                let _ = never.recv_timeout(Duration::from_millis(death * 15));
                agent.end(signal).unwrap();
                load.wait_for(1);
            }
            let agent = install(&node, Image::Two);
            // Those on their way may have been refused before; those after them are not.
            load.wait_for(8);
            agent
        })
    });
    tally.report(&format!("{DEATHS} agents ended on the way to another version"), &views);
    tally.assert_refused_only_without_agent();
    assert!(!tally.started.is_empty());
    assert!(tally.in_a_window(&views).is_empty() && views.iter().all(|view| view.state.gybe));
    assert_always_loadable(&node);
    assert_nothing_is_stuck(&node);
}
