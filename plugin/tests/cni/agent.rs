//! The node agent's socket with working, broken, silent and missing agents behind it, within the deadline.

use crate::{ANSWERED_MS, Pods, STATUS, call, entry, meshed};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

const MODE: &str = "sidecar.istio.io/interceptionMode";
/// The deadline of a query that no agent answers.
const SHORT_MS: u64 = 400;

/// Starts an agent that serves each connection by `serve`, until the test process ends.
fn start_agent(pods: &Pods, serve: impl Fn(UnixStream, String) + Send + 'static) {
    let listener = UnixListener::bind(pods.0.join("facts.sock")).unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let connection = connection.unwrap();
            let mut request = String::new();
            BufReader::new(&connection).read_line(&mut request).unwrap();
            serve(connection, request);
        }
    });
}

/// Starts an agent that sends this response to every request.
fn respond(pods: &Pods, response: impl Into<Vec<u8>>) {
    let response = response.into();
    start_agent(pods, move |mut connection, _| drop(connection.write_all(&response)));
}

/// Asserts that a meshed pod is refused with code 11, this number and these words, and that calls which need
/// no facts succeed.
fn assert_refused(pods: &Pods, number: &str, words: &[&str]) {
    assert_refused_within(ANSWERED_MS, pods, number, words);
}

fn assert_refused_within(deadline_ms: u64, pods: &Pods, number: &str, words: &[&str]) {
    let mut entry = entry(pods, Some(json!({ STATUS: "{}" })));
    entry["facts"]["deadline_ms"] = deadline_ms.into();
    let outcome = call("ADD", "shop/cart-0", &entry);
    let message = outcome.message();
    assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(11)), "{outcome:?}");
    assert!(message.starts_with(&format!("gybe-cni cmdAdd GYBE-ADD-{number}: ")), "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{words:?} in {message}");
    assert_other_pods_pass(pods);
}

fn assert_other_pods_pass(pods: &Pods) {
    for (pod, annotations) in [
        ("shop/cart-0", Some(json!({}))),
        ("shop/cart-0", Some(Value::Null)),
        ("shop/cart-0", Some(json!({ "sidecar.istio.io/inject": "true" }))),
        ("gybe-system/gybe-node-1", None),
        ("gybe-system/istio-cni-node-1", None),
    ] {
        let entry = entry(pods, annotations);
        for verb in ["ADD", "CHECK", "DEL"] {
            assert_eq!(call(verb, pod, &entry).exit, Some(0), "{verb} {pod} {entry}");
        }
    }
}

#[test]
fn a_meshed_pod_is_decided_by_the_agents_facts() {
    let pods = Pods::new("agent-knows");
    start_agent(&pods, |mut connection, request| {
        let mut request: Value = serde_json::from_str(&request).unwrap();
        // The rest of the configured deadline.
        let left = request.as_object_mut().unwrap().remove("deadline_ms").unwrap();
        assert!(left.as_u64().is_some_and(|left| (1..=ANSWERED_MS).contains(&left)), "{left}");
        assert_eq!(request, json!({ "version": 1, "namespace": "shop", "name": "cart-0", "uid": "u1" }));
        let mut pod = meshed(&[]);
        pod["metadata"]["uid"] = "u1".into();
        connection.write_all(json!({ "version": 1, "pod": pod, "news": 1 }).to_string().as_bytes()).unwrap();
    });
    for annotations in
        [None, Some(json!({ STATUS: "{}" })), Some(json!({ STATUS: "", "sidecar.istio.io/inject": "false" }))]
    {
        // The next step fails: the namespace does not exist.
        let outcome = call("ADD", "shop/cart-0", &entry(&pods, annotations));
        assert!(outcome.message().contains("GYBE-ADD-020"), "{outcome:?}");
    }
}

#[test]
fn a_missing_agent_is_an_error_with_a_hint() {
    let pods = Pods::new("agent-away");
    let words = ["the node agent at", "facts.sock", "No such file", "gybe node", "DaemonSet"];
    assert_refused_within(SHORT_MS, &pods, "032", &words);
    drop(UnixListener::bind(pods.0.join("facts.sock")).unwrap());
    assert_refused_within(SHORT_MS, &pods, "032", &["Connection refused"]);
}

#[test]
fn f39_facts_of_another_pod_are_not_used() {
    for (metadata, what) in [(json!({ "uid": "u0" }), "uid"), (json!({ "name": "cart-1" }), "name")] {
        let pods = Pods::new(&format!("agent-other-{what}"));
        let mut pod = meshed(&[]);
        pod["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        respond(&pods, json!({ "version": 1, "pod": pod }).to_string());
        assert_refused(&pods, "018", &["another pod", what]);
    }
}

/// The facts may be about an earlier pod of this name: they have no uid.
#[test]
fn f39_facts_without_a_uid_that_contradict_the_runtimes_annotations_leave_no_pod_alone() {
    let (mut no_proxy, mut not_injected, none) = (meshed(&[]), meshed(&[]), meshed(&[(MODE, "NONE")]));
    no_proxy["spec"]["containers"] = json!([{ "name": "app" }]);
    not_injected["metadata"]["annotations"] = json!({});
    for (name, mut pod, reason) in [
        ("no-proxy", no_proxy, "no container istio-proxy"),
        ("not-injected", not_injected, "no annotation sidecar.istio.io/status"),
        ("none", none, "interceptionMode is NONE"),
    ] {
        let pods = Pods::new(&format!("agent-stale-{name}"));
        respond(&pods, json!({ "version": 1, "pod": pod }).to_string());
        assert_refused(&pods, "018", &["have no uid", reason, "show that it is injected"]);
        // Without the runtime's annotations nothing contradicts the facts.
        assert_eq!(call("ADD", "shop/cart-0", &entry(&pods, None)).exit, Some(0), "{name}");
        // With the uid of the call the facts are about this pod.
        pod["metadata"]["uid"] = "u1".into();
        let pods = Pods::new(&format!("agent-same-{name}"));
        respond(&pods, json!({ "version": 1, "pod": pod }).to_string());
        let outcome = call("ADD", "shop/cart-0", &entry(&pods, Some(json!({ STATUS: "{}" }))));
        assert_eq!(outcome.exit, Some(0), "{name}: {outcome:?}");
    }
}

#[test]
fn a_pod_that_the_agent_does_not_know_is_refused_with_code_11() {
    let pods = Pods::new("agent-unknown");
    respond(&pods, r#"{"version": 1}"#);
    assert_refused(&pods, "017", &["the node agent at", "facts.sock", "does not know shop/cart-0"]);
}

#[test]
fn a10_an_agent_that_never_responds_is_an_error_within_the_deadline() {
    let pods = Pods::new("agent-silent");
    start_agent(&pods, |connection, _| std::mem::forget(connection));
    assert_refused_within(SHORT_MS, &pods, "032", &["did not answer in time"]);
    let drip = Pods::new("agent-drip");
    start_agent(&drip, |mut call, _| {
        thread::spawn(move || {
            while call.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
    });
    assert_refused_within(SHORT_MS, &drip, "032", &["did not answer in time"]);
}

#[test]
fn a10_an_agent_with_a_full_backlog_is_not_waited_for() {
    let pods = Pods::new("agent-full");
    let _listener = UnixListener::bind(pods.0.join("facts.sock")).unwrap();
    let address = UnixAddr::new(&pods.0.join("facts.sock")).unwrap();
    let one_more = || {
        let caller = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
        connect(caller.as_raw_fd(), &address).map(|()| caller)
    };
    let _callers: Vec<_> = std::iter::from_fn(|| one_more().ok()).collect();
    assert_refused_within(SHORT_MS, &pods, "032", &["did not answer in time"]);
}

#[test]
fn a10_a_malformed_response_is_an_error() {
    for (i, answer) in [
        b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
        b"\xff\xfe\0\0".to_vec(),
        b"[1]".to_vec(),
        b"{\"version\": \"1\"}".to_vec(),
        b"{\"version\": 1, \"pod\": {\"spec\": 5}}".to_vec(),
        [b"[".repeat(100_000), b"]".repeat(100_000)].concat(),
    ]
    .into_iter()
    .enumerate()
    {
        let pods = Pods::new(&format!("agent-garbage-{i}"));
        respond(&pods, answer);
        assert_refused(&pods, "032", &["answered"]);
    }
}

#[test]
fn another_version_of_the_protocol_is_an_error_of_its_own() {
    let pods = Pods::new("agent-version");
    respond(&pods, r#"{"version": 2, "pod": {"shape": "new"}}"#);
    assert_refused(&pods, "032", &["version 2", "one release"]);
}

#[test]
fn a10_a_response_of_100_megabytes_is_not_read_to_its_end() {
    let pods = Pods::new("agent-huge");
    start_agent(&pods, |mut call, _| {
        let piece = vec![b' '; 1 << 20];
        let written = (0..100).take_while(|_| call.write_all(&piece).is_ok()).count();
        assert!(written < 100, "{written} MB were read");
    });
    assert_refused(&pods, "032", &["more than 4194304 bytes"]);
}

#[test]
fn a10_a_fifo_in_place_of_the_socket_is_an_error() {
    let pods = Pods::new("agent-fifo");
    nix::unistd::mkfifo(&pods.0.join("facts.sock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    nix::unistd::mkfifo(&pods.0.join("log.sock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_refused_within(SHORT_MS, &pods, "032", &["Connection refused"]);
}

#[test]
fn sources_after_a_silent_agent_get_their_share_of_the_time() {
    // A short name, so that the second error is not truncated.
    let pods = Pods::new("behind");
    start_agent(&pods, |connection, _| std::mem::forget(connection));
    let mut entry = entry(&pods, Some(json!({ STATUS: "" })));
    entry["facts"]["directory"] = json!(pods.0.path());
    entry["facts"]["deadline_ms"] = SHORT_MS.into();
    let outcome = call("ADD", "shop/cart-0", &entry);
    let message = outcome.message();
    assert!(message.contains("ADD-032") && message.contains("cart-0.json does not exist"), "{message}");
    pods.add("shop", "cart-0", &meshed(&[]));
    entry["facts"]["deadline_ms"] = (10 * SHORT_MS).into();
    assert!(call("ADD", "shop/cart-0", &entry).message().contains("ADD-020"), "{outcome:?}");
}

#[test]
fn f35_log_lines_reach_the_agent_and_a_full_socket_does_not_block_a_call() {
    let pods = Pods::new("agent-log");
    let log_socket = std::os::unix::net::UnixDatagram::bind(pods.0.join("log.sock")).unwrap();
    let unmeshed = entry(&pods, Some(Value::Null));
    assert_eq!(call("ADD", "shop/cart-0", &unmeshed).exit, Some(0));
    let mut line = [0; 4096];
    let length = log_socket.recv(&mut line).unwrap();
    let line: Value = serde_json::from_slice(&line[..length]).unwrap();
    assert_eq!((line["msg"].as_str(), line["pod"].as_str()), (Some("gybe-cni cmdAdd"), Some("shop/cart-0")));
    // A datagram socket queues as many as net.unix.max_dgram_qlen, 10 or more.
    let full = std::os::unix::net::UnixDatagram::unbound().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.send_to(b"x", pods.0.join("log.sock")).is_ok() {}
    assert_eq!(call("ADD", "shop/cart-0", &unmeshed).exit, Some(0));
}

/// Returns the line that the agent receives of a call with this log level.
fn received(test: &str, level: &str, verb: &str, annotations: Value) -> Value {
    let pods = Pods::new(test);
    let log_socket = std::os::unix::net::UnixDatagram::bind(pods.0.join("log.sock")).unwrap();
    log_socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut entry = entry(&pods, Some(annotations));
    // No agent answers the queries.
    entry["facts"]["deadline_ms"] = SHORT_MS.into();
    entry["log_level"] = level.into();
    call(verb, "shop/cart-0", &entry);
    let mut line = [0; 4096];
    let length = log_socket.recv(&mut line).unwrap();
    serde_json::from_slice(&line[..length]).unwrap()
}

#[test]
fn the_agent_receives_verb_decision_and_time_of_every_call_whatever_the_level() {
    for (level, verb, annotations, decision, has_message) in [
        ("info", "ADD", Value::Null, "leave alone", true),
        ("warn", "ADD", Value::Null, "leave alone", false),
        ("none", "ADD", Value::Null, "leave alone", false),
        ("warn", "ADD", json!({ STATUS: "{}" }), "error", true),
        ("none", "ADD", json!({ STATUS: "{}" }), "error", false),
        ("info", "DEL", Value::Null, "nothing", false),
        ("debug", "DEL", Value::Null, "nothing", true),
        ("error", "CHECK", Value::Null, "nothing", false),
    ] {
        let line = received(&format!("logged-{level}-{verb}-{decision}"), level, verb, annotations);
        assert_eq!((&line["verb"], &line["decision"]), (&json!(verb), &json!(decision)), "{level}: {line}");
        assert!(line["took_us"].as_u64().is_some_and(|took| took < 20_000_000), "{line}");
        assert_eq!(line.get("msg").is_some(), has_message, "{level} {verb}: {line}");
    }
}
