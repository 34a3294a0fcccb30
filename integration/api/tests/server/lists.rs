//! Lists: pages, versions, selectors, generated pods.

use crate::client::Client;
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
