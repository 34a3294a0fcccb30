//! The same questions that real API servers were asked: the answers are theirs.

use crate::client::{Answer, Client};
use gybe_api_server::{ApiServer, Validity};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const RECORDINGS: [&str; 2] = [
    include_str!("../../../vectors/runtime/kube-api/1.20.2.json"),
    include_str!("../../../vectors/runtime/kube-api/1.36.2.json"),
];

/// Who sends it decides about these.
const OF_THE_MOMENT: [&str; 3] = ["audit-id", "transfer-encoding", "content-length"];

/// Ours has one flow of requests, where the recorded ones named theirs by random ids.
const OF_THE_FLOW: [&str; 2] = ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"];

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

    /// Names and values, but for those of the moment; the flow's by name alone.
    fn headers(&self, name: &str) -> BTreeSet<(String, String)> {
        let lines = self.0[&format!("{name}.headers")].lines().skip(1);
        let pairs = lines.filter_map(|line| line.split_once(": "));
        comparable(pairs.map(|(name, value)| (name.to_lowercase(), value.to_owned())))
    }
}

fn comparable(headers: impl IntoIterator<Item = (String, String)>) -> BTreeSet<(String, String)> {
    let lasting = headers.into_iter().filter(|(name, _)| {
        !OF_THE_MOMENT.contains(&name.as_str())
            && !OF_THE_FLOW.contains(&name.as_str())
            && name != "connection"
    });
    lasting.map(|(name, value)| if name == "date" { (name, String::new()) } else { (name, value) }).collect()
}

/// Heads alike, and this body.
fn same_as(recording: &Recording, name: &str, answer: Answer) -> Value {
    assert_eq!(answer.code, recording.code(name), "{name}");
    assert_eq!(comparable(answer.headers.clone()), recording.headers(name), "{name}");
    answer.json()
}

/// A cluster that holds the recorded pod, and nothing else.
fn cluster(recording: &Recording) -> ApiServer {
    let server = ApiServer::start().unwrap();
    server.put_pod(recording.body("pod-200"));
    server
}

/// Versions are each server's own.
fn without_version(mut object: Value) -> Value {
    object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    object
}

#[test]
fn a_pod_and_a_list_of_pods_are_as_recorded() {
    for recording in Recording::all() {
        let server = cluster(&recording);
        let client = Client::of(&server);
        let pod = client.get("/api/v1/namespaces/mesh-demo/pods/web-0");
        let pod = same_as(&recording, "pod-200", pod);
        assert_eq!(without_version(pod), without_version(recording.body("pod-200")));
        let list = client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dspike-node&limit=500");
        let (list, recorded) = (same_as(&recording, "list-200", list), recording.body("list-200"));
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
        let revoked = server.tokens().issue(Validity::Now);
        server.tokens().revoke(&revoked);
        let pod = "/api/v1/namespaces/mesh-demo/pods/web-0";
        let (known, stranger) = (Client::of(&server), Client::anonymous(&server));
        let asked = [
            ("pod-401", Client::with(&server, revoked).get(pod)),
            ("pod-anon-403", stranger.get(pod)),
            ("pod-404", known.get("/api/v1/namespaces/mesh-demo/pods/nope")),
            ("secrets-403", known.get("/api/v1/namespaces/mesh-demo/secrets")),
        ];
        for (name, answer) in asked {
            // The recorded cluster called its service account otherwise.
            let body =
                recording.body(name).to_string().replace("mesh-system:mesh-cni", "gybe-system:gybe-node");
            assert_eq!(same_as(&recording, name, answer).to_string(), body, "{name}");
        }
    }
}

#[test]
fn what_is_recorded_for_curl_is_laid_out_for_curl() {
    let [_, newer] = Recording::all();
    let server = cluster(&newer);
    let path = "/api/v1/namespaces/mesh-demo/pods/nope";
    let lines = Client::of(&server).called_curl().get(path).text();
    assert_eq!(lines.lines().count(), newer.0["pod-404.json"].lines().count());
    assert_eq!(Client::of(&server).get(path).text().lines().count(), 1);
}

/// Every recorded stream is lived through once more, and its events come in the same order.
#[test]
fn watches_tell_what_was_recorded() {
    for recording in Recording::all() {
        for name in ["watch-from-rv1", "watch-stream"] {
            let server = ApiServer::start().unwrap();
            let events = recording.events(name);
            if events[0]["type"] == "MODIFIED" {
                server.put_pod(recording.body("pod-200"));
            }
            let query = format!("watch=1&allowWatchBookmarks=true&resourceVersion={}", server.version());
            let mut watch = Client::of(&server).get(&format!("/api/v1/pods?{query}"));
            let flow: Vec<_> = recording.headers(name).into_iter().collect();
            assert_eq!(comparable(watch.headers.clone()).into_iter().collect::<Vec<_>>(), flow);
            for event in events {
                let object = event["object"].clone();
                match event["type"].as_str().unwrap() {
                    "BOOKMARK" => server.bookmark(),
                    "DELETED" => assert!(server.delete_pod("mesh-demo", "web-0")),
                    _ => drop(server.put_pod(object.clone())),
                }
                let told = watch.event();
                assert_eq!(told["type"], event["type"]);
                let version = told["object"]["metadata"]["resourceVersion"].clone();
                assert_eq!(version, server.version().to_string());
                if event["type"] == "BOOKMARK" {
                    let (mut told, mut recorded) = (told["object"].clone(), object);
                    // The older server writes a time that is not there.
                    for bookmark in [&mut told, &mut recorded] {
                        bookmark["metadata"].as_object_mut().unwrap().remove("creationTimestamp");
                    }
                    assert_eq!(without_version(told), without_version(recorded));
                } else if event["type"] != "DELETED" {
                    assert_eq!(without_version(told["object"].clone()), without_version(object));
                }
            }
        }
    }
}

#[test]
fn a_watch_from_a_version_that_is_gone_is_told_so_as_recorded() {
    let [_, newer] = Recording::all();
    let server = cluster(&newer);
    server.compact();
    let mut watch = Client::of(&server).get("/api/v1/pods?watch=1&resourceVersion=1");
    let version = server.version();
    let recorded = newer.events("watch-410")[0].to_string();
    assert_eq!(watch.event().to_string(), recorded.replace("1 (386)", &format!("1 ({version})")));
    assert_eq!((watch.code, watch.piece().unwrap()), (200, None));
}
