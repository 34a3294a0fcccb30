//! Start and shutdown of the agent, its sockets when their files are removed or replaced or the next agent takes
//! them over, and its log: a reader that stalls blocks neither queries nor the shutdown.

use crate::queries::{ManifestAgent, directory_of, gybe_node, injected_pod};
use gybe_test_support::assert_takes_less_than;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn mode(path: &std::path::Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn only_the_owner_can_use_the_sockets_and_they_are_removed_at_the_end() {
    let mut agent = ManifestAgent::start(directory_of("modes"));
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
    let mut agent = ManifestAgent::start(directory_of("received"));
    agent.put("shop/cart-0.json", &injected_pod("cart-0", "u1").to_string());
    agent.signal(Signal::SIGSTOP);
    // The last client sends nothing, and must not delay the others.
    let mut connections: Vec<_> = (0..3).map(|_| UnixStream::connect(agent.socket()).unwrap()).collect();
    for connection in connections.iter_mut().take(2) {
        connection.write_all(b"{\"version\": 1, \"namespace\": \"shop\", \"name\": \"cart-0\"}\n").unwrap();
    }
    agent.signal(Signal::SIGTERM);
    agent.signal(Signal::SIGCONT);
    for connection in connections.iter_mut().take(2) {
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("istio-proxy"), "{answer}");
    }
    assert!(agent.terminate().success());
}

#[test]
fn a_socket_that_was_left_behind_is_replaced() {
    let directory = directory_of("stale");
    fs::create_dir(directory.join("run")).unwrap();
    for socket in ["facts.sock", "log.sock"] {
        drop(UnixListener::bind(directory.join("run").join(socket)).unwrap());
    }
    let agent = ManifestAgent::start(directory);
    assert_eq!(agent.query("shop", "cart-0", "u1"), json!({ "version": 1 }));
}

#[test]
fn the_next_agent_takes_over_the_sockets_and_keeps_them_when_the_first_ends() {
    let mut first = ManifestAgent::start(directory_of("next"));
    let second = ManifestAgent::start(first.directory.clone());
    assert!(first.terminate().success());
    assert_eq!(second.query("shop", "cart-0", "u1"), json!({ "version": 1 }));
}

#[test]
fn a08_a_socket_directory_that_other_users_can_write_to_is_refused() {
    for (test, mode, file) in [("open", 0o777, false), ("file", 0o755, true)] {
        let directory = directory_of(test);
        fs::create_dir(directory.join("run")).unwrap();
        fs::set_permissions(directory.join("run"), fs::Permissions::from_mode(mode)).unwrap();
        if file {
            fs::write(directory.join("run/facts.sock"), "precious").unwrap();
        }
        let output = gybe_node(&directory).stderr(Stdio::piped()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("could replace") || error.contains("not a socket"), "{error}");
        let remedies = ["chmod it 0755", "find out what it is, and remove it"];
        assert!(remedies.iter().any(|remedy| error.contains(remedy)), "{error}");
        assert!(!file || fs::read_to_string(directory.join("run/facts.sock")).unwrap() == "precious");
    }
}

/// A line in several writes costs a system call for each, and mixes with other programs' lines in the same journal.
#[test]
fn a_line_is_logged_in_one_write() {
    let directory = directory_of("whole");
    let (reader, stderr) = UnixDatagram::pair().unwrap();
    reader.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut agent = gybe_node(&directory).stderr(OwnedFd::from(stderr)).spawn().unwrap();
    let mut line = [0; 4096];
    let length = reader.recv(&mut line);
    agent.kill().and_then(|()| agent.wait()).unwrap();
    let line: Value = serde_json::from_slice(&line[..length.unwrap()]).unwrap();
    assert_eq!(line["msg"], "gybe node: serving");
}

/// A pipe holds 64 KiB; the agent buffers some more lines.
#[test]
fn f35_an_unread_stderr_blocks_neither_a_query_nor_the_shutdown() {
    let mut agent = ManifestAgent::start_unread(directory_of("stuck"));
    let (plugin, log) = (UnixDatagram::unbound().unwrap(), agent.directory.join("run/log.sock"));
    plugin.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let line = json!({ "msg": "x".repeat(3000) }).to_string();
    for n in 0..2000 {
        let sent = plugin.send_to(line.as_bytes(), &log);
        assert!(sent.is_ok(), "the log socket accepted {n} lines and no more: {sent:?}");
    }
    agent.put("shop/cart-0.json", &injected_pod("cart-0", "u1").to_string());
    assert_eq!(agent.query("shop", "cart-0", "u1")["pod"]["metadata"]["name"], "cart-0");
    // This fault is logged.
    assert!(agent.send(b"GET / HTTP/1.1\r\n").contains("fault"));
    let before = Instant::now();
    assert!(agent.terminate().success());
    assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
}

#[test]
fn f35_lost_lines_are_counted_in_a_line_once_stderr_is_read_again() {
    let agent = ManifestAgent::start_unread(directory_of("lost"));
    let (plugin, log) = (UnixDatagram::unbound().unwrap(), agent.directory.join("run/log.sock"));
    plugin.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    for n in 0..2000 {
        plugin.send_to(json!({ "msg": "x".repeat(3000), "n": n }).to_string().as_bytes(), &log).unwrap();
    }
    agent.read_log();
    let (mut logged, mut lost) = (0, 0);
    while logged + lost < 2000 {
        let line = agent.next_line();
        match line["lines"].as_u64() {
            Some(lines) => lost += lines,
            None => logged += u64::from(line["n"].is_u64()),
        }
    }
    assert!(logged > 1000 && lost > 0 && logged + lost == 2000, "{logged} logged, {lost} lost");
}

const REQUEST: &[u8] =
    b"{\"version\": 1, \"namespace\": \"shop\", \"name\": \"cart-0\", \"deadline_ms\": 5000}\n";

/// Returns the socket path that the next log line reports as bound again.
fn next_rebound_socket(agent: &ManifestAgent) -> PathBuf {
    let line = agent.next_line();
    assert_eq!(line["msg"], "the socket was removed; it is created again", "{line}");
    line["socket"].as_str().unwrap().into()
}

/// Returns the processor time of all threads of the agent in ticks of 10 ms (proc(5): utime and stime).
fn processor_ticks(agent: &ManifestAgent) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.pid())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn f14_removed_sockets_are_created_again() {
    let mut agent = ManifestAgent::start(directory_of("taken-away"));
    let run = agent.directory.join("run");
    for whole in [false, true] {
        match whole {
            true => fs::remove_dir_all(&run).unwrap(),
            false => ["facts.sock", "log.sock"].iter().for_each(|it| fs::remove_file(run.join(it)).unwrap()),
        }
        // A thread for each socket binds it again, in any order.
        let again: BTreeSet<_> = [next_rebound_socket(&agent), next_rebound_socket(&agent)].into();
        assert_eq!(again, ["facts.sock", "log.sock"].map(|name| run.join(name)).into());
        assert_eq!(agent.query("shop", "cart-0", "u1"), json!({ "version": 1 }));
        UnixDatagram::unbound().unwrap().send_to(b"{\"msg\":\"received\"}", run.join("log.sock")).unwrap();
        assert_eq!(agent.next_line()["msg"], "received");
    }
    assert!(agent.terminate().success());
    assert_eq!(fs::read_dir(run).unwrap().count(), 0);
}

/// The second agent was killed, and its socket files have no listener.
#[test]
fn f14_an_agent_binds_its_sockets_again_after_a_second_agent_was_killed() {
    let first = ManifestAgent::start(directory_of("back"));
    drop(gybe_test_support::Agent::start_serving(gybe_node(&first.directory)));
    assert_ne!(next_rebound_socket(&first), next_rebound_socket(&first));
    assert_eq!(first.query("shop", "cart-0", "u1"), json!({ "version": 1 }));
}

/// A socket that cannot be bound again is retried with a backoff, which delays no query.
#[test]
fn f14_a_log_socket_that_cannot_be_bound_delays_no_query_and_is_retried_with_a_backoff() {
    let agent = ManifestAgent::start(directory_of("occupied"));
    let (run, log) = (agent.directory.join("run"), agent.directory.join("run/log.sock"));
    fs::write(run.join("theirs"), "precious").unwrap();
    fs::rename(run.join("theirs"), &log).unwrap();
    let line = agent.next_line();
    assert_eq!(line["msg"], "the socket was removed, and cannot be created again", "{line}");
    let (before, until_now) = (Instant::now(), processor_ticks(&agent));
    // The agent closes an idle connection after one second, so the retries are observed for two seconds.
    for _ in 0..2 {
        let mut silent = UnixStream::connect(agent.socket()).unwrap();
        assert_takes_less_than(Duration::from_millis(500), || {
            assert_eq!(agent.query("shop", "cart-0", "u1"), json!({ "version": 1 }));
        });
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    }
    let (took, work) = (before.elapsed(), processor_ticks(&agent) - until_now);
    assert!(took > Duration::from_secs(2) && work < 20, "{work} ticks in {took:?}");
    fs::remove_file(&log).unwrap();
    assert_eq!(next_rebound_socket(&agent), log, "one line for the failure and one for the success");
}

#[test]
fn f14_a_removed_log_socket_delays_no_query() {
    let agent = ManifestAgent::start(directory_of("log-away"));
    let log = agent.directory.join("run/log.sock");
    let mut long = injected_pod("cart-0", "u1");
    long["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"] =
        "x".repeat(400 << 10).into();
    agent.put("shop/cart-0.json", &long.to_string());
    // One client does not read its answer; the other has not sent its query yet.
    let [mut slow_reader, mut late_sender] = [(); 2].map(|()| UnixStream::connect(agent.socket()).unwrap());
    slow_reader.write_all(REQUEST).unwrap();
    let before = Instant::now();
    assert_eq!(agent.query("shop", "cart-1", "u1"), json!({ "version": 1 }));
    fs::remove_file(&log).unwrap();
    assert_eq!(agent.query("shop", "cart-1", "u1"), json!({ "version": 1 }));
    late_sender.write_all(REQUEST).unwrap();
    let mut answer = String::new();
    late_sender.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("istio-proxy"), "{} bytes", answer.len());
    assert!(before.elapsed() < Duration::from_secs(3), "{:?}", before.elapsed());
    assert_eq!(next_rebound_socket(&agent), log);
    UnixDatagram::unbound().unwrap().send_to(b"{\"msg\":\"received\"}", &log).unwrap();
    assert_eq!(agent.next_line()["msg"], "received");
}
