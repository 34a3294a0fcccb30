//! An agent without free file descriptors: it uses no processor time, changes nothing, and continues once some are free.

use crate::node::{Node, PRIMARY};
use gybe_test_support::{Agent, PATIENCE, wait_until};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

const FILE: &str = "10-calico.conflist";

#[expect(clippy::disallowed_methods, reason = "prlimit(2) has no safe wrapper here")]
fn limits(agent: &Agent, descriptors: &str) {
    let pid = agent.pid().to_string();
    let mut prlimit = Command::new("prlimit");
    let status = prlimit.args(["--pid", &pid, &format!("--nofile={descriptors}:")]).status().unwrap();
    assert!(status.success());
}

/// Returns the processor time used so far in hundredths of a second (proc_pid_stat(5), fields 14 and 15).
fn used(agent: &Agent) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/stat", agent.pid())).unwrap();
    let fields = text.rsplit(") ").next().unwrap().split(' ');
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn without_file_descriptors_the_agent_does_not_spin_and_continues_once_they_are_back() {
    let node = Node::new("exhausted");
    node.puts(FILE, PRIMARY);
    let agent = node.agent();
    wait_until("readiness", || agent.is_ready());
    let plugin = || fs::metadata(node.program("gybe-cni")).unwrap().ino();
    let before = plugin();
    // Descriptors 0 to 2 are in use, so a limit of 3 leaves none.
    limits(&agent, "3");
    let mut plugin_call = UnixStream::connect(node.root.join("run/facts.sock")).unwrap();
    plugin_call.write_all(b"{\"version\":1,\"namespace\":\"shop\",\"name\":\"cart-0\"}\n").unwrap();
    let mut probe = TcpStream::connect(agent.address("health")).unwrap();
    probe.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    node.puts(FILE, PRIMARY);
    agent.wait_for_message("no file descriptors are left");
    let (ticks, lasting) = (used(&agent), Duration::from_secs(3));
    std::thread::sleep(lasting);
    let ticks = used(&agent) - ticks;
    println!("without descriptors for {lasting:?}: {} ms of processor time", 10 * ticks);
    assert!(ticks < 100, "{ticks} hundredths of a second in {lasting:?}");
    assert!(node.entry(FILE).is_none());
    limits(&agent, "1024");
    let since = Instant::now();
    wait_until("an entry again", || node.entry(FILE).is_some());
    // The next regular pass would come after ten seconds.
    assert!(since.elapsed() < Duration::from_secs(6), "{:?}", since.elapsed());
    plugin_call.set_read_timeout(Some(PATIENCE)).unwrap();
    probe.set_read_timeout(Some(PATIENCE)).unwrap();
    for answer in [&mut plugin_call as &mut dyn Read, &mut probe] {
        let mut text = [0; 16];
        assert!(answer.read(&mut text).unwrap() > 0, "an answer to who called meanwhile");
    }
    wait_until("readiness", || agent.is_ready());
    assert_eq!(plugin(), before, "what could not be read was not written again");
    assert_eq!(agent.metric("gybe_undone_total{what=\"programs\"}"), 0.0);
}
