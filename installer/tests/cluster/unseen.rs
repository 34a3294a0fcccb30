//! Pods that the watch has not reported: the agent waits for the event, then makes one GET request.

use crate::ground::{CALL, Ground, asked, becomes, knows, meshed};
use gybe_api_server::{Fault, FaultKind, Verb};
use gybe_plugin::facts::wire::FactsResponse;
use std::thread;
use std::time::{Duration, Instant};

/// Creates a pod on another node, which this node's watch does not report.
fn put_elsewhere(ground: &Ground, name: &str, uid: &str) {
    let mut pod = meshed(name, uid);
    pod["spec"]["nodeName"] = "node-2".into();
    ground.server.put_pod(pod);
}

#[test]
fn a_pod_that_appears_during_the_wait_is_not_looked_up() {
    let ground = Ground::new("comes");
    let watched = &ground.watched();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || asked(watched, "cart-0", "u0"));
        ground.put("cart-0", "u0");
        assert_eq!(waiting.join().unwrap(), Ok("u0".to_owned()));
    });
    assert_eq!(ground.gets("cart-0"), 0);
}

#[test]
fn an_unknown_pod_is_looked_up_once_for_all_queries() {
    let ground = Ground::new("once");
    put_elsewhere(&ground, "cart-0", "u0");
    let watched = &ground.watched();
    thread::scope(|scope| {
        for _ in 0..30 {
            scope.spawn(|| knows(watched, "cart-0", "u0"));
        }
    });
    assert_eq!(ground.gets("cart-0"), 1);
    // The agent does not cache the answer: a later query makes another request.
    assert_eq!(watched.state().pods, 0);
    knows(watched, "cart-0", "u0");
    assert_eq!(ground.gets("cart-0"), 2);
}

#[test]
fn f01_a_connection_that_is_closed_just_when_it_is_used_again_fails_no_pod() {
    let ground = Ground::new("kept");
    let pods: Vec<_> = (0..8).map(|i| (format!("cart-{i}"), format!("u{i}"))).collect();
    pods.iter().for_each(|(name, uid)| put_elsewhere(&ground, name, uid));
    let watched = &ground.watched();
    ground.server.add_fault(Fault::always(FaultKind::Disconnects).on_reused_connections().at(Verb::Get));
    // The first round opens connections; the later ones reuse them.
    for _ in 0..3 {
        thread::scope(|scope| {
            for (name, uid) in &pods {
                scope.spawn(move || knows(watched, name, uid));
            }
        });
    }
    let gets: usize = pods.iter().map(|(name, _)| ground.gets(name)).sum();
    assert!((3 * 8 + 1..=2 * 3 * 8).contains(&gets), "{gets}");
}

#[test]
fn a_server_that_closes_every_connection_gets_one_more_request_and_no_third() {
    let ground = Ground::new("hangs-up");
    put_elsewhere(&ground, "cart-0", "u0");
    let watched = ground.watched();
    ground.server.add_fault(Fault::always(FaultKind::Disconnects).at(Verb::Get));
    let answer = asked(&watched, "cart-0", "u0").unwrap_err();
    assert!(matches!(&answer, FactsResponse::Error(why) if why.contains("cannot be reached")), "{answer:?}");
    assert_eq!(ground.gets("cart-0"), 2);
}

#[test]
fn a_pod_that_does_not_exist_is_unknown() {
    let ground = Ground::new("nobody");
    assert_eq!(asked(&ground.watched(), "cart-0", "u0"), Err(FactsResponse::Unknown));
    assert_eq!(ground.gets("cart-0"), 1);
}

#[test]
fn f39_an_earlier_pod_of_the_same_name_is_not_returned_and_the_new_one_is_looked_up() {
    let ground = Ground::new("life");
    ground.put("cart-0", "u1");
    let watched = ground.watched();
    knows(&watched, "cart-0", "u1");
    ground.server.add_fault(Fault::always(FaultKind::Fails(503)).at(Verb::Watch));
    ground.server.cut_watches();
    becomes(&watched, |state| state.problem.is_some());
    ground.server.delete_pod("shop", "cart-0");
    ground.put("cart-0", "u2");
    knows(&watched, "cart-0", "u2");
    assert_eq!(ground.gets("cart-0"), 1);
    ground.server.clear_faults();
    becomes(&watched, |state| state.problem.is_none());
    knows(&watched, "cart-0", "u2");
    assert_eq!(ground.gets("cart-0"), 1);
}

#[test]
fn f39_a_static_pod_is_found_by_the_hash_in_its_mirror() {
    let ground = Ground::new("mirror");
    let mut mirror = meshed("proxy-node-1", "api");
    mirror["metadata"]["annotations"]["kubernetes.io/config.hash"] = "hash".into();
    ground.server.put_pod(mirror);
    let watched = ground.watched();
    assert_eq!(asked(&watched, "proxy-node-1", "hash"), Ok("api".to_owned()));
    assert_eq!(ground.gets("proxy-node-1"), 0);
}

#[test]
fn f01_an_api_server_that_is_silent_holds_a_caller_no_longer_than_its_deadline() {
    let ground = Ground::new("silent");
    let watched = ground.watched();
    ground.server.add_fault(Fault::always(FaultKind::Silent).at(Verb::Get));
    let before = Instant::now();
    let answer = asked(&watched, "cart-0", "u0").unwrap_err();
    assert!(
        matches!(&answer, FactsResponse::Error(why) if why.contains("did not answer in time")),
        "{answer:?}"
    );
    assert!(before.elapsed() < CALL + Duration::from_secs(1), "{:?}", before.elapsed());
}

#[test]
fn the_servers_error_is_reported_without_a_credential() {
    let ground = Ground::new("said");
    let watched = ground.watched();
    ground.server.forbid(Verb::Get, "pods");
    let told = |name: &str| format!("{:?}", asked(&watched, name, "u").unwrap_err());
    let forbidden = told("cart-0");
    assert!(forbidden.contains("responded 403") && forbidden.contains("is forbidden"), "{forbidden}");
    ground.server.permit(Verb::Get, "pods");
    ground.server.add_fault(Fault::always(FaultKind::TooManyRequests(100)).at(Verb::Get));
    let too_many = told("cart-1");
    assert!(too_many.contains("responded 429"), "{too_many}");
    ground.server.clear_faults();
    ground.server.tokens().revoke_all();
    let unauthorized = told("cart-2");
    assert!(unauthorized.contains("responded 401") && !unauthorized.contains("eyJ"), "{unauthorized}");
}
