//! How soon containerd loads a conflist that the agent has repaired.

use std::time::{Duration, Instant};

use gybe_containerd_tests::Generation;
use gybe_test_support::with_slowdown;

use crate::conflist_state::{ConflistState, assert_every_load_succeeded, wait_until_loaded};
use crate::fixture::{Image, conflist, install, node};
use crate::primary::PrimaryPlugin;

const ROUNDS: usize = 9;
/// The limit for the median, on a machine without other work.
const LIMIT: Duration = Duration::from_secs(1);

fn assert_repaired_conflist_is_loaded_soon(generation: Generation) {
    let node = node(generation);
    let mut primary = PrimaryPlugin::new(&node, conflist(generation));
    let _agent = install(&node, Image::One);
    let time = |_| {
        let revision = primary.write();
        primary.wait_until_repaired();
        let repaired = Instant::now();
        wait_until_loaded(&node, ConflistState { revision, has_gybe: true });
        repaired.elapsed()
    };
    let (mut times, slowdown) = with_slowdown(|| (0..ROUNDS).map(time).collect::<Vec<_>>());
    times.sort();
    let (median, slowest) = (times[ROUNDS / 2], times[ROUNDS - 1]);
    println!(
        "containerd {generation} has loaded a repaired conflist after {median:?}, at the slowest {slowest:?}"
    );
    assert!(median <= LIMIT.mul_f64(slowdown), "{times:?}, slowdown {slowdown:.2}");
    assert_every_load_succeeded(&node);
}

#[test]
fn f08_containerd_1_6_loads_a_repaired_conflist_within_a_second() {
    assert_repaired_conflist_is_loaded_soon(Generation::V1_6);
}

#[test]
fn f08_containerd_1_7_loads_a_repaired_conflist_within_a_second() {
    assert_repaired_conflist_is_loaded_soon(Generation::V1_7);
}

#[test]
fn f08_containerd_2_x_loads_a_repaired_conflist_within_a_second() {
    assert_repaired_conflist_is_loaded_soon(Generation::V2);
}
