//! The node agent's socket, with everybody behind it who may sit there; never longer than the deadline.

use crate::call::{STATUS, call, entry};
use crate::pods::{Pods, meshed};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

const MODE: &str = "sidecar.istio.io/interceptionMode";

/// An agent that serves one call after another as `serve` says, until the test's process ends.
fn agent(pods: &Pods, serve: impl Fn(UnixStream, String) + Send + 'static) {
    let listener = UnixListener::bind(pods.0.join("facts.sock")).unwrap();
    thread::spawn(move || {
        for call in listener.incoming() {
            let call = call.unwrap();
            let mut question = String::new();
            BufReader::new(&call).read_line(&mut question).unwrap();
            serve(call, question);
        }
    });
}

fn says(pods: &Pods, answer: impl Into<Vec<u8>>) {
    let answer = answer.into();
    agent(pods, move |mut call, _| drop(call.write_all(&answer)));
}

/// A meshed pod is refused for now, under this number, with these words; DEL and all others pass.
fn refused(pods: &Pods, number: &str, words: &[&str]) {
    let outcome = call("ADD", "shop/cart-0", &entry(pods, Some(json!({ STATUS: "{}" }))));
    let told = outcome.message();
    assert_eq!((outcome.exit, outcome.code()), (Some(1), Some(11)), "{outcome:?}");
    assert!(told.starts_with(&format!("gybe-cni cmdAdd GYBE-ADD-{number}: ")), "{told}");
    assert!(words.iter().all(|word| told.contains(word)), "{words:?} in {told}");
    nobody_else_waits(pods);
}

fn nobody_else_waits(pods: &Pods) {
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
fn a_meshed_pod_is_decided_by_what_the_agent_knows() {
    let pods = Pods::new("agent-knows");
    agent(&pods, |mut call, question| {
        let mut asked: Value = serde_json::from_str(&question).unwrap();
        // What is left of the entry's 400 ms.
        let left = asked.as_object_mut().unwrap().remove("deadline_ms").unwrap();
        assert!(left.as_u64().is_some_and(|left| (1..=400).contains(&left)), "{left}");
        assert_eq!(asked, json!({ "version": 1, "namespace": "shop", "name": "cart-0", "uid": "u1" }));
        let mut pod = meshed(&[]);
        pod["metadata"]["uid"] = "u1".into();
        call.write_all(json!({ "version": 1, "pod": pod, "news": 1 }).to_string().as_bytes()).unwrap();
    });
    for annotations in
        [None, Some(json!({ STATUS: "{}" })), Some(json!({ STATUS: "", "sidecar.istio.io/inject": "false" }))]
    {
        // As far as the namespace, which is not there.
        let outcome = call("ADD", "shop/cart-0", &entry(&pods, annotations));
        assert!(outcome.message().contains("GYBE-ADD-020"), "{outcome:?}");
    }
}

#[test]
fn nobody_at_the_socket_is_told_with_what_to_do() {
    let pods = Pods::new("agent-away");
    refused(&pods, "032", &["the node agent at", "facts.sock", "No such file", "gybe node", "DaemonSet"]);
    drop(UnixListener::bind(pods.0.join("facts.sock")).unwrap());
    refused(&pods, "032", &["Connection refused"]);
}

#[test]
fn f39_someone_elses_pod_is_not_used() {
    for (metadata, what) in [(json!({ "uid": "u0" }), "uid"), (json!({ "name": "cart-1" }), "name")] {
        let pods = Pods::new(&format!("agent-other-{what}"));
        let mut pod = meshed(&[]);
        pod["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        says(&pods, json!({ "version": 1, "pod": pod }).to_string());
        refused(&pods, "018", &["another pod", what]);
    }
}

/// The agent of a pod that lived before under this name: its facts have no uid to tell by.
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
        says(&pods, json!({ "version": 1, "pod": pod }).to_string());
        refused(&pods, "018", &["has no uid", reason, "the injector was there"]);
        // Who hands over no annotations contradicts nothing.
        assert_eq!(call("ADD", "shop/cart-0", &entry(&pods, None)).exit, Some(0), "{name}");
        // With the uid of the call it is this very pod.
        pod["metadata"]["uid"] = "u1".into();
        let pods = Pods::new(&format!("agent-same-{name}"));
        says(&pods, json!({ "version": 1, "pod": pod }).to_string());
        let outcome = call("ADD", "shop/cart-0", &entry(&pods, Some(json!({ STATUS: "{}" }))));
        assert_eq!(outcome.exit, Some(0), "{name}: {outcome:?}");
    }
}

#[test]
fn a_pod_the_agent_does_not_know_is_refused_for_now() {
    let pods = Pods::new("agent-unknown");
    says(&pods, r#"{"version": 1}"#);
    refused(&pods, "017", &["the node agent at", "facts.sock", "knows no shop/cart-0"]);
}

#[test]
fn a10_an_agent_that_never_answers_is_not_waited_for() {
    let pods = Pods::new("agent-silent");
    agent(&pods, |call, _| std::mem::forget(call));
    refused(&pods, "032", &["did not answer in time"]);
    let drip = Pods::new("agent-drip");
    agent(&drip, |mut call, _| {
        thread::spawn(move || {
            while call.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
    });
    refused(&drip, "032", &["did not answer in time"]);
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
    refused(&pods, "032", &["did not answer in time"]);
}

#[test]
fn a10_garbage_is_refused() {
    for (i, answer) in [
        b"".to_vec(),
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
        says(&pods, answer);
        refused(&pods, "032", &["answered"]);
    }
}

#[test]
fn an_agent_of_another_release_is_told_apart_from_a_broken_one() {
    let pods = Pods::new("agent-version");
    says(&pods, r#"{"version": 2, "pod": {"shape": "new"}}"#);
    refused(&pods, "032", &["version 2", "one release"]);
}

#[test]
fn a10_a_hundred_megabytes_are_not_read() {
    let pods = Pods::new("agent-huge");
    agent(&pods, |mut call, _| {
        let piece = vec![b' '; 1 << 20];
        let written = (0..100).take_while(|_| call.write_all(&piece).is_ok()).count();
        assert!(written < 100, "{written} MB were read");
    });
    refused(&pods, "032", &["more than 4194304 bytes"]);
}

#[test]
fn a10_a_fifo_or_a_file_where_the_socket_should_be_is_no_agent() {
    let pods = Pods::new("agent-fifo");
    nix::unistd::mkfifo(&pods.0.join("facts.sock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    nix::unistd::mkfifo(&pods.0.join("log.sock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused(&pods, "032", &["Connection refused"]);
}

#[test]
fn sources_behind_a_silent_agent_get_their_share_of_the_time() {
    // A short name: what the second has to say must not be what is cut.
    let pods = Pods::new("behind");
    agent(&pods, |call, _| std::mem::forget(call));
    let mut entry = entry(&pods, Some(json!({ STATUS: "" })));
    entry["facts"]["directory"] = json!(pods.0);
    let outcome = call("ADD", "shop/cart-0", &entry);
    let told = outcome.message();
    assert!(told.contains("ADD-032") && told.contains("cart-0.json is not there"), "{told}");
    pods.holds("shop", "cart-0", &meshed(&[]));
    assert!(call("ADD", "shop/cart-0", &entry).message().contains("ADD-020"), "{outcome:?}");
}
