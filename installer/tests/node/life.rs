//! How the agent starts, stops, and gives its place to the next.

use crate::agent::{Agent, gybe_node, scratch};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
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
    // A caller who says nothing delays the end by no more than its deadline.
    let _silent = UnixStream::connect(agent.socket()).unwrap();
    let before = Instant::now();
    assert!(agent.terminate().success());
    assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
    assert_eq!(fs::read_dir(run).unwrap().count(), 0);
    assert_eq!(agent.line()["msg"], "gybe node: stopped");
}

/// A line in pieces costs a call for each, and mixes with what others write to the same journal.
#[test]
fn a_line_is_told_in_one_write() {
    let directory = scratch("whole");
    let (told, stderr) = UnixDatagram::pair().unwrap();
    told.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut agent = gybe_node(&directory).stderr(OwnedFd::from(stderr)).spawn().unwrap();
    let mut line = [0; 4096];
    let length = told.recv(&mut line);
    agent.kill().and_then(|()| agent.wait()).unwrap();
    let line: Value = serde_json::from_slice(&line[..length.unwrap()]).unwrap();
    assert_eq!(line["msg"], "gybe node: serving");
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_socket_that_was_left_behind_is_replaced() {
    let directory = scratch("stale");
    fs::create_dir(directory.join("run")).unwrap();
    for socket in ["facts.sock", "log.sock"] {
        drop(UnixListener::bind(directory.join("run").join(socket)).unwrap());
    }
    let agent = Agent::start(directory);
    assert_eq!(agent.asked("shop", "cart-0", "u1"), json!({ "version": 1 }));
}

#[test]
fn the_next_agent_takes_the_place_without_a_gap_and_keeps_it() {
    let mut first = Agent::start(scratch("next"));
    let second = Agent::start(first.directory.clone());
    assert!(first.terminate().success());
    assert_eq!(second.asked("shop", "cart-0", "u1"), json!({ "version": 1 }));
}

#[test]
fn f14_sockets_that_somebody_takes_away_stand_again() {
    let mut agent = Agent::start(scratch("taken-away"));
    let run = agent.directory.join("run");
    for whole in [false, true] {
        match whole {
            true => fs::remove_dir_all(&run).unwrap(),
            false => ["facts.sock", "log.sock"].iter().for_each(|it| fs::remove_file(run.join(it)).unwrap()),
        }
        assert_eq!(agent.line()["msg"], "gybe node: its sockets had been taken away; serving again");
        assert_eq!(agent.asked("shop", "cart-0", "u1"), json!({ "version": 1 }));
        UnixDatagram::unbound().unwrap().send_to(b"{\"msg\":\"heard\"}", run.join("log.sock")).unwrap();
        assert_eq!(agent.line()["msg"], "heard");
    }
    assert!(agent.terminate().success());
    assert_eq!(fs::read_dir(run).unwrap().count(), 0);
}

/// The second was killed, and its sockets are nobody's.
#[test]
fn f14_the_place_of_an_agent_that_was_killed_is_taken_back() {
    let mut first = Agent::start(scratch("back"));
    let mut second = gybe_node(&first.directory).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(second.stderr.take().unwrap()).read_line(&mut told).unwrap();
    second.kill().and_then(|()| second.wait()).unwrap();
    assert!(told.contains("serving"), "{told}");
    assert_eq!(first.line()["msg"], "gybe node: its sockets had been taken away; serving again");
    assert_eq!(first.asked("shop", "cart-0", "u1"), json!({ "version": 1 }));
}

#[test]
fn a08_a_place_that_others_can_write_to_is_refused() {
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
        assert!(told.contains("could replace") || told.contains("no socket"), "{told}");
        let remedies = ["take write permission from all others", "see what it is, and remove it"];
        assert!(remedies.iter().any(|remedy| told.contains(remedy)), "{told}");
        assert!(!file || fs::read_to_string(directory.join("run/facts.sock")).unwrap() == "precious");
        fs::remove_dir_all(directory).unwrap();
    }
}
