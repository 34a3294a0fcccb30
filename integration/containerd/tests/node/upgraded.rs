//! One version after the other, and agents that die on the way, while pods start: none is refused and
//! none passes the proxy by.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use gybe_containerd_tests::{Generation, Node, Sandbox};
use nix::sys::signal::Signal;

use crate::ground::{Image, assert_nothing_is_stuck, begin, install, node, of_image, placed};
use crate::load::{look, meshed, under_load};
use crate::state::State;
use crate::views::{assert_always_loadable, until_loaded, watched};

/// On their way at once while a version changes.
const TOGETHER: usize = 20;
const UPGRADES: usize = 6;
const DEATHS: u64 = 12;

/// They start, are looked at, and go, all at once.
fn a_crowd(node: &Node, round: usize) {
    let pods: Vec<Sandbox> =
        (0..TOGETHER).map(|number| meshed(node, &format!("cart-{round}-{number}"))).collect();
    let kubelet = node.connect().unwrap();
    let begun = Instant::now();
    let made: Vec<String> = kubelet.run_together(&pods).into_iter().map(Result::unwrap).collect();
    for (pod, id) in pods.iter().zip(&made) {
        let started = look(node, &kubelet, pod, (id, begun));
        assert!(started.is_redirected, "{started:?}");
    }
    kubelet.stop_together(&made).into_iter().for_each(Result::unwrap);
    made.iter().for_each(|id| kubelet.remove(id).unwrap());
}

fn assert_version(node: &Node, image: Image) {
    for name in ["gybe", "gybe-cni"] {
        assert!(placed(node, name) == Some(of_image(node, image, name)), "{name} is not of {image:?}");
    }
}

#[test]
fn f09_upgraded_while_twenty_pods_start_none_fails_and_each_is_redirected() {
    let node = node(Generation::V2);
    let mut agent = install(&node, Image::One);
    until_loaded(&node, State { nth: 0, gybe: true });
    let (_, views) = watched(&node, || {
        for round in 0..UPGRADES {
            let image = [Image::Two, Image::One][round % 2];
            agent = thread::scope(|scope| {
                let crowd = scope.spawn(|| a_crowd(&node, round));
                // As a DaemonSet rolls: the old one is told to go, then the new one comes.
                agent.end(Signal::SIGTERM).unwrap();
                let next = install(&node, image);
                assert_version(&node, image);
                crowd.join().unwrap();
                next
            });
        }
    });
    println!("{UPGRADES} upgrades, each while {TOGETHER} pods start: all redirected");
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
            assert_version(&node, Image::Two);
            load.wait_for(3);
            agent
        })
    });
    tally.report(&format!("{DEATHS} agents ended on the way to another version"), &views);
    assert_eq!(tally.refused, [""; 0]);
    assert!(tally.in_a_window(&views).is_empty() && views.iter().all(|view| view.state.gybe));
    assert_always_loadable(&node);
    assert_nothing_is_stuck(&node);
}
