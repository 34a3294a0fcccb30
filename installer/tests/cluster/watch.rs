//! The pod cache while the watch is healthy, and its cost for the API server.

use crate::ground::{Ground, NODE, asked, becomes, knows, meshed};
use gybe_installer::agent::PodLookup;
use gybe_installer::agent::cluster::WatchedPods;
use gybe_plugin::facts::wire::{self, FactsResponse};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn the_nodes_pods_come_from_list_and_watch_and_are_removed_when_deleted() {
    let ground = Ground::new("watch");
    ground.put("cart-0", "u0");
    let mut elsewhere = meshed("cart-9", "u9");
    elsewhere["spec"]["nodeName"] = "node-2".into();
    ground.server.put_pod(elsewhere);
    let watched = ground.watched();
    knows(&watched, "cart-0", "u0");
    ground.put("cart-1", "u1");
    becomes(&watched, |state| state.pods == 2);
    knows(&watched, "cart-1", "u1");
    ground.server.delete_pod("shop", "cart-0");
    becomes(&watched, |state| state.pods == 1);
    assert_eq!(asked(&watched, "cart-0", "u0"), Err(FactsResponse::Unknown));
    assert_eq!(
        (ground.gets("cart-0"), ground.gets("cart-1"), ground.lists(), ground.watches()),
        (1, 0, 1, 1)
    );
}

#[test]
fn only_this_nodes_pods_are_requested_from_the_servers_cache_and_with_bookmarks() {
    let ground = Ground::new("asked");
    let _watched = ground.watched();
    ground.asked(|requests| requests.len() == 2);
    let queries: Vec<_> = ground.server.requests().into_iter().map(|request| request.query).collect();
    let of_the_node = format!("fieldSelector=spec.nodeName%3D{NODE}");
    assert!(queries.iter().all(|query| query.contains(&of_the_node)), "{queries:?}");
    assert!(queries[0].contains("resourceVersion=0") && queries[0].contains("limit="), "{queries:?}");
    assert!(queries[1].contains("allowWatchBookmarks=true"), "{queries:?}");
}

#[test]
fn what_is_answered_is_trimmed_to_what_the_decision_needs() {
    let ground = Ground::new("trimmed");
    ground.put("cart-0", "u0");
    let question = br#"{"version": 1, "namespace": "shop", "name": "cart-0", "uid": "u0"}"#;
    let pod = wire::decode_request(question).unwrap().pod;
    let answer = ground.watched().wait_for(&pod, Instant::now() + Duration::from_secs(1));
    let FactsResponse::Pod(facts) = &answer else { panic!("{answer:?}") };
    assert_eq!(facts.annotations.keys().collect::<Vec<_>>(), ["sidecar.istio.io/status"]);
    assert_eq!(facts.containers[1].args, ["proxy", "sidecar"]);
    assert!(!wire::encode_response(&answer).contains("hunter2"), "{answer:?}");
}

#[test]
fn a_hundred_and_ten_pods_at_once_are_answered_from_memory() {
    let ground = Ground::new("many");
    let watched = ground.watched();
    for i in 0..110 {
        ground.put(&format!("cart-{i}"), &format!("u{i}"));
    }
    becomes(&watched, |state| state.pods == 110);
    let watched: &WatchedPods = &watched;
    thread::scope(|scope| {
        for i in 0..110 {
            scope.spawn(move || knows(watched, &format!("cart-{i}"), &format!("u{i}")));
        }
    });
    let gets = ground.server.requests().iter().filter(|request| request.path.contains("/pods/")).count();
    assert_eq!((gets, ground.lists(), ground.watches()), (0, 1, 1));
}

#[test]
fn f38_a_large_clusters_other_pods_are_not_even_sent() {
    let ground = Ground::new("large");
    ground.server.set_generated_pods(100_000);
    ground.put("cart-0", "u0");
    let watched = ground.watched();
    knows(&watched, "cart-0", "u0");
    assert_eq!(watched.state().pods, 1);
}

#[test]
fn a_bookmark_saves_the_list_when_history_is_forgotten() {
    let ground = Ground::new("bookmark");
    ground.put("cart-0", "u0");
    let watched = ground.watched();
    ground.asked(|requests| requests.iter().any(|request| request.is_watch() && request.code == Some(200)));
    for i in 0..20 {
        let mut elsewhere = meshed(&format!("other-{i}"), "x");
        elsewhere["spec"]["nodeName"] = "node-2".into();
        ground.server.put_pod(elsewhere);
    }
    becomes(&watched, |state| state.silent > Duration::from_millis(500));
    ground.server.send_bookmarks();
    becomes(&watched, |state| state.silent < Duration::from_millis(300));
    ground.server.cut_watches();
    ground.server.compact();
    becomes(&watched, |state| state.reconnects == 1);
    ground.put("cart-1", "u1");
    knows(&watched, "cart-1", "u1");
    knows(&watched, "cart-0", "u0");
    assert_eq!((ground.lists(), ground.watches()), (1, 2));
}
