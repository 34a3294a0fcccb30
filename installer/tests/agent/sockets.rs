//! Sockets whose files are removed or replaced while the agent runs.

use crate::pods_directory::{ManifestAgent, directory_of, gybe_node, injected_pod};
use gybe_test_support::fastest;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

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
        let took = fastest(5, || assert_eq!(agent.query("shop", "cart-0", "u1"), json!({ "version": 1 })));
        assert!(took < Duration::from_millis(500), "{took:?}");
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
