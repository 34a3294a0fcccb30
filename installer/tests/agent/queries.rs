//! The agent's facts socket, with the pods' manifests in a directory: its answers to queries, the clients that it
//! refuses, and the protocol between two releases, with messages that programs of a release sent
//! (`integration/vectors/facts/version-N.json`).

use crate::node::Node;
use gybe_plugin::facts::wire::{self, FactsResponse, VERSION};
use gybe_plugin::pod::PodFacts;
use gybe_test_support::{SERVING, TestDir, facts, wait_until};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::ops::{Deref, DerefMut};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

#[test]
fn a_pod_is_returned_trimmed_and_read_again_when_its_file_changes() {
    let agent = ManifestAgent::start(directory_of("change"));
    assert_eq!(agent.query("shop", "cart-0", "u1"), json!({ "version": 1 }));
    agent.put("shop/cart-0.json", &injected_pod("cart-0", "u1").to_string());
    let pod = &agent.query("shop", "cart-0", "u1")["pod"];
    assert_eq!(pod["metadata"]["annotations"], json!({ "sidecar.istio.io/status": "{}" }));
    assert_eq!(pod["spec"]["containers"][1]["args"], json!(["proxy", "sidecar"]));
    agent.put("shop/cart-0.json", &injected_pod("cart-0", "another-life").to_string());
    assert_eq!(agent.query("shop", "cart-0", "u1")["pod"]["metadata"]["uid"], "another-life");
    fs::remove_file(agent.directory.join("pods/shop/cart-0.json")).unwrap();
    assert_eq!(agent.query("shop", "cart-0", "u1"), json!({ "version": 1 }));
}

#[test]
fn f39_of_several_pods_of_one_name_the_one_with_the_queried_uid_is_returned() {
    let agent = ManifestAgent::start(directory_of("uid"));
    let mut mirror = injected_pod("cart-0", "u3");
    mirror["metadata"]["annotations"]["kubernetes.io/config.hash"] = "hash".into();
    let list = json!({ "kind": "List", "items": [injected_pod("cart-0", "u1"), injected_pod("cart-0", "u2"), mirror] });
    agent.put("all.yaml", &list.to_string());
    for (uid, known) in [("u1", "u1"), ("u2", "u2"), ("hash", "u3"), ("u3", "u3")] {
        assert_eq!(agent.query("shop", "cart-0", uid)["pod"]["metadata"]["uid"], known, "{uid}");
    }
}

#[test]
fn an_unreadable_manifest_is_reported_for_its_pod_and_for_pods_that_no_manifest_has() {
    let agent = ManifestAgent::start(directory_of("broken"));
    agent.put("shop/cart-0.json", "{");
    agent.put("shop/notes.txt", "no manifest");
    agent.put("shop/service.yaml", "kind: Service");
    agent.put("shop/cart-1.json", &injected_pod("cart-1", "u1").to_string());
    nix::unistd::mkfifo(&agent.directory.join("pods/shop/fifo.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let fault = agent.query("shop", "cart-0", "u1")["fault"].to_string();
    assert!(fault.contains("cart-0.json"), "{fault}");
    assert_eq!(agent.query("shop", "cart-9", "u1")["fault"], agent.query("shop", "cart-0", "u1")["fault"]);
    assert_eq!(agent.query("shop", "cart-1", "u1")["pod"]["metadata"]["name"], "cart-1");
}

#[test]
fn malformed_requests_get_a_fault_or_a_closed_connection() {
    let agent = ManifestAgent::start(directory_of("garbage"));
    for (request, reason) in [
        (b"GET / HTTP/1.1\r\n".to_vec(), "malformed"),
        (b"{\"version\": 7, \"name\": \"x\"}\n".to_vec(), "version 7"),
        (
            b"{\"version\": 1, \"namespace\": \"..\", \"name\": \"../../etc\"}\n".to_vec(),
            "that is invalid in Kubernetes",
        ),
    ] {
        let reply = agent.send(&request);
        assert!(reply.contains("fault") && reply.contains(reason), "{reply}");
    }
    let mut endless = UnixStream::connect(agent.socket()).unwrap();
    while endless.write_all(&[b'x'; 4096]).is_ok() {}
    assert_eq!(agent.query("shop", "cart-0", "u1"), json!({ "version": 1 }));
}

/// A ConfigMap's volume and editors replace files instead of writing to them; the agent reads the new content.
#[test]
fn f39_a_replaced_file_is_never_used_for_an_answer() {
    let agent = ManifestAgent::start(directory_of("swapped"));
    let pods = agent.directory.join("pods");
    for life in ["u1", "u2"] {
        fs::create_dir(agent.directory.join(life)).unwrap();
        fs::write(agent.directory.join(life).join("0.json"), injected_pod("cart-0", life).to_string())
            .unwrap();
    }
    let uid = |queried: &str| agent.query("shop", "cart-0", queried)["pod"]["metadata"]["uid"].clone();
    let link_to = |to: &str| {
        let _ = fs::remove_file(pods.join("current.new"));
        std::os::unix::fs::symlink(agent.directory.join(to), pods.join("current.new")).unwrap();
        fs::rename(pods.join("current.new"), pods.join("current")).unwrap();
    };
    for _ in 0..3 {
        for life in ["u1", "u2"] {
            link_to(life);
            assert_eq!((uid(life), uid(life)), (life.into(), life.into()));
        }
    }
    fs::remove_file(pods.join("current")).unwrap();
    assert_eq!(uid("u2"), Value::Null);
    // A file of another name for a pod that another file had before.
    agent.put("shop/cart-0.json", &injected_pod("cart-0", "u3").to_string());
    assert_eq!(uid("u3"), "u3");
    fs::rename(pods.join("shop/cart-0.json"), pods.join("shop/moved.json")).unwrap();
    agent.put("shop/new.json", &injected_pod("cart-0", "u4").to_string());
    assert_eq!((uid("u3"), uid("u4")), ("u3".into(), "u4".into()));
}

#[test]
fn a10_idle_connections_delay_no_query() {
    let agent = ManifestAgent::start(directory_of("silent"));
    agent.put("shop/cart-0.json", &injected_pod("cart-0", "u1").to_string());
    // More clients than the agent keeps before their query arrives: it drops the oldest. Connecting takes more than a
    // second on a busy machine, so only the query is timed.
    let query = || {
        let mut silent: Vec<_> = (0..600).map(|_| UnixStream::connect(agent.socket()).unwrap()).collect();
        let before = Instant::now();
        assert_eq!(agent.query("shop", "cart-0", "u1")["pod"]["metadata"]["name"], "cart-0");
        let took = before.elapsed();
        silent[0].set_nonblocking(true).unwrap();
        assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "the oldest connection must be closed");
        took
    };
    let took: Vec<Duration> =
        (0..10).map(|_| query()).take_while(|took| *took >= Duration::from_millis(900)).collect();
    assert!(took.len() < 10, "not once within 900 ms: {took:?}");
    let mut last = UnixStream::connect(agent.socket()).unwrap();
    last.write_all(b"{\"version\": 1, \"namespace\": \"shop\", ").unwrap();
    last.write_all(b"\"name\": \"cart-0\"}\n").unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("istio-proxy"), "{answer}");
}

#[test]
fn a10_a_client_that_never_ends_its_query_is_disconnected() {
    let agent = ManifestAgent::start(directory_of("drip"));
    let before = Instant::now();
    let mut slow = UnixStream::connect(agent.socket()).unwrap();
    while slow.write_all(b" ").is_ok() {
        assert!(before.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(20));
    }
    assert!(before.elapsed() >= Duration::from_millis(900), "{:?}", before.elapsed());
}

#[test]
fn a10_a_slow_reader_of_a_long_response_delays_no_query() {
    let agent = ManifestAgent::start(directory_of("long"));
    let mut long = injected_pod("cart-0", "u1");
    let most = "x".repeat(400 << 10);
    long["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"] = most.clone().into();
    agent.put("shop/cart-0.json", &long.to_string());
    agent.put("shop/cart-1.json", &injected_pod("cart-1", "u1").to_string());
    let request = b"{\"version\": 1, \"namespace\": \"shop\", \"name\": \"cart-0\", \"deadline_ms\": 5000}\n";
    let slow_readers: Vec<_> = (0..70)
        .map(|_| {
            let mut call = UnixStream::connect(agent.socket()).unwrap();
            call.write_all(request).unwrap();
            call
        })
        .collect();
    assert_eq!(agent.query("shop", "cart-1", "u1")["pod"]["metadata"]["name"], "cart-1");
    // The queued clients are served after the first ones have disconnected.
    drop(slow_readers);
    let answer: Value = serde_json::from_str(&agent.send(request)).unwrap();
    assert_eq!(
        answer["pod"]["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"],
        most
    );
}

#[test]
fn f19_110_concurrent_queries_are_all_answered() {
    let agent = ManifestAgent::start(directory_of("many"));
    for i in 0..110 {
        let name = format!("cart-{i}");
        agent.put(&format!("shop/{name}.json"), &injected_pod(&name, &format!("u{i}")).to_string());
    }
    let before = Instant::now();
    thread::scope(|scope| {
        for i in 0..110 {
            let agent = &agent;
            scope.spawn(move || {
                let answer: Value = agent.query("shop", &format!("cart-{i}"), &format!("u{i}"));
                assert_eq!(answer["pod"]["metadata"]["uid"], format!("u{i}"));
            });
        }
    });
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}", before.elapsed());
}

#[test]
fn a09_only_the_plugins_log_lines_are_forwarded() {
    let agent = ManifestAgent::start(directory_of("log"));
    let plugin = UnixDatagram::unbound().unwrap();
    let log = agent.directory.join("run/log.sock");
    for line in ["\u{1b}[2J", "[1]", "{\"msg\": \"one\"\n}", "{\"level\":\"info\",\"msg\":\"two\\nlines\"}"] {
        plugin.send_to(line.as_bytes(), &log).unwrap();
    }
    for expected in [json!({ "msg": "one" }), json!({ "level": "info", "msg": "two\nlines" })] {
        let mut line = agent.next_line();
        assert!(line.as_object_mut().unwrap().remove("time").is_some_and(|time| time.is_string()), "{line}");
        assert_eq!(line, expected);
    }
}

pub(crate) struct ManifestAgent {
    // Dropped first: an agent that runs would write into a directory that is being removed.
    process: gybe_test_support::Agent,
    pub(crate) directory: Arc<TestDir>,
}

pub(crate) fn directory_of(test: &str) -> TestDir {
    TestDir::new(&format!("node-{test}")).with_subdirectories(&["pods/shop"])
}

impl ManifestAgent {
    /// Starts an agent and waits until it serves.
    pub(crate) fn start(directory: impl Into<Arc<TestDir>>) -> Self {
        let agent = Self::spawn(directory.into());
        agent.read_log();
        assert_eq!(agent.next_line()["msg"], SERVING);
        agent
    }

    /// Starts an agent in a new directory, does not read its log, and waits until it has both sockets.
    pub(crate) fn start_unread(directory: TestDir) -> Self {
        let agent = Self::spawn(directory.into());
        wait_until("the sockets are there", || {
            agent.directory.join("run/log.sock").exists() && agent.socket().exists()
        });
        agent
    }

    fn spawn(directory: Arc<TestDir>) -> Self {
        let process = gybe_test_support::Agent::start_unread(gybe_node(&directory));
        Self { directory, process }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("run/facts.sock")
    }

    /// Writes a manifest.
    pub(crate) fn put(&self, file: &str, text: &str) {
        self.directory.write(Path::new("pods").join(file), text);
    }

    /// Sends bytes to the facts socket and returns the reply.
    pub(crate) fn send(&self, bytes: &[u8]) -> String {
        facts::send(&self.socket(), bytes)
    }

    /// Queries a pod.
    pub(crate) fn query(&self, namespace: &str, name: &str, uid: &str) -> Value {
        facts::query(&self.socket(), &facts::request(namespace, name, uid))
    }
}

impl Deref for ManifestAgent {
    type Target = gybe_test_support::Agent;

    fn deref(&self) -> &Self::Target {
        &self.process
    }
}

impl DerefMut for ManifestAgent {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.process
    }
}

#[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
pub(crate) fn gybe_node(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
    command.arg("node").arg("--pods-from").arg(directory.join("pods"));
    command.arg("--socket").arg(directory.join("run/facts.sock"));
    command
}

/// Returns a pod as Istio's injector changes it.
pub(crate) fn injected_pod(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "shop", "name": name, "uid": uid,
            "annotations": { "sidecar.istio.io/status": "{}", "example.com/other": "x" },
        },
        "spec": { "containers": [{ "name": "app" }, { "name": "istio-proxy", "args": ["proxy", "sidecar"] }] },
    })
}

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
