//! The pod cache while the watch is healthy, and its cost for the API server.

use crate::cluster::{NODE, TestCluster, assert_known, injected_pod, query, wait_for_state};
use gybe_installer::agent::pods::PodLookup;
use gybe_installer::agent::pods::WatchedPods;
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
    cluster.server.send_bookmarks();
    wait_for_state(&watched, |state| state.silent < Duration::from_millis(300));
    cluster.server.cut_watches();
    cluster.server.compact();
    wait_for_state(&watched, |state| state.reconnects == 1);
    cluster.put("cart-1", "u1");
    assert_known(&watched, "cart-1", "u1");
    assert_known(&watched, "cart-0", "u0");
    assert_eq!((cluster.list_count(), cluster.watch_count()), (1, 2));
}
