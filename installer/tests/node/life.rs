//! Start and shutdown of the agent, and the handover of its sockets to the next agent.

use crate::agent::{Agent, gybe_node, meshed, scratch};
use nix::sys::signal::Signal;
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn mode(path: &std::path::Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_sockets_are_the_owners_alone_and_gone_after_a_clean_end() {
    let mut agent = Agent::start(scratch("modes"));
    let run = agent.directory.join("run");
    assert_eq!(
        (mode(&run), mode(&run.join("facts.sock")), mode(&run.join("log.sock"))),
        (0o755, 0o600, 0o600)
    );
    // A client that sends nothing delays the shutdown by no more than its deadline.
    let _silent = UnixStream::connect(agent.socket()).unwrap();
    let before = Instant::now();
    assert!(agent.terminate().success());
    assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
    assert_eq!(fs::read_dir(run).unwrap().count(), 0);
    assert_eq!(agent.next_line()["msg"], "gybe node: stopped");
}

#[test]
fn queries_received_before_sigterm_are_answered() {
    let mut agent = Agent::start(scratch("spoken"));
    agent.put("shop/cart-0.json", &meshed("cart-0", "u1").to_string());
    agent.signal(Signal::SIGSTOP);
    // The last client sends nothing, and must not delay the others.
    let mut calls: Vec<_> = (0..3).map(|_| UnixStream::connect(agent.socket()).unwrap()).collect();
    for call in calls.iter_mut().take(2) {
        call.write_all(b"{\"version\": 1, \"namespace\": \"shop\", \"name\": \"cart-0\"}\n").unwrap();
    }
    agent.signal(Signal::SIGTERM);
    agent.signal(Signal::SIGCONT);
    for call in calls.iter_mut().take(2) {
        let mut answer = String::new();
        call.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("istio-proxy"), "{answer}");
    }
    assert!(agent.terminate().success());
}

#[test]
fn a_socket_that_was_left_behind_is_replaced() {
    let directory = scratch("stale");
    fs::create_dir(directory.join("run")).unwrap();
    for socket in ["facts.sock", "log.sock"] {
        drop(UnixListener::bind(directory.join("run").join(socket)).unwrap());
    }
    let agent = Agent::start(directory);
    assert_eq!(agent.query("shop", "cart-0", "u1"), json!({ "version": 1 }));
}

#[test]
fn the_next_agent_takes_the_place_without_a_gap_and_keeps_it() {
    let mut first = Agent::start(scratch("next"));
    let second = Agent::start(first.directory.clone());
    assert!(first.terminate().success());
    assert_eq!(second.query("shop", "cart-0", "u1"), json!({ "version": 1 }));
}

#[test]
fn a08_a_socket_directory_that_others_can_write_to_is_refused() {
    for (test, mode, file) in [("open", 0o777, false), ("file", 0o755, true)] {
        let directory = scratch(test);
        fs::create_dir(directory.join("run")).unwrap();
        fs::set_permissions(directory.join("run"), fs::Permissions::from_mode(mode)).unwrap();
        if file {
            fs::write(directory.join("run/facts.sock"), "precious").unwrap();
        }
        let output = gybe_node(&directory).stderr(Stdio::piped()).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("could replace") || told.contains("not a socket"), "{told}");
        let remedies = ["chmod it 0755", "find out what it is, and remove it"];
        assert!(remedies.iter().any(|remedy| told.contains(remedy)), "{told}");
        assert!(!file || fs::read_to_string(directory.join("run/facts.sock")).unwrap() == "precious");
    }
}
