//! Out of a node with pods alive: they stay redirected, and each can be deleted.

use std::fs;
use std::time::Instant;

use gybe_containerd_tests::{Generation, Sandbox};
use nix::sys::signal::Signal;

use crate::ground::{Image, assert_nothing_is_stuck, chain, install, leave, node, placed, until};
use crate::load::{look, meshed};
use crate::primary::Primary;
use crate::state::State;
use crate::views::{assert_always_loadable, loaded, until_loaded};

const ALIVE: usize = 100;

#[test]
fn f29_left_with_a_hundred_pods_alive_every_one_can_be_deleted() {
    let generation = Generation::V2;
    let node = node(generation);
    let primary = Primary::of(&node, chain(generation));
    let agent = install(&node, Image::One);
    until_loaded(&node, State { nth: 0, gybe: true });
    let pods: Vec<Sandbox> = (0..ALIVE).map(|number| meshed(&node, &format!("cart-{number}"))).collect();
    let begun = Instant::now();
    let made: Vec<String> = node.cri.run_together(&pods).into_iter().map(Result::unwrap).collect();

    agent.end(Signal::SIGTERM).unwrap();
    let leaving = leave(&node, Image::One);
    assert_eq!(fs::read_to_string(primary.file()).unwrap(), primary.bytes(), "byte for byte the primary's");
    until("its going out of force", || {
        let state = loaded(&node.cri);
        (!state.gybe).then_some(())
    });
    assert!(placed(&node, "gybe-cni").is_some(), "somebody must answer for the pods that are alive");
    let after = meshed(&node, "after");
    let id = node.cri.run(&after).unwrap();
    assert!(!look(&node, &node.cri, &after, (&id, Instant::now())).is_redirected);
    for (pod, id) in pods.iter().zip(&made) {
        let started = look(&node, &node.cri, pod, (id, begun));
        assert!(started.is_redirected && started.by.gybe, "{started:?}");
    }

    let stuck: Vec<String> = node
        .cri
        .stop_together(&made)
        .into_iter()
        .filter_map(Result::err)
        .map(|why| why.to_string())
        .collect();
    println!("{ALIVE} pods alive when Gybe left: {} stuck", stuck.len());
    assert_eq!(stuck, [""; 0]);
    made.iter().chain([&id]).for_each(|id| node.cri.remove(id).unwrap());
    assert_nothing_is_stuck(&node);
    leaving.end(Signal::SIGTERM).unwrap();
    let _last = leave(&node, Image::One);
    assert_eq!(
        (placed(&node, "gybe-cni"), placed(&node, "gybe")),
        (None, None),
        "nobody asks for them any more"
    );
    assert_always_loadable(&node);
}
