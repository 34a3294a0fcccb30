//! Under load: put in, and put in again after each of the primary's writings.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use gybe_containerd_tests::Generation;

use crate::ground::{Image, assert_nothing_is_stuck, chain, install, node};
use crate::load::under_load;
use crate::primary::Primary;
use crate::state::State;
use crate::views::{assert_always_loadable, until_loaded, watched};

/// Enough sandboxes to see what becomes of them.
const SOME: usize = 8;

/// As long as foreign writes are remembered: the fight is slowed for most of it.
const A_MINUTE: Duration = Duration::from_secs(60);

/// What the agent says of a fight.
const FIGHT: &str = "is undone again and again";

/// The primary writes at this rhythm, for that long.
fn writes_every(primary: &mut Primary, rhythm: Duration, lasting: Duration) {
    // Nobody sends: what is waited for is the time itself.
    let (_sender, never) = channel::<()>();
    let start = Instant::now();
    let mut next = start;
    while start.elapsed() < lasting {
        primary.writes();
        next += rhythm;
        let _ = never.recv_timeout(next.saturating_duration_since(Instant::now()));
    }
}

#[test]
fn installed_under_load_every_sandbox_is_redirected_from_then_on() {
    let generation = Generation::V2;
    let node = node(generation);
    let ((_agent, tally), views) = watched(&node, || {
        under_load(&node, |load| {
            load.wait_for(SOME);
            let agent = install(&node, Image::One);
            until_loaded(&node, State { nth: 0, gybe: true });
            load.wait_for(SOME);
            agent
        })
    });
    tally.report("installed under load", &views);
    assert_eq!(tally.refused, [""; 0]);
    assert!(tally.in_a_window(&views).len() >= SOME, "before it was installed");
    assert_always_loadable(&node);
    assert_nothing_is_stuck(&node);
}

fn rewritten(rhythm: Duration, lasting: Duration) {
    let generation = Generation::V2;
    let node = node(generation);
    let mut primary = Primary::of(&node, chain(generation));
    let _agent = install(&node, Image::One);
    until_loaded(&node, State { nth: 0, gybe: true });
    let ((_, tally), views) = watched(&node, || {
        under_load(&node, |load| {
            writes_every(&mut primary, rhythm, lasting);
            let healed = primary.healed();
            println!("the last writing was healed after {healed:?}");
            until_loaded(&node, State { nth: primary.state().nth, gybe: true });
            load.wait_for(SOME);
        })
    });
    let told = node.agents_log().unwrap().matches(FIGHT).count();
    assert!(told > 0, "more than five writings in a minute, and nobody told of a fight");
    tally.report(&format!("rewritten every {rhythm:?} for {lasting:?}"), &views);
    assert_eq!(tally.refused, [""; 0]);
    assert_always_loadable(&node);
    assert_nothing_is_stuck(&node);
}

#[test]
fn f05_rewritten_every_two_seconds_only_the_windows_let_a_pod_through() {
    rewritten(Duration::from_secs(2), A_MINUTE);
}

#[test]
fn f05_in_a_fight_of_a_minute_only_the_windows_let_a_pod_through() {
    rewritten(Duration::from_millis(50), A_MINUTE);
}
