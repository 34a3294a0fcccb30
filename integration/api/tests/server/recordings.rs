//! The test server answers the recorded requests as the real API servers did.

use crate::{Client, HttpResponse};
use gybe_api_server::{ApiServer, Validity};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const RECORDINGS: [&str; 2] = [
    include_str!("../../../vectors/runtime/kube-api/1.20.2.json"),
    include_str!("../../../vectors/runtime/kube-api/1.36.2.json"),
];

/// Headers that differ in every response.
const VOLATILE_HEADERS: [&str; 3] = ["audit-id", "transfer-encoding", "content-length"];

/// Headers with random ids of the server's priority and fairness configuration.
const FLOW_CONTROL_HEADERS: [&str; 2] =
    ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"];

struct Recording(BTreeMap<String, String>);

impl Recording {
    fn all() -> [Self; 2] {
        RECORDINGS.map(|text| Self(serde_json::from_str(text).unwrap()))
    }

    fn body(&self, name: &str) -> Value {
        serde_json::from_str(&self.0[&format!("{name}.json")]).unwrap()
    }

    fn events(&self, name: &str) -> Vec<Value> {
        self.0[&format!("{name}.json")].lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn code(&self, name: &str) -> u16 {
        self.0[&format!("{name}.headers")].split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn headers(&self, name: &str) -> BTreeSet<(String, String)> {
        let lines = self.0[&format!("{name}.headers")].lines().skip(1);
        let pairs = lines.filter_map(|line| line.split_once(": "));
        comparable(pairs.map(|(name, value)| (name.to_lowercase(), value.to_owned())))
    }
}

/// Returns the headers that are the same in every response, and `date` without its value.
fn comparable(headers: impl IntoIterator<Item = (String, String)>) -> BTreeSet<(String, String)> {
    let stable = headers.into_iter().filter(|(name, _)| {
        !VOLATILE_HEADERS.contains(&name.as_str())
            && !FLOW_CONTROL_HEADERS.contains(&name.as_str())
            && name != "connection"
    });
    stable.map(|(name, value)| if name == "date" { (name, String::new()) } else { (name, value) }).collect()
}

/// Compares code and headers with a recording and returns the body.
fn compare_head(recording: &Recording, name: &str, response: HttpResponse) -> Value {
    assert_eq!(response.code, recording.code(name), "{name}");
    assert_eq!(comparable(response.headers.clone()), recording.headers(name), "{name}");
    response.json()
}

/// A server with only the recorded pod.
fn cluster(recording: &Recording) -> ApiServer {
    let server = ApiServer::start().unwrap();
    server.put_pod(recording.body("pod-200"));
    server
}

/// Removes the version, which differs between servers.
fn without_version(mut object: Value) -> Value {
    object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    object
}

#[test]
fn a_pod_and_a_list_of_pods_are_as_recorded() {
    for recording in Recording::all() {
        let server = cluster(&recording);
        let client = Client::new(&server);
        let pod = client.get("/api/v1/namespaces/mesh-demo/pods/web-0");
        let pod = compare_head(&recording, "pod-200", pod);
        assert_eq!(without_version(pod), without_version(recording.body("pod-200")));
        let list = client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dspike-node&limit=500");
        let (list, recorded) = (compare_head(&recording, "list-200", list), recording.body("list-200"));
        assert_eq!(list["metadata"], json!({ "resourceVersion": server.version().to_string() }));
        let items = |list: &Value| list["items"].as_array().unwrap().clone();
        let items = |list| items(list).into_iter().map(without_version).collect::<Vec<_>>();
        assert_eq!((list["kind"].clone(), list["apiVersion"].clone()), ("PodList".into(), "v1".into()));
        assert_eq!(items(&list), items(&recorded));
    }
}

#[test]
fn refusals_are_as_recorded() {
    for recording in Recording::all() {
        let server = cluster(&recording);
        let revoked = server.tokens().issue(Validity::Valid);
        server.tokens().revoke(&revoked);
        let pod = "/api/v1/namespaces/mesh-demo/pods/web-0";
        let (client, anonymous) = (Client::new(&server), Client::anonymous(&server));
        let responses = [
            ("pod-401", Client::with_token(&server, revoked).get(pod)),
            ("pod-anon-403", anonymous.get(pod)),
            ("pod-404", client.get("/api/v1/namespaces/mesh-demo/pods/nope")),
            ("secrets-403", client.get("/api/v1/namespaces/mesh-demo/secrets")),
        ];
        for (name, response) in responses {
            // The recorded service account has another name.
            let body =
                recording.body(name).to_string().replace("mesh-system:mesh-cni", "gybe-system:gybe-node");
            assert_eq!(compare_head(&recording, name, response).to_string(), body, "{name}");
        }
    }
}

#[test]
fn json_is_indented_only_for_curl() {
    let [_, newer] = Recording::all();
    let server = cluster(&newer);
    let path = "/api/v1/namespaces/mesh-demo/pods/nope";
    let lines = Client::new(&server).with_curl_user_agent().get(path).text();
    assert_eq!(lines.lines().count(), newer.0["pod-404.json"].lines().count());
    assert_eq!(Client::new(&server).get(path).text().lines().count(), 1);
}

/// Replays the changes of every recorded watch and compares the events.
#[test]
fn watches_send_the_recorded_events() {
    for recording in Recording::all() {
        for name in ["watch-from-rv1", "watch-stream"] {
            let server = ApiServer::start().unwrap();
            let events = recording.events(name);
            if events[0]["type"] == "MODIFIED" {
                server.put_pod(recording.body("pod-200"));
            }
            let query = format!("watch=1&allowWatchBookmarks=true&resourceVersion={}", server.version());
            let mut watch = Client::new(&server).get(&format!("/api/v1/pods?{query}"));
            let flow: Vec<_> = recording.headers(name).into_iter().collect();
            assert_eq!(comparable(watch.headers.clone()).into_iter().collect::<Vec<_>>(), flow);
            for event in events {
                let object = event["object"].clone();
                match event["type"].as_str().unwrap() {
                    "BOOKMARK" => server.send_bookmarks(),
                    "DELETED" => assert!(server.delete_pod("mesh-demo", "web-0")),
                    _ => drop(server.put_pod(object.clone())),
                }
                let received = watch.event();
                assert_eq!(received["type"], event["type"]);
                let version = received["object"]["metadata"]["resourceVersion"].clone();
                assert_eq!(version, server.version().to_string());
                if event["type"] == "BOOKMARK" {
                    let (mut sent, mut recorded) = (received["object"].clone(), object);
                    // The older server writes a null time.
                    for bookmark in [&mut sent, &mut recorded] {
                        bookmark["metadata"].as_object_mut().unwrap().remove("creationTimestamp");
                    }
                    assert_eq!(without_version(sent), without_version(recorded));
                } else if event["type"] != "DELETED" {
                    assert_eq!(without_version(received["object"].clone()), without_version(object));
                }
            }
        }
    }
}

#[test]
fn a_watch_from_a_compacted_version_ends_with_the_recorded_error() {
    let [_, newer] = Recording::all();
    let server = cluster(&newer);
    server.compact();
    let mut watch = Client::new(&server).get("/api/v1/pods?watch=1&resourceVersion=1");
    let version = server.version();
    let recorded = newer.events("watch-410")[0].to_string();
    assert_eq!(watch.event().to_string(), recorded.replace("1 (386)", &format!("1 ({version})")));
    assert_eq!((watch.code, watch.chunk().unwrap()), (200, None));
}
