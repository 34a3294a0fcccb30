//! Watches: what a selector makes of a change, how they end, and how they break.

use crate::client::Client;
use crate::lists::pod;
use gybe_api_server::ApiServer;
use serde_json::Value;

const MINE: &str = "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dhere";

fn told(event: &Value) -> (String, String, String) {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("/type"), text("/object/metadata/name"), text("/object/spec/nodeName"))
}

fn is(word: &str, name: &str, node: &str) -> (String, String, String) {
    (word.into(), name.into(), node.into())
}

#[test]
fn a_pod_that_is_bound_to_the_node_is_new_there_and_one_that_leaves_is_gone() {
    let server = ApiServer::start().unwrap();
    server.put_pod(pod("old", "here"));
    let mut watch = Client::of(&server).get(&format!("{MINE}&resourceVersion={}", server.version()));
    server.put_pod(pod("a", ""));
    server.put_pod(pod("a", "here"));
    server.put_pod(pod("b", "there"));
    server.put_pod(pod("a", "here"));
    server.put_pod(pod("a", "there"));
    server.delete_pod("shop", "b");
    server.delete_pod("shop", "old");
    assert_eq!(told(&watch.event()), is("ADDED", "a", "here"));
    assert_eq!(told(&watch.event()), is("MODIFIED", "a", "here"));
    assert_eq!(told(&watch.event()), is("DELETED", "a", "here"));
    let last = watch.event();
    assert_eq!(told(&last), is("DELETED", "old", "here"));
    assert_eq!(last["object"]["metadata"]["resourceVersion"], server.version().to_string());
}

#[test]
fn a_watch_from_nowhere_begins_with_all_there_is() {
    let server = ApiServer::start().unwrap();
    server.put_pod(pod("a", "here"));
    server.put_pod(pod("b", "there"));
    server.crowd(1000);
    for from in ["", "&resourceVersion=0"] {
        let mut watch = Client::of(&server).get(&format!("{MINE}{from}"));
        assert_eq!(told(&watch.event()), is("ADDED", "a", "here"));
        server.put_pod(pod("a", "here"));
        assert_eq!(told(&watch.event()), is("MODIFIED", "a", "here"));
    }
}

#[test]
fn a_watch_that_would_begin_with_a_list_is_refused_as_older_servers_do() {
    let server = ApiServer::start().unwrap();
    let query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let refused = Client::of(&server).get(&format!("{MINE}{query}"));
    assert_eq!(refused.code, 422);
    let why = refused.json();
    assert_eq!(why["reason"], "Invalid");
    assert!(
        why["message"].as_str().unwrap().ends_with("resourceVersionMatch is forbidden for watch"),
        "{why}"
    );
}

#[test]
fn it_ends_in_order_when_its_time_is_up_or_the_server_wants_it() {
    let server = ApiServer::start().unwrap();
    let client = Client::of(&server);
    let mut short = client.get(&format!("{MINE}&timeoutSeconds=1"));
    assert_eq!(short.piece().unwrap(), None);
    let mut long = client.get(MINE);
    server.end_watches();
    assert_eq!(long.piece().unwrap(), None);
    let mut expired = client.get(MINE);
    server.expire_watches();
    assert_eq!(expired.event()["object"]["code"], 410);
    assert_eq!(expired.piece().unwrap(), None);
}

#[test]
fn it_breaks_in_the_middle_of_an_event() {
    let server = ApiServer::start().unwrap();
    let mut watch = Client::of(&server).get(MINE);
    server.cut_watches();
    let half = watch.piece().unwrap().unwrap();
    assert!(serde_json::from_str::<Value>(&half).is_err(), "{half}");
    assert!(watch.piece().is_err());
}

#[test]
fn bookmarks_come_to_who_asked_for_them_and_a_running_watch_survives_compaction() {
    let server = ApiServer::start().unwrap();
    let client = Client::of(&server);
    let (mut asked, mut other) = (client.get(&format!("{MINE}&allowWatchBookmarks=true")), client.get(MINE));
    server.put_pod(pod("elsewhere", "there"));
    server.compact();
    server.bookmark();
    let bookmark = asked.event();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], server.version().to_string());
    server.put_pod(pod("a", "here"));
    assert_eq!(told(&asked.event()), is("ADDED", "a", "here"));
    assert_eq!(told(&other.event()), is("ADDED", "a", "here"));
}
