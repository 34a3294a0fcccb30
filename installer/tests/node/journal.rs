//! The agent's log: each line is one write, and a reader that stalls does not block queries or shutdown.

use crate::agent::{Agent, gybe_node, meshed, scratch};
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

/// A line in several writes costs a system call for each, and mixes with other programs' lines in the same journal.
#[test]
fn a_line_is_logged_in_one_write() {
    let directory = scratch("whole");
    let (told, stderr) = UnixDatagram::pair().unwrap();
    told.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut agent = gybe_node(&directory).stderr(OwnedFd::from(stderr)).spawn().unwrap();
    let mut line = [0; 4096];
    let length = told.recv(&mut line);
    agent.kill().and_then(|()| agent.wait()).unwrap();
    let line: Value = serde_json::from_slice(&line[..length.unwrap()]).unwrap();
    assert_eq!(line["msg"], "gybe node: serving");
}

/// A pipe holds 64 KiB; the agent buffers some more lines.
#[test]
fn f35_an_unread_stderr_blocks_neither_a_query_nor_the_end() {
    let mut agent = Agent::start_unread(scratch("stuck"));
    let (plugin, log) = (UnixDatagram::unbound().unwrap(), agent.directory.join("run/log.sock"));
    plugin.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let line = json!({ "msg": "x".repeat(3000) }).to_string();
    for n in 0..2000 {
        let sent = plugin.send_to(line.as_bytes(), &log);
        assert!(sent.is_ok(), "{n} lines were heard, and then no more: {sent:?}");
    }
    agent.put("shop/cart-0.json", &meshed("cart-0", "u1").to_string());
    assert_eq!(agent.query("shop", "cart-0", "u1")["pod"]["metadata"]["name"], "cart-0");
    // This fault is logged.
    assert!(agent.send(b"GET / HTTP/1.1\r\n").contains("fault"));
    let before = Instant::now();
    assert!(agent.terminate().success());
    assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
}

#[test]
fn f35_lost_lines_are_counted_in_a_line_once_stderr_is_read_again() {
    let agent = Agent::start_unread(scratch("lost"));
    let (plugin, log) = (UnixDatagram::unbound().unwrap(), agent.directory.join("run/log.sock"));
    plugin.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    for n in 0..2000 {
        plugin.send_to(json!({ "msg": "x".repeat(3000), "n": n }).to_string().as_bytes(), &log).unwrap();
    }
    agent.read_log();
    let (mut told, mut lost) = (0, 0);
    while told + lost < 2000 {
        let line = agent.next_line();
        match line["lines"].as_u64() {
            Some(lines) => lost += lines,
            None => told += u64::from(line["n"].is_u64()),
        }
    }
    assert!(told > 1000 && lost > 0 && told + lost == 2000, "{told} told, {lost} lost");
}
