//! The pod cache while the watch is healthy, its cost for the API server, and pods that the watch has not reported:
//! the agent waits for the event, then makes one GET request.

use crate::{
    NODE, QUERY_DEADLINE, TestCluster, assert_known, injected_pod, query, query_within, wait_for_state,
};
use gybe_api_server::{Fault, FaultKind, Verb};
use gybe_installer::agent::pods::{PodLookup, WatchedPods};
use gybe_plugin::facts::wire::{self, FactsResponse};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn the_nodes_pods_come_from_list_and_watch_and_are_removed_when_deleted() {
    let cluster = TestCluster::new("watch");
    cluster.put("cart-0", "u0");
    let mut elsewhere = injected_pod("cart-9", "u9");
    elsewhere["spec"]["nodeName"] = "node-2".into();
    cluster.server.put_pod(elsewhere);
    let watched = cluster.start_watch();
    assert_known(&watched, "cart-0", "u0");
    cluster.put("cart-1", "u1");
    wait_for_state(&watched, |state| state.pods == 2);
    assert_known(&watched, "cart-1", "u1");
    cluster.server.delete_pod("shop", "cart-0");
    wait_for_state(&watched, |state| state.pods == 1);
    assert_eq!(query(&watched, "cart-0", "u0"), Err(FactsResponse::Unknown));
    assert_eq!(
        (
            cluster.get_count("cart-0"),
            cluster.get_count("cart-1"),
            cluster.list_count(),
            cluster.watch_count()
        ),
        (1, 0, 1, 1)
    );
}

#[test]
fn only_this_nodes_pods_are_requested_from_the_servers_cache_and_with_bookmarks() {
    let cluster = TestCluster::new("query");
    let _watched = cluster.start_watch();
    cluster.wait_for_requests(|requests| requests.len() == 2);
    let queries: Vec<_> = cluster.server.requests().into_iter().map(|request| request.query).collect();
    let of_the_node = format!("fieldSelector=spec.nodeName%3D{NODE}");
    assert!(queries.iter().all(|query| query.contains(&of_the_node)), "{queries:?}");
    assert!(queries[0].contains("resourceVersion=0") && queries[0].contains("limit="), "{queries:?}");
    assert!(queries[1].contains("allowWatchBookmarks=true"), "{queries:?}");
}

#[test]
fn answers_contain_only_the_fields_that_the_decision_needs() {
    let cluster = TestCluster::new("trimmed");
    cluster.put("cart-0", "u0");
    let request = br#"{"version": 1, "namespace": "shop", "name": "cart-0", "uid": "u0"}"#;
    let pod = wire::decode_request(request).unwrap().pod;
    let answer = cluster.start_watch().wait_for(&pod, Instant::now() + Duration::from_secs(1));
    let FactsResponse::Pod(facts) = &answer else { panic!("{answer:?}") };
    assert_eq!(facts.annotations.keys().collect::<Vec<_>>(), ["sidecar.istio.io/status"]);
    assert_eq!(facts.containers[1].args, ["proxy", "sidecar"]);
    assert!(!wire::encode_response(&answer).contains("hunter2"), "{answer:?}");
}

#[test]
fn queries_for_110_pods_at_once_are_answered_from_memory() {
    let cluster = TestCluster::new("many");
    let watched = cluster.start_watch();
    for i in 0..110 {
        cluster.put(&format!("cart-{i}"), &format!("u{i}"));
    }
    wait_for_state(&watched, |state| state.pods == 110);
    let watched: &WatchedPods = &watched;
    thread::scope(|scope| {
        for i in 0..110 {
            scope.spawn(move || assert_known(watched, &format!("cart-{i}"), &format!("u{i}")));
        }
    });
    let gets = cluster.server.requests().iter().filter(|request| request.path.contains("/pods/")).count();
    assert_eq!((gets, cluster.list_count(), cluster.watch_count()), (0, 1, 1));
}

#[test]
fn f38_in_a_large_cluster_only_this_nodes_pods_are_sent() {
    let cluster = TestCluster::new("large");
    cluster.server.set_generated_pods(100_000);
    cluster.put("cart-0", "u0");
    let watched = cluster.start_watch();
    assert_known(&watched, "cart-0", "u0");
    assert_eq!(watched.state().pods, 1);
}

#[test]
fn after_a_bookmark_no_list_is_needed_when_the_server_compacts_its_history() {
    let cluster = TestCluster::new("bookmark");
    cluster.put("cart-0", "u0");
    let watched = cluster.start_watch();
    cluster.wait_for_requests(|requests| {
        requests.iter().any(|request| request.is_watch() && request.code == Some(200))
    });
    for i in 0..20 {
        let mut elsewhere = injected_pod(&format!("other-{i}"), "x");
        elsewhere["spec"]["nodeName"] = "node-2".into();
        cluster.server.put_pod(elsewhere);
    }
    wait_for_state(&watched, |state| state.silent > Duration::from_millis(500));
    let sent = Instant::now();
    cluster.server.send_bookmarks();
    wait_for_state(&watched, |state| state.silent < sent.elapsed());
    cluster.server.cut_watches();
    cluster.server.compact();
    wait_for_state(&watched, |state| state.reconnects == 1);
    cluster.put("cart-1", "u1");
    assert_known(&watched, "cart-1", "u1");
    assert_known(&watched, "cart-0", "u0");
    assert_eq!((cluster.list_count(), cluster.watch_count()), (1, 2));
}

/// Creates a pod on another node, which this node's watch does not report.
fn put_elsewhere(cluster: &TestCluster, name: &str, uid: &str) {
    let mut pod = injected_pod(name, uid);
    pod["spec"]["nodeName"] = "node-2".into();
    cluster.server.put_pod(pod);
}

#[test]
fn a_pod_that_appears_during_the_wait_is_not_looked_up() {
    let cluster = TestCluster::new("comes");
    let watched = &cluster.start_watch();
    // The agent looks a pod up whose event does not come within 300 ms, as on a busy machine.
    let is_in_time = |number: usize| {
        let (name, before) = (&format!("cart-{number}"), Instant::now());
        thread::scope(|scope| {
            let waiting = scope.spawn(move || query(watched, name, "u0"));
            cluster.put(name, "u0");
            assert_eq!(waiting.join().unwrap(), Ok("u0".to_owned()));
        });
        let is_in_time = before.elapsed() < Duration::from_millis(300);
        assert!(!is_in_time || cluster.get_count(name) == 0);
        is_in_time
    };
    assert!((0..10).any(is_in_time));
}

#[test]
fn an_unknown_pod_is_looked_up_once_for_all_queries() {
    let cluster = TestCluster::new("once");
    put_elsewhere(&cluster, "cart-0", "u0");
    let watched = &cluster.start_watch();
    // The server delays its first response to a GET, so that all queries begin before it.
    cluster.server.add_fault(Fault::always(FaultKind::Slow(Duration::from_secs(1))).at(Verb::Get).times(1));
    thread::scope(|scope| {
        for _ in 0..30 {
            scope.spawn(|| assert_known(watched, "cart-0", "u0"));
        }
    });
    assert_eq!(cluster.get_count("cart-0"), 1);
    // The agent does not cache the answer: a later query makes another request.
    assert_eq!(watched.state().pods, 0);
    assert_known(watched, "cart-0", "u0");
    assert_eq!(cluster.get_count("cart-0"), 2);
}

#[test]
fn f01_a_connection_that_the_server_closes_on_reuse_fails_no_pod() {
    let cluster = TestCluster::new("kept");
    let pods: Vec<_> = (0..8).map(|i| (format!("cart-{i}"), format!("u{i}"))).collect();
    pods.iter().for_each(|(name, uid)| put_elsewhere(&cluster, name, uid));
    let watched = &cluster.start_watch();
    cluster.server.add_fault(Fault::always(FaultKind::Disconnects).on_reused_connections().at(Verb::Get));
    // The first round opens connections; the later ones reuse them.
    for _ in 0..3 {
        thread::scope(|scope| {
            for (name, uid) in &pods {
                scope.spawn(move || assert_known(watched, name, uid));
            }
        });
    }
    let gets: usize = pods.iter().map(|(name, _)| cluster.get_count(name)).sum();
    assert!((3 * 8 + 1..=2 * 3 * 8).contains(&gets), "{gets}");
}

#[test]
fn a_request_whose_connection_is_closed_is_repeated_once() {
    let cluster = TestCluster::new("closes");
    put_elsewhere(&cluster, "cart-0", "u0");
    let watched = cluster.start_watch();
    cluster.server.add_fault(Fault::always(FaultKind::Disconnects).at(Verb::Get));
    let answer = query(&watched, "cart-0", "u0").unwrap_err();
    assert!(matches!(&answer, FactsResponse::Error(why) if why.contains("cannot be reached")), "{answer:?}");
    assert_eq!(cluster.get_count("cart-0"), 2);
}

#[test]
fn a_pod_that_does_not_exist_is_unknown() {
    let cluster = TestCluster::new("absent");
    assert_eq!(query(&cluster.start_watch(), "cart-0", "u0"), Err(FactsResponse::Unknown));
    assert_eq!(cluster.get_count("cart-0"), 1);
}

#[test]
fn f39_an_earlier_pod_of_the_same_name_is_not_returned_and_the_new_one_is_looked_up() {
    let cluster = TestCluster::new("life");
    cluster.put("cart-0", "u1");
    let watched = cluster.start_watch();
    assert_known(&watched, "cart-0", "u1");
    cluster.server.add_fault(Fault::always(FaultKind::Fails(503)).at(Verb::Watch));
    cluster.server.cut_watches();
    wait_for_state(&watched, |state| state.problem.is_some());
    cluster.server.delete_pod("shop", "cart-0");
    cluster.put("cart-0", "u2");
    assert_known(&watched, "cart-0", "u2");
    assert_eq!(cluster.get_count("cart-0"), 1);
    cluster.server.clear_faults();
    cluster.put("cart-1", "u3");
    wait_for_state(&watched, |state| state.problem.is_none() && state.pods == 2);
    assert_known(&watched, "cart-0", "u2");
    assert_eq!(cluster.get_count("cart-0"), 1);
}

#[test]
fn f39_a_static_pod_is_found_by_the_hash_in_its_mirror() {
    let cluster = TestCluster::new("mirror");
    let mut mirror = injected_pod("proxy-node-1", "api");
    mirror["metadata"]["annotations"]["kubernetes.io/config.hash"] = "hash".into();
    cluster.server.put_pod(mirror);
    let watched = cluster.start_watch();
    assert_eq!(query(&watched, "proxy-node-1", "hash"), Ok("api".to_owned()));
    assert_eq!(cluster.get_count("proxy-node-1"), 0);
}

#[test]
fn f01_a_query_ends_at_its_deadline_when_the_api_server_does_not_answer() {
    let cluster = TestCluster::new("silent");
    let watched = cluster.start_watch();
    cluster.server.add_fault(Fault::always(FaultKind::Silent).at(Verb::Get));
    let before = Instant::now();
    let answer = query_within(QUERY_DEADLINE, &watched, "cart-0", "u0").unwrap_err();
    assert!(
        matches!(&answer, FactsResponse::Error(why) if why.contains("did not answer in time")),
        "{answer:?}"
    );
    assert!(before.elapsed() < QUERY_DEADLINE + Duration::from_secs(5), "{:?}", before.elapsed());
}

#[test]
fn the_servers_error_is_reported_without_a_credential() {
    let cluster = TestCluster::new("error");
    let watched = cluster.start_watch();
    cluster.server.forbid(Verb::Get, "pods");
    let error = |name: &str| format!("{:?}", query(&watched, name, "u").unwrap_err());
    let forbidden = error("cart-0");
    assert!(forbidden.contains("responded 403") && forbidden.contains("is forbidden"), "{forbidden}");
    cluster.server.permit(Verb::Get, "pods");
    cluster.server.add_fault(Fault::always(FaultKind::TooManyRequests(100)).at(Verb::Get));
    let too_many = error("cart-1");
    assert!(too_many.contains("responded 429"), "{too_many}");
    cluster.server.clear_faults();
    cluster.server.tokens().revoke_all();
    let unauthorized = error("cart-2");
    assert!(unauthorized.contains("responded 401") && !unauthorized.contains("eyJ"), "{unauthorized}");
}
