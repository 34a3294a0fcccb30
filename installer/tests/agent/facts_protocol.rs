//! The facts socket's protocol between two releases, with messages that programs of a release sent
//! (`integration/vectors/facts/version-N.json`): during an upgrade and a rollback, plugin and agent may differ by one
//! version.

use crate::node::Node;
use gybe_plugin::facts::wire::{self, FactsResponse, VERSION};
use gybe_plugin::pod::PodFacts;
use gybe_test_support::wait_until;
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// What a release recorded: an agent with one pod, requests, and the responses.
#[derive(Deserialize)]
struct Recording {
    pod: Value,
    exchanges: Vec<Exchange>,
}

#[derive(Deserialize)]
struct Exchange {
    case: String,
    request: String,
    response: String,
}

/// Returns the recordings of the current version and of the one before.
fn recordings() -> Vec<Recording> {
    let versions = (VERSION.saturating_sub(1).max(1)..=VERSION).collect::<Vec<_>>();
    let read = |version: &u32| {
        let path = format!("../integration/vectors/facts/version-{version}.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        serde_json::from_str(&text).unwrap()
    };
    versions.iter().map(read).collect()
}

fn exchange(node: &Node, request: &str) -> Value {
    let mut stream = UnixStream::connect(node.root.join("run/facts.sock")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    serde_json::from_str(&response).unwrap()
}

/// Asserts that a response has every member of the recorded one, with the same value.
fn assert_contains(response: &Value, recorded: &Value, case: &str) {
    match recorded {
        Value::Object(members) => {
            for (name, value) in members {
                assert_contains(&response[name], value, &format!("{case}: {name}"));
            }
        }
        value => assert_eq!(response, value, "{case}"),
    }
}

#[test]
fn f30_this_agent_answers_what_the_plugins_of_both_versions_sent_as_their_agent_did() {
    for (n, Recording { pod, exchanges }) in recordings().into_iter().enumerate() {
        let node = Node::new(&format!("protocol-{n}"));
        fs::write(node.root.join("pods/pod.json"), pod.to_string()).unwrap();
        let _agent = node.start_agent();
        for Exchange { case, request, response } in exchanges {
            let mut recorded: Value = serde_json::from_str(&response).unwrap();
            // Whether the agent is ready depends on the node, and its reasons with it.
            if let Some(status) = recorded["status"].as_object_mut() {
                status.retain(|_, value| value.is_null());
            }
            wait_until("a response", || exchange(&node, &request)["version"] == recorded["version"]);
            assert_contains(&exchange(&node, &request), &recorded, &case);
        }
    }
}

#[test]
fn f30_this_plugin_reads_what_the_agents_of_both_versions_sent_and_sends_what_they_read() {
    for Recording { pod, exchanges } in recordings() {
        let mut known = PodFacts::from_manifest(&pod).unwrap();
        // An agent keeps only the labels that a decision needs.
        known.labels.clear();
        let queries = exchanges.iter().filter(|exchange| exchange.case != "status");
        for Exchange { case, request, response } in queries {
            let decoded = wire::decode_response(response.as_bytes()).unwrap();
            match decoded {
                FactsResponse::Pod(facts) => assert_eq!(*facts, known, "{case}"),
                FactsResponse::Unknown => assert_eq!(case, "an unknown pod"),
                FactsResponse::Error(_) | FactsResponse::BrokenManifest(_) => {
                    assert!(case.contains("invalid") || case.contains("version"), "{case}");
                }
            }
            if let Ok(query) = wire::decode_request(request.as_bytes()) {
                let sent: Value = serde_json::from_str(&wire::encode_request(&query)).unwrap();
                assert_contains(&sent, &serde_json::from_str(request).unwrap(), case);
            }
        }
    }
}
