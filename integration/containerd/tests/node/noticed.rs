//! containerd sees what the installer writes.

use std::time::{Duration, Instant};

use gybe_containerd_tests::Generation;

use crate::ground::{Image, chain, install, node};
use crate::primary::Primary;
use crate::state::State;
use crate::views::{assert_always_loadable, until_loaded};

const ROUNDS: usize = 9;
/// What a node may take to notice.
const NOTICED: Duration = Duration::from_secs(1);

fn in_force_soon(generation: Generation) {
    let node = node(generation);
    let mut primary = Primary::of(&node, chain(generation));
    let _agent = install(&node, Image::One);
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let nth = primary.writes();
        primary.healed();
        let written = Instant::now();
        until_loaded(&node, State { nth, gybe: true });
        took.push(written.elapsed());
    }
    took.sort();
    let (median, slowest) = (took[ROUNDS / 2], took[ROUNDS - 1]);
    println!(
        "containerd {generation} has a written conf in force after {median:?}, at the slowest {slowest:?}"
    );
    assert!(median <= NOTICED, "{took:?}");
    assert_always_loadable(&node);
}

#[test]
fn f08_a_healed_conf_is_in_force_within_a_second_of_1_6() {
    in_force_soon(Generation::V1_6);
}

#[test]
fn f08_a_healed_conf_is_in_force_within_a_second_of_1_7() {
    in_force_soon(Generation::V1_7);
}

#[test]
fn f08_a_healed_conf_is_in_force_within_a_second_of_2_x() {
    in_force_soon(Generation::V2);
}
