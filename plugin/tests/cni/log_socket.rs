//! The agent's log socket, which gets a line for every call.

use crate::call::{STATUS, call, entry};
use crate::pods::Pods;
use serde_json::{Value, json};
use std::time::Duration;

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
