//! Lists: pages, versions, selectors, a crowd.

use crate::client::Client;
use gybe_api_server::ApiServer;
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
fn pages_together_are_the_list_of_one_moment() {
    let server = cluster(&[("a", "n"), ("b", "n"), ("c", "n"), ("d", "n"), ("e", "n")]);
    let (client, before) = (Client::of(&server), server.version());
    let mut page = client.get("/api/v1/pods?limit=2").json();
    assert_eq!(page["metadata"]["remainingItemCount"], 3);
    let mut told = names(&page);
    // What happens meanwhile belongs to a later version.
    server.delete_pod("shop", "d");
    server.put_pod(pod("aa", "n"));
    server.put_pod(pod("f", "n"));
    while let Some(token) = page["metadata"]["continue"].as_str() {
        page = client.get(&format!("/api/v1/pods?limit=2&continue={token}")).json();
        assert_eq!(page["metadata"]["resourceVersion"], before.to_string());
        told.extend(names(&page));
    }
    assert_eq!(told, ["a", "b", "c", "d", "e"]);
    assert_eq!(names(&client.get("/api/v1/pods").json()), ["a", "aa", "b", "c", "e", "f"]);
    let exactly = format!("/api/v1/pods?resourceVersion={before}&resourceVersionMatch=Exact");
    assert_eq!(names(&client.get(&exactly).json()), ["a", "b", "c", "d", "e"]);
}

#[test]
fn a_page_that_comes_too_late_is_gone_and_says_how_to_go_on() {
    let server = cluster(&[("a", "n"), ("b", "n"), ("c", "n")]);
    let client = Client::of(&server);
    let page = client.get("/api/v1/pods?limit=1").json();
    server.put_pod(pod("d", "n"));
    server.compact();
    let token = page["metadata"]["continue"].as_str().unwrap();
    let gone = client.get(&format!("/api/v1/pods?limit=1&continue={token}"));
    assert_eq!(gone.code, 410);
    let gone = gone.json();
    assert_eq!((&gone["kind"], &gone["reason"]), (&json!("Status"), &json!("Expired")));
    let token = gone["metadata"]["continue"].as_str().unwrap();
    let rest = client.get(&format!("/api/v1/pods?continue={token}")).json();
    assert_eq!(names(&rest), ["b", "c", "d"]);
}

#[test]
fn version_0_comes_whole_and_one_from_the_future_not_at_all() {
    let server = cluster(&[("a", "n"), ("b", "n")]);
    let client = Client::of(&server);
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
fn selectors_choose_by_fields_labels_and_namespace() {
    let server = cluster(&[("a", "here"), ("b", "there")]);
    let labelled = json!({ "metadata": { "name": "c", "labels": { "k8s-app": "gybe-node" } } });
    server.put_pod(labelled);
    let client = Client::of(&server);
    for (path, wanted) in [
        ("pods?fieldSelector=spec.nodeName%3Dhere", vec!["a"]),
        ("pods?fieldSelector=spec.nodeName!%3Dhere", vec!["c", "b"]),
        ("pods?fieldSelector=spec.nodeName%3D%3Dthere,metadata.namespace%3Dshop", vec!["b"]),
        ("pods?labelSelector=k8s-app%3Dgybe-node", vec!["c"]),
        ("namespaces/shop/pods", vec!["a", "b"]),
        ("namespaces/default/pods?fieldSelector=metadata.name%3Dc", vec!["c"]),
    ] {
        assert_eq!(names(&client.get(&format!("/api/v1/{path}")).json()), wanted, "{path}");
    }
}

#[test]
fn f38_a_crowd_of_100_000_is_met_only_by_who_asks_for_it() {
    let server = cluster(&[("a", "here")]);
    server.crowd(100_000);
    let client = Client::of(&server);
    let mine = client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dhere&limit=500").json();
    assert_eq!(names(&mine), ["a"]);
    let page = client.get("/api/v1/pods?limit=3").json();
    assert_eq!(names(&page), ["pod-00000000", "pod-00000001", "pod-00000002"]);
    let theirs = client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dcrowd-909").json();
    assert_eq!((names(&theirs).len(), names(&theirs)[9].as_str()), (10, "pod-00099999"));
    let token = page["metadata"]["continue"].as_str().unwrap();
    let next = client.get(&format!("/api/v1/namespaces/crowd/pods?limit=1&continue={token}")).json();
    assert_eq!(names(&next), ["pod-00000003"]);
    assert_eq!(client.get("/api/v1/namespaces/crowd/pods/pod-00099999").code, 200);
    assert_eq!(client.get("/api/v1/namespaces/crowd/pods/pod-00100000").code, 404);
}

#[test]
fn the_node_and_the_daemonset_can_be_read_alone() {
    let server = ApiServer::start().unwrap();
    let node =
        json!({ "kind": "Node", "metadata": { "name": "n", "labels": { "gybe.dev/backend": "nft" } } });
    let agents =
        json!({ "kind": "DaemonSet", "metadata": { "namespace": "gybe-system", "name": "gybe-node" } });
    server.put(node).unwrap();
    server.put(agents.clone()).unwrap();
    assert!(server.put(json!({ "kind": "Secret" })).is_err());
    let client = Client::of(&server);
    assert_eq!(client.get("/api/v1/nodes/n").json()["metadata"]["labels"]["gybe.dev/backend"], "nft");
    let path = "/apis/apps/v1/namespaces/gybe-system/daemonsets/gybe-node";
    assert_eq!(client.get(path).json()["apiVersion"], "apps/v1");
    assert!(server.delete(&agents));
    let gone = client.get(path).json();
    assert_eq!(gone["message"], "daemonsets.apps \"gybe-node\" not found");
    assert_eq!(gone["details"], json!({ "name": "gybe-node", "group": "apps", "kind": "daemonsets" }));
    let all = client.get("/api/v1/nodes").json();
    assert_eq!(all["message"].as_str().unwrap().split_once(" at ").unwrap().1, "the cluster scope");
    assert_eq!(client.get("/api/v1").text(), "404 page not found\n");
}
