//! Under load: Gybe is installed, and added again after each write of the primary plugin.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use gybe_containerd_tests::Generation;

use crate::conflist_state::{ConflistState, assert_every_load_succeeded, wait_until_loaded, while_observing};
use crate::fixture::{Image, assert_no_sandbox_is_left, conflist, install, node};
use crate::load::under_load;
use crate::primary::PrimaryPlugin;

/// Pods that start in each phase of a test.
const SOME_PODS: usize = 8;

/// The time for which the agent remembers foreign rewrites: it limits its rate for most of it.
const A_MINUTE: Duration = Duration::from_secs(60);

/// Part of the agent's log message about a conflict.
const CONFLICT: &str = "is undone again and again";

fn write_repeatedly(primary: &mut PrimaryPlugin, interval: Duration, duration: Duration) {
    // The channel never receives: recv_timeout waits until the next write is due.
    let (_sender, never) = channel::<()>();
    let start = Instant::now();
    let mut next = start;
    while start.elapsed() < duration {
        primary.write();
        next += interval;
        let _ = never.recv_timeout(next.saturating_duration_since(Instant::now()));
    }
}

#[test]
fn after_an_installation_under_load_every_pod_is_redirected() {
    let generation = Generation::V2;
    let node = node(generation);
    let ((_agent, result), observations) = while_observing(&node, || {
        under_load(&node, |load| {
            load.wait_for(SOME_PODS);
            let agent = install(&node, Image::One);
            wait_until_loaded(&node, ConflistState { revision: 0, has_gybe: true });
            load.wait_for(SOME_PODS);
            agent
        })
    });
    result.print("installed under load", &observations);
    assert_eq!(result.refused, [""; 0]);
    assert!(result.not_redirected(&observations).len() >= SOME_PODS, "before the installation");
    assert_every_load_succeeded(&node);
    assert_no_sandbox_is_left(&node);
}

fn assert_only_window_pods_are_not_redirected(interval: Duration, duration: Duration) {
    let generation = Generation::V2;
    let node = node(generation);
    let mut primary = PrimaryPlugin::new(&node, conflist(generation));
    let _agent = install(&node, Image::One);
    wait_until_loaded(&node, ConflistState { revision: 0, has_gybe: true });
    let ((_, result), observations) = while_observing(&node, || {
        under_load(&node, |load| {
            write_repeatedly(&mut primary, interval, duration);
            let repaired = primary.wait_until_repaired();
            println!("the agent repaired the last write after {repaired:?}");
            wait_until_loaded(&node, ConflistState { revision: primary.state().revision, has_gybe: true });
            load.wait_for(SOME_PODS);
        })
    });
    let conflicts = node.agent_log().unwrap().matches(CONFLICT).count();
    assert!(conflicts > 0, "more than five writes in a minute, and the agent logs no conflict");
    result.print(&format!("rewritten every {interval:?} for {duration:?}"), &observations);
    assert_eq!(result.refused, [""; 0]);
    assert_every_load_succeeded(&node);
    assert_no_sandbox_is_left(&node);
}

#[test]
fn f05_with_a_rewrite_every_two_seconds_only_pods_in_a_window_are_not_redirected() {
    assert_only_window_pods_are_not_redirected(Duration::from_secs(2), A_MINUTE);
}

#[test]
fn f05_in_a_conflict_of_one_minute_only_pods_in_a_window_are_not_redirected() {
    assert_only_window_pods_are_not_redirected(Duration::from_millis(50), A_MINUTE);
}
