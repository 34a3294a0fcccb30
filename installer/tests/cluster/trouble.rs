//! Failures of the watch: it recovers by itself, never reconnects in a tight loop, and queries about cached pods are
//! answered meanwhile.

use crate::ground::{Ground, NODE, asked, becomes, knows, meshed};
use crate::scene::{is_back, scene, status, well};
use gybe_api_server::{Fault, FaultKind, Network, Request, Verb};
use gybe_installer::agent::cluster::WatchedPods;
use gybe_plugin::facts::wire::FactsResponse;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn what_happened_while_history_was_forgotten_is_found_by_a_list() {
    let (ground, watched) = scene("gone");
    ground.put("cart-1", "u1");
    knows(&watched, "cart-1", "u1");
    ground.server.add_fault(Fault::always(FaultKind::Fails(503)).at(Verb::Watch));
    ground.server.cut_watches();
    becomes(&watched, |state| status(state) == Some(503));
    // Without a watch one pod is deleted and another created; then the server compacts its history.
    ground.server.delete_pod("shop", "cart-1");
    ground.put("cart-2", "u2");
    ground.server.compact();
    knows(&watched, "cart-0", "u0");
    ground.server.clear_faults();
    // The server answers the new watch with 410, and the agent lists again.
    ground.asked(|requests| requests.iter().filter(|request| request.is_list_of_pods()).count() == 2);
    knows(&watched, "cart-2", "u2");
    assert_eq!(asked(&watched, "cart-1", "u1"), Err(FactsResponse::Unknown));
    assert_eq!(ground.gets("cart-2"), 0);
    is_back(&ground, &watched, "cart-3");
}

#[test]
fn a_watch_continues_with_a_list_after_410() {
    let (ground, watched) = scene("expired");
    ground.put("cart-1", "u1");
    ground.server.compact();
    ground.server.expire_watches();
    ground.asked(|requests| requests.iter().filter(|request| request.is_list_of_pods()).count() == 2);
    is_back(&ground, &watched, "cart-2");
}

#[test]
fn a_watch_that_breaks_off_or_ends_continues_from_its_version() {
    let (ground, watched) = scene("breaks");
    for (round, end) in [false, true].into_iter().enumerate() {
        let before = watched.state().reconnects;
        if end {
            ground.server.end_watches();
        } else {
            ground.server.cut_watches();
        }
        becomes(&watched, |state| state.reconnects > before);
        is_back(&ground, &watched, &format!("cart-{}", round + 1));
    }
    assert_eq!((ground.lists(), ground.watches()), (1, 3));
}

#[test]
fn a_failing_server_is_retried_and_known_pods_are_answered_for() {
    for trouble in
        [FaultKind::Fails(500), FaultKind::Fails(502), FaultKind::Fails(503), FaultKind::Disconnects]
    {
        let (ground, watched) = scene(&format!("fails-{trouble:?}"));
        ground.server.add_fault(Fault::always(trouble));
        ground.server.cut_watches();
        becomes(&watched, |state| !well(state));
        knows(&watched, "cart-0", "u0");
        ground.server.clear_faults();
        is_back(&ground, &watched, "cart-1");
    }
}

#[test]
fn a_server_that_asks_for_patience_gets_it() {
    let (ground, watched) = scene("patience");
    ground.server.add_fault(Fault::always(FaultKind::TooManyRequests(1)).times(2));
    let before = Instant::now();
    ground.server.cut_watches();
    becomes(&watched, |state| status(state) == Some(429));
    knows(&watched, "cart-0", "u0");
    becomes(&watched, well);
    assert!(before.elapsed() >= Duration::from_secs(2), "{:?}", before.elapsed());
}

#[test]
fn the_watch_never_spins() {
    let (ground, watched) = scene("spins");
    let stop = AtomicBool::new(false);
    let before = ground.server.requests().len();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                ground.server.end_watches();
                thread::sleep(Duration::from_millis(5));
            }
        });
        thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::SeqCst);
    });
    let requests = ground.server.requests().len() - before;
    assert!((2..=8).contains(&requests), "{requests} in two seconds");
    is_back(&ground, &watched, "cart-1");
}

#[test]
fn f01_a_black_hole_changes_no_answer_and_refuses_what_is_new_in_time() {
    for network in [Network::Unreachable, Network::Silent, Network::Refusing] {
        let (ground, watched) = scene(&format!("hole-{network:?}"));
        ground.server.set_network(network).unwrap();
        for _ in 0..100 {
            let before = Instant::now();
            knows(&watched, "cart-0", "u0");
            assert!(before.elapsed() < Duration::from_millis(250), "{network:?}: {:?}", before.elapsed());
        }
        ground.put("cart-1", "u1");
        let answer = asked(&watched, "cart-1", "u1").unwrap_err();
        assert!(matches!(&answer, FactsResponse::Error(why) if why.contains("the API server")), "{answer:?}");
        ground.server.set_network(Network::Open).unwrap();
        knows(&watched, "cart-0", "u0");
        becomes(&watched, |state| well(state) && state.pods == 2);
        knows(&watched, "cart-1", "u1");
    }
}

#[test]
fn a_server_that_is_away_at_the_start_is_waited_for() {
    let ground = Ground::new("start");
    ground.put("cart-0", "u0");
    ground.server.set_network(Network::Refusing).unwrap();
    let watched = WatchedPods::start(&ground.cluster(), NODE).unwrap();
    becomes(&watched, |state| !well(state));
    assert!(!watched.state().synced && watched.state().pods == 0);
    let answer = asked(&watched, "cart-0", "u0").unwrap_err();
    assert!(matches!(&answer, FactsResponse::Error(why) if why.contains("cannot be reached")), "{answer:?}");
    ground.server.set_network(Network::Open).unwrap();
    becomes(&watched, |state| state.synced);
    is_back(&ground, &watched, "cart-1");
}

#[test]
fn one_pod_that_cannot_be_read_hides_no_other() {
    let (ground, watched) = scene("odd");
    let odd = |name: &str, pointer: &str, value: serde_json::Value| {
        let mut pod = meshed(name, "odd");
        *pod.pointer_mut(pointer).unwrap() = value;
        ground.server.put_pod(pod);
    };
    odd("odd-0", "/spec/containers/0/name", 5.into());
    odd("odd-1", "/spec/containers", serde_json::Value::Null);
    odd("odd-2", "/metadata/annotations", "none".into());
    ground.put("cart-1", "u1");
    knows(&watched, "cart-1", "u1");
    let answer = asked(&watched, "odd-0", "odd").unwrap_err();
    assert!(
        matches!(&answer, FactsResponse::Error(why) if why.contains("not an object of the requested kind")),
        "{answer:?}"
    );
    // The unreadable pods did not restart the watch; a list that contains them is read too.
    assert_eq!((ground.lists(), ground.watches()), (1, 1));
    let again = ground.watched();
    knows(&again, "cart-0", "u0");
    knows(&again, "cart-1", "u1");
    assert_eq!(again.state().pods, 2);
}

/// The time that a slow list takes before the watch is refused does not count as a healthy watch.
#[test]
fn however_long_a_refusal_takes_it_is_a_failure_and_lists_are_begun_anew() {
    let (ground, watched) = scene("slow-refusal");
    // Longer than the lifetime from which a watch counts as healthy.
    ground.server.add_fault(Fault::always(FaultKind::Slow(Duration::from_millis(5_200))).at(Verb::List));
    ground.server.add_fault(Fault::always(FaultKind::Fails(503)).at(Verb::Watch));
    ground.server.cut_watches();
    let after_lists = |requests: &[Request]| {
        let lists = requests.iter().enumerate().filter(|(_, request)| request.is_list_of_pods());
        let slow = lists.map(|(n, _)| n).nth(1)?;
        // The slow list is followed by its watch, and that by the request to be checked.
        requests.get(slow + 2).cloned()
    };
    let patience = Duration::from_secs(60);
    assert!(ground.server.wait_for_requests(patience, |requests| after_lists(requests).is_some()));
    let next = after_lists(&ground.server.requests()).unwrap();
    assert!(next.is_list_of_pods(), "{:#?}", ground.server.requests());
    knows(&watched, "cart-0", "u0");
}
