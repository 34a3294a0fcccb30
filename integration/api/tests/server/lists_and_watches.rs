//! Lists: pages, versions, selectors, generated pods.

use crate::Client;
use gybe_api_server::{ApiServer, Verb};
use serde_json::{Value, json};

pub(crate) fn pod(name: &str, node: &str) -> Value {
    json!({ "metadata": { "namespace": "shop", "name": name }, "spec": { "nodeName": node } })
}

fn names(list: &Value) -> Vec<String> {
    let names =
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

fn cluster(pods: &[(&str, &str)]) -> ApiServer {
    let server = ApiServer::start().unwrap();
    for (name, node) in pods {
        server.put_pod(pod(name, node));
    }
    server
}

#[test]
fn all_pages_are_of_one_version() {
    let server = cluster(&[("a", "n"), ("b", "n"), ("c", "n"), ("d", "n"), ("e", "n")]);
    let (client, before) = (Client::new(&server), server.version());
    let mut page = client.get("/api/v1/pods?limit=2").json();
    assert_eq!(page["metadata"]["remainingItemCount"], 3);
    let mut listed = names(&page);
    // Changes between pages belong to a later version.
    server.delete_pod("shop", "d");
    server.put_pod(pod("aa", "n"));
    server.put_pod(pod("f", "n"));
    while let Some(token) = page["metadata"]["continue"].as_str() {
        page = client.get(&format!("/api/v1/pods?limit=2&continue={token}")).json();
        assert_eq!(page["metadata"]["resourceVersion"], before.to_string());
        listed.extend(names(&page));
    }
    assert_eq!(listed, ["a", "b", "c", "d", "e"]);
    assert_eq!(names(&client.get("/api/v1/pods").json()), ["a", "aa", "b", "c", "e", "f"]);
    let exact = format!("/api/v1/pods?resourceVersion={before}&resourceVersionMatch=Exact");
    assert_eq!(names(&client.get(&exact).json()), ["a", "b", "c", "d", "e"]);
}

#[test]
fn a_page_of_a_compacted_version_is_refused_with_a_token_to_continue() {
    let server = cluster(&[("a", "n"), ("b", "n"), ("c", "n")]);
    let client = Client::new(&server);
    let page = client.get("/api/v1/pods?limit=1").json();
    server.put_pod(pod("d", "n"));
    server.compact();
    let token = page["metadata"]["continue"].as_str().unwrap();
    let refused = client.get(&format!("/api/v1/pods?limit=1&continue={token}"));
    assert_eq!(refused.code, 410);
    let refused = refused.json();
    assert_eq!((&refused["kind"], &refused["reason"]), (&json!("Status"), &json!("Expired")));
    let token = refused["metadata"]["continue"].as_str().unwrap();
    let rest = client.get(&format!("/api/v1/pods?continue={token}")).json();
    assert_eq!(names(&rest), ["b", "c", "d"]);
}

#[test]
fn version_0_ignores_the_limit_and_a_future_version_is_refused() {
    let server = cluster(&[("a", "n"), ("b", "n")]);
    let client = Client::new(&server);
    assert_eq!(names(&client.get("/api/v1/pods?limit=1&resourceVersion=0").json()), ["a", "b"]);
    let future = client.get("/api/v1/pods?resourceVersion=1000000");
    assert_eq!(future.code, 504);
    assert_eq!(future.json()["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    for bad in ["resourceVersion=new", "continue=%20", "fieldSelector=spec.colour%3Dred", "fieldSelector=red"]
    {
        assert_eq!(client.get(&format!("/api/v1/pods?{bad}")).code, 400, "{bad}");
    }
}

#[test]
fn selectors_select_by_field_label_and_namespace() {
    let server = cluster(&[("a", "here"), ("b", "there")]);
    let labelled = json!({ "metadata": { "name": "c", "labels": { "k8s-app": "gybe-node" } } });
    server.put_pod(labelled);
    let client = Client::new(&server);
    for (path, expected) in [
        ("pods?fieldSelector=spec.nodeName%3Dhere", vec!["a"]),
        ("pods?fieldSelector=spec.nodeName!%3Dhere", vec!["c", "b"]),
        ("pods?fieldSelector=spec.nodeName%3D%3Dthere,metadata.namespace%3Dshop", vec!["b"]),
        ("pods?labelSelector=k8s-app%3Dgybe-node", vec!["c"]),
        ("namespaces/shop/pods", vec!["a", "b"]),
        ("namespaces/default/pods?fieldSelector=metadata.name%3Dc", vec!["c"]),
    ] {
        assert_eq!(names(&client.get(&format!("/api/v1/{path}")).json()), expected, "{path}");
    }
}

#[test]
fn f38_a_node_selector_returns_none_of_100_000_pods_on_other_nodes() {
    let server = cluster(&[("a", "here")]);
    server.set_generated_pods(100_000);
    let client = Client::new(&server);
    let mine = client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dhere&limit=500").json();
    assert_eq!(names(&mine), ["a"]);
    let page = client.get("/api/v1/pods?limit=3").json();
    assert_eq!(names(&page), ["pod-00000000", "pod-00000001", "pod-00000002"]);
    let other_node = client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dgenerated-909").json();
    assert_eq!((names(&other_node).len(), names(&other_node)[9].as_str()), (10, "pod-00099999"));
    let token = page["metadata"]["continue"].as_str().unwrap();
    let next = client.get(&format!("/api/v1/namespaces/generated/pods?limit=1&continue={token}")).json();
    assert_eq!(names(&next), ["pod-00000003"]);
    assert_eq!(client.get("/api/v1/namespaces/generated/pods/pod-00099999").code, 200);
    assert_eq!(client.get("/api/v1/namespaces/generated/pods/pod-00100000").code, 404);
}

#[test]
fn a_node_and_a_daemonset_can_be_read_and_not_listed() {
    let server = ApiServer::start().unwrap();
    let node =
        json!({ "kind": "Node", "metadata": { "name": "n", "labels": { "gybe.dev/backend": "nft" } } });
    let agents =
        json!({ "kind": "DaemonSet", "metadata": { "namespace": "gybe-system", "name": "gybe-node" } });
    server.put(node).unwrap();
    server.put(agents.clone()).unwrap();
    assert!(server.put(json!({ "kind": "Secret" })).is_err());
    let client = Client::new(&server);
    assert_eq!(client.get("/api/v1/nodes/n").code, 403);
    server.permit(Verb::Get, "nodes");
    assert_eq!(client.get("/api/v1/nodes/n").json()["metadata"]["labels"]["gybe.dev/backend"], "nft");
    let path = "/apis/apps/v1/namespaces/gybe-system/daemonsets/gybe-node";
    assert_eq!(client.get(path).json()["apiVersion"], "apps/v1");
    assert!(server.delete(&agents));
    let deleted = client.get(path).json();
    assert_eq!(deleted["message"], "daemonsets.apps \"gybe-node\" not found");
    assert_eq!(deleted["details"], json!({ "name": "gybe-node", "group": "apps", "kind": "daemonsets" }));
    let all = client.get("/api/v1/nodes").json();
    assert_eq!(all["message"].as_str().unwrap().split_once(" at ").unwrap().1, "the cluster scope");
    assert_eq!(client.get("/api/v1").text(), "404 page not found\n");
}

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
