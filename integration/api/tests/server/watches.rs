//! Watches: changes through a selector, orderly and broken ends.

use crate::client::Client;
use crate::lists::pod;
use gybe_api_server::ApiServer;
use serde_json::Value;

const MINE: &str = "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dhere";

fn summary(event: &Value) -> (String, String, String) {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("/type"), text("/object/metadata/name"), text("/object/spec/nodeName"))
}

fn event(event_type: &str, name: &str, node: &str) -> (String, String, String) {
    (event_type.into(), name.into(), node.into())
}

#[test]
fn a_pod_that_begins_to_match_is_added_and_one_that_ceases_to_match_is_deleted() {
    let server = ApiServer::start().unwrap();
    server.put_pod(pod("old", "here"));
    let mut watch = Client::new(&server).get(&format!("{MINE}&resourceVersion={}", server.version()));
    server.put_pod(pod("a", ""));
    server.put_pod(pod("a", "here"));
    server.put_pod(pod("b", "there"));
    server.put_pod(pod("a", "here"));
    server.put_pod(pod("a", "there"));
    server.delete_pod("shop", "b");
    server.delete_pod("shop", "old");
    assert_eq!(summary(&watch.event()), event("ADDED", "a", "here"));
    assert_eq!(summary(&watch.event()), event("MODIFIED", "a", "here"));
    assert_eq!(summary(&watch.event()), event("DELETED", "a", "here"));
    let last = watch.event();
    assert_eq!(summary(&last), event("DELETED", "old", "here"));
    assert_eq!(last["object"]["metadata"]["resourceVersion"], server.version().to_string());
}

#[test]
fn a_watch_without_a_version_begins_with_all_objects() {
    let server = ApiServer::start().unwrap();
    server.put_pod(pod("a", "here"));
    server.put_pod(pod("b", "there"));
    server.set_generated_pods(1000);
    for from in ["", "&resourceVersion=0"] {
        let mut watch = Client::new(&server).get(&format!("{MINE}{from}"));
        assert_eq!(summary(&watch.event()), event("ADDED", "a", "here"));
        server.put_pod(pod("a", "here"));
        assert_eq!(summary(&watch.event()), event("MODIFIED", "a", "here"));
    }
}

#[test]
fn initial_events_are_refused_as_older_servers_do() {
    let server = ApiServer::start().unwrap();
    let query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let refused = Client::new(&server).get(&format!("{MINE}{query}"));
    assert_eq!(refused.code, 422);
    let status = refused.json();
    assert_eq!(status["reason"], "Invalid");
    assert!(
        status["message"].as_str().unwrap().ends_with("resourceVersionMatch is forbidden for watch"),
        "{status}"
    );
}

#[test]
fn a_watch_ends_in_order_at_its_time_limit_and_by_command() {
    let server = ApiServer::start().unwrap();
    let client = Client::new(&server);
    let mut short = client.get(&format!("{MINE}&timeoutSeconds=1"));
    assert_eq!(short.chunk().unwrap(), None);
    let mut long = client.get(MINE);
    server.end_watches();
    assert_eq!(long.chunk().unwrap(), None);
    let mut expired = client.get(MINE);
    server.expire_watches();
    assert_eq!(expired.event()["object"]["code"], 410);
    assert_eq!(expired.chunk().unwrap(), None);
}

#[test]
fn a_watch_can_break_in_the_middle_of_an_event() {
    let server = ApiServer::start().unwrap();
    let mut watch = Client::new(&server).get(MINE);
    server.cut_watches();
    let half = watch.chunk().unwrap().unwrap();
    assert!(serde_json::from_str::<Value>(&half).is_err(), "{half}");
    assert!(watch.chunk().is_err());
}

#[test]
fn bookmarks_are_sent_on_request_and_a_running_watch_survives_compaction() {
    let server = ApiServer::start().unwrap();
    let client = Client::new(&server);
    let (mut with_bookmarks, mut without) =
        (client.get(&format!("{MINE}&allowWatchBookmarks=true")), client.get(MINE));
    server.put_pod(pod("elsewhere", "there"));
    server.compact();
    server.send_bookmarks();
    let bookmark = with_bookmarks.event();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], server.version().to_string());
    server.put_pod(pod("a", "here"));
    assert_eq!(summary(&with_bookmarks.event()), event("ADDED", "a", "here"));
    assert_eq!(summary(&without.event()), event("ADDED", "a", "here"));
}
