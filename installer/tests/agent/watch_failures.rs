//! Failures of the watch: it recovers by itself, never reconnects in a tight loop, and queries about cached pods are
//! answered meanwhile.

use crate::{
    NODE, QUERY_DEADLINE, TestCluster, assert_known, assert_recovered, injected_pod, is_healthy, query,
    query_within, status, wait_for_state, watched_cluster,
};
use gybe_api_server::{Fault, FaultKind, Network, Request, Validity, Verb};
use gybe_installer::agent::pods::WatchedPods;
use gybe_plugin::facts::wire::FactsResponse;
use gybe_test_support::assert_takes_less_than;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn changes_that_the_server_has_compacted_are_found_by_a_list() {
    let (cluster, watched) = watched_cluster("gone");
    cluster.put("cart-1", "u1");
    assert_known(&watched, "cart-1", "u1");
    cluster.server.add_fault(Fault::always(FaultKind::Fails(503)).at(Verb::Watch));
    cluster.server.cut_watches();
    wait_for_state(&watched, |state| status(state) == Some(503));
    // Without a watch one pod is deleted and another created; then the server compacts its history.
    cluster.server.delete_pod("shop", "cart-1");
    cluster.put("cart-2", "u2");
    cluster.server.compact();
    assert_known(&watched, "cart-0", "u0");
    cluster.server.clear_faults();
    // The server answers the new watch with 410, and the agent lists again. When it watches, it has read that list.
    cluster.wait_for_requests(|requests| {
        let last_list = requests.iter().rposition(Request::is_list_of_pods);
        let lists = requests.iter().filter(|request| request.is_list_of_pods()).count();
        lists == 2 && requests.iter().rposition(Request::is_watch) > last_list
    });
    assert_known(&watched, "cart-2", "u2");
    assert_eq!(query(&watched, "cart-1", "u1"), Err(FactsResponse::Unknown));
    assert_eq!(cluster.get_count("cart-2"), 0);
    assert_recovered(&cluster, &watched, "cart-3");
}

#[test]
fn a_watch_continues_with_a_list_after_410() {
    let (cluster, watched) = watched_cluster("expired");
    cluster.put("cart-1", "u1");
    cluster.server.compact();
    cluster.server.expire_watches();
    cluster.wait_for_requests(|requests| {
        requests.iter().filter(|request| request.is_list_of_pods()).count() == 2
    });
    assert_recovered(&cluster, &watched, "cart-2");
}

#[test]
fn a_watch_that_breaks_off_or_ends_continues_from_its_version() {
    let (cluster, watched) = watched_cluster("breaks");
    for (round, end) in [false, true].into_iter().enumerate() {
        let before = watched.state().reconnects;
        if end {
            cluster.server.end_watches();
        } else {
            cluster.server.cut_watches();
        }
        wait_for_state(&watched, |state| state.reconnects > before);
        assert_recovered(&cluster, &watched, &format!("cart-{}", round + 1));
    }
    assert_eq!((cluster.list_count(), cluster.watch_count()), (1, 3));
}

#[test]
fn a_failing_server_is_retried_and_known_pods_are_answered_for() {
    for fault in [FaultKind::Fails(500), FaultKind::Fails(502), FaultKind::Fails(503), FaultKind::Disconnects]
    {
        let (cluster, watched) = watched_cluster(&format!("fails-{fault:?}"));
        cluster.server.add_fault(Fault::always(fault));
        cluster.server.cut_watches();
        wait_for_state(&watched, |state| !is_healthy(state));
        assert_known(&watched, "cart-0", "u0");
        cluster.server.clear_faults();
        assert_recovered(&cluster, &watched, "cart-1");
    }
}

#[test]
fn after_429_the_agent_waits_as_long_as_the_server_requests() {
    let (cluster, watched) = watched_cluster("retry-after");
    cluster.server.add_fault(Fault::always(FaultKind::TooManyRequests(1)).times(2));
    let before = Instant::now();
    cluster.server.cut_watches();
    wait_for_state(&watched, |state| status(state) == Some(429));
    assert_known(&watched, "cart-0", "u0");
    wait_for_state(&watched, is_healthy);
    assert!(before.elapsed() >= Duration::from_secs(2), "{:?}", before.elapsed());
}

#[test]
fn a_watch_that_the_server_ends_at_once_is_not_reopened_in_a_tight_loop() {
    let (cluster, watched) = watched_cluster("spins");
    let stop = AtomicBool::new(false);
    let before = cluster.server.requests().len();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                cluster.server.end_watches();
                thread::sleep(Duration::from_millis(5));
            }
        });
        thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::SeqCst);
    });
    let requests = cluster.server.requests().len() - before;
    assert!((2..=8).contains(&requests), "{requests} in two seconds");
    assert_recovered(&cluster, &watched, "cart-1");
}

#[test]
fn f01_without_the_api_server_known_pods_are_answered_and_unknown_ones_refused_within_the_deadline() {
    for network in [Network::Unreachable, Network::Silent, Network::Refusing] {
        let (cluster, watched) = watched_cluster(&format!("unreachable-{network:?}"));
        cluster.server.set_network(network).unwrap();
        for _ in 0..10 {
            assert_takes_less_than(Duration::from_millis(250), || assert_known(&watched, "cart-0", "u0"));
        }
        cluster.put("cart-1", "u1");
        let answer = query_within(QUERY_DEADLINE, &watched, "cart-1", "u1").unwrap_err();
        assert!(matches!(&answer, FactsResponse::Error(why) if why.contains("the API server")), "{answer:?}");
        cluster.server.set_network(Network::Open).unwrap();
        assert_known(&watched, "cart-0", "u0");
        wait_for_state(&watched, |state| is_healthy(state) && state.pods == 2);
        assert_known(&watched, "cart-1", "u1");
    }
}

#[test]
fn the_agent_waits_for_a_server_that_is_unreachable_at_the_start() {
    let cluster = TestCluster::new("start");
    cluster.put("cart-0", "u0");
    cluster.server.set_network(Network::Refusing).unwrap();
    let watched = WatchedPods::start(&cluster.settings(), NODE, None).unwrap();
    wait_for_state(&watched, |state| !is_healthy(state));
    assert!(!watched.state().synced && watched.state().pods == 0);
    let answer = query_within(QUERY_DEADLINE, &watched, "cart-0", "u0").unwrap_err();
    assert!(matches!(&answer, FactsResponse::Error(why) if why.contains("cannot be reached")), "{answer:?}");
    cluster.server.set_network(Network::Open).unwrap();
    wait_for_state(&watched, |state| state.synced);
    assert_recovered(&cluster, &watched, "cart-1");
}

#[test]
fn a_pod_that_cannot_be_parsed_does_not_hide_another() {
    let (cluster, watched) = watched_cluster("odd");
    let odd = |name: &str, pointer: &str, value: serde_json::Value| {
        let mut pod = injected_pod(name, "odd");
        *pod.pointer_mut(pointer).unwrap() = value;
        cluster.server.put_pod(pod);
    };
    odd("odd-0", "/spec/containers/0/name", 5.into());
    odd("odd-1", "/spec/containers", serde_json::Value::Null);
    odd("odd-2", "/metadata/annotations", "none".into());
    cluster.put("cart-1", "u1");
    assert_known(&watched, "cart-1", "u1");
    let answer = query(&watched, "odd-0", "odd").unwrap_err();
    assert!(
        matches!(&answer, FactsResponse::Error(why) if why.contains("not an object of the requested kind")),
        "{answer:?}"
    );
    // The unreadable pods did not restart the watch; a list that contains them is read too.
    assert_eq!((cluster.list_count(), cluster.watch_count()), (1, 1));
    let again = cluster.start_watch();
    assert_known(&again, "cart-0", "u0");
    assert_known(&again, "cart-1", "u1");
    assert_eq!(again.state().pods, 2);
}

/// The time that a slow list takes before the watch is refused does not count as a healthy watch.
#[test]
fn a_watch_that_is_refused_after_a_slow_list_counts_as_failed_and_the_next_request_is_a_list() {
    let (cluster, watched) = watched_cluster("slow-refusal");
    // Longer than the lifetime from which a watch counts as healthy.
    cluster.server.add_fault(Fault::always(FaultKind::Slow(Duration::from_millis(5_200))).at(Verb::List));
    cluster.server.add_fault(Fault::always(FaultKind::Fails(503)).at(Verb::Watch));
    cluster.server.cut_watches();
    let after_lists = |requests: &[Request]| {
        let lists = requests.iter().enumerate().filter(|(_, request)| request.is_list_of_pods());
        let slow = lists.map(|(n, _)| n).nth(1)?;
        // The slow list is followed by its watch, and that by the request to be checked.
        requests.get(slow + 2).cloned()
    };
    let patience = Duration::from_secs(60);
    assert!(cluster.server.wait_for_requests(patience, |requests| after_lists(requests).is_some()));
    let next = after_lists(&cluster.server.requests()).unwrap();
    assert!(next.is_list_of_pods(), "{:#?}", cluster.server.requests());
    assert_known(&watched, "cart-0", "u0");
}

#[test]
fn f02_ten_token_rotations_under_load_fail_no_query() {
    let (cluster, watched) = watched_cluster("rotations");
    for i in 0..8 {
        let mut elsewhere = injected_pod(&format!("far-{i}"), "u1");
        elsewhere["spec"]["nodeName"] = "node-2".into();
        cluster.server.put_pod(elsewhere);
    }
    let (stop, watched) = (&AtomicBool::new(false), &watched);
    thread::scope(|scope| {
        for i in 0..8 {
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    // The first pod is in the cache; the agent gets the second with its current token.
                    assert_known(watched, "cart-0", "u0");
                    assert_known(watched, &format!("far-{i}"), "u1");
                }
            });
        }
        for _ in 0..10 {
            let gets = cluster.server.requests().len();
            cluster.rotate();
            cluster.server.cut_watches();
            cluster.wait_for_requests(|requests| requests.len() > gets + 16);
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_recovered(&cluster, watched, "cart-1");
    let requests = cluster.server.requests();
    let refused = requests.iter().filter(|request| request.code == Some(401)).count();
    println!("{} requests, {refused} of them refused once and repeated with the new token", requests.len());
    assert!(requests.len() > 160, "{}", requests.len());
}

#[test]
fn f03_a_token_that_is_not_valid_yet_is_reported_and_the_next_one_is_used() {
    let (cluster, watched) = watched_cluster("not-yet");
    cluster.server.tokens().revoke_all();
    cluster.account.write(&cluster.server.tokens().issue(Validity::NotYetValid)).unwrap();
    cluster.server.cut_watches();
    wait_for_state(&watched, |state| status(state) == Some(401));
    assert_known(&watched, "cart-0", "u0");
    let answer = format!("{:?}", query(&watched, "cart-1", "u1").unwrap_err());
    assert!(answer.contains("401"), "{answer}");
    cluster.rotate();
    assert_recovered(&cluster, &watched, "cart-1");
}

#[test]
fn f03_an_expired_certificate_is_reported_and_the_next_one_is_trusted() {
    let (cluster, watched) = watched_cluster("certificate");
    for validity in [Validity::NotYetValid, Validity::Expired] {
        cluster.server.present_certificate(validity).unwrap();
        cluster.server.set_network(Network::Refusing).unwrap();
        cluster.server.set_network(Network::Open).unwrap();
        wait_for_state(&watched, |state| {
            state.problem.as_ref().is_some_and(|fault| fault.sentence.contains("certificate"))
        });
        assert_known(&watched, "cart-0", "u0");
        cluster.server.present_certificate(Validity::Valid).unwrap();
        wait_for_state(&watched, is_healthy);
    }
    assert_recovered(&cluster, &watched, "cart-1");
}

#[test]
fn a_missing_right_is_reported_and_retried() {
    for verb in [Verb::List, Verb::Watch] {
        let (cluster, watched) = watched_cluster(&format!("right-{verb:?}"));
        cluster.server.forbid(verb, "pods");
        cluster.server.compact();
        cluster.put("cart-1", "u1");
        cluster.server.expire_watches();
        wait_for_state(&watched, |state| status(state) == Some(403));
        assert_known(&watched, "cart-0", "u0");
        let sentence = watched.state().problem.unwrap().sentence;
        assert!(sentence.contains("gybe-node") && sentence.contains("pods"), "{sentence}");
        cluster.server.permit(verb, "pods");
        assert_recovered(&cluster, &watched, "cart-2");
    }
}
