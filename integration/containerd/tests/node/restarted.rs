//! containerd killed and started again while pods start: what was redirected is, and what is made
//! again is too.

use std::thread;
use std::time::Instant;

use gybe_containerd_tests::{Generation, Node, Sandbox};

use crate::ground::{Image, assert_nothing_is_stuck, install, node, until};
use crate::load::{look, meshed};
use crate::state::State;
use crate::views::until_loaded;

const ALIVE: usize = 5;
const TOGETHER: usize = 20;
const STORMS: u32 = 4;

/// What the pods' ids are, in their order.
fn all_made(node: &Node, pods: &[Sandbox]) -> Vec<String> {
    node.cri.run_together(pods).into_iter().map(Result::unwrap).collect()
}

/// The kubelet asks for all of them at once, and containerd dies when some have an address.
fn killed_while_they_start(node: Node, pods: &[Sandbox], some: usize) -> Node {
    let kubelet = node.connect().unwrap();
    let before = node.stage().pod_links().unwrap().len();
    let lost = thread::scope(|scope| {
        let starting = scope.spawn(|| kubelet.run_together(pods));
        until("pods' coming", || (node.stage().pod_links().unwrap().len() >= before + some).then_some(()));
        let lost = node.lose_containerd().unwrap();
        // Whatever they were told: the kubelet goes by what there is.
        drop(starting.join().unwrap());
        lost
    });
    lost.recover().unwrap()
}

#[test]
fn f27_a_storm_of_restarts_of_containerd_leaves_no_pod_unredirected_or_stuck() {
    let mut node = node(Generation::V2);
    let _agent = install(&node, Image::One);
    until_loaded(&node, State { nth: 0, gybe: true });
    let old: Vec<Sandbox> = (0..ALIVE).map(|number| meshed(&node, &format!("old-{number}"))).collect();
    let begun = Instant::now();
    let alive = all_made(&node, &old);
    for storm in 0..STORMS {
        let mut pods: Vec<Sandbox> =
            (0..TOGETHER).map(|number| meshed(&node, &format!("cart-{storm}-{number}"))).collect();
        node = killed_while_they_start(node, &pods, usize::try_from(storm).unwrap() * 3 + 1);
        for id in node.cri.list().unwrap().iter().filter(|id| !alive.contains(id)) {
            node.cri.stop(id).unwrap();
            node.cri.remove(id).unwrap();
        }
        pods.iter_mut().for_each(|pod| pod.attempt = 1);
        let made = all_made(&node, &pods);
        for (pod, id) in pods.iter().zip(&made).chain(old.iter().zip(&alive)) {
            let started = look(&node, &node.cri, pod, (id, begun));
            assert!(started.is_redirected, "{started:?}");
        }
        node.cri.stop_together(&made).into_iter().for_each(Result::unwrap);
        made.iter().for_each(|id| node.cri.remove(id).unwrap());
    }
    node.cri.stop_together(&alive).into_iter().for_each(Result::unwrap);
    alive.iter().for_each(|id| node.cri.remove(id).unwrap());
    println!("containerd killed {STORMS} times while {TOGETHER} pods start: all redirected, none stuck");
    assert_nothing_is_stuck(&node);
}
