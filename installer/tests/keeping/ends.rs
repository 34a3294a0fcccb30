//! Shutdown or crash of the agent leaves the node unchanged, and the next agent continues from there.

use crate::node::{Node, PRIMARIES, PRIMARY};
use gybe_test_support::{Agent, wait_until};
use nix::sys::signal::Signal;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const FILE: &str = "10-calico.conflist";

/// Returns the file attributes that a write or a rename would change.
fn stamps(node: &Node) -> Vec<(u64, i64, i64)> {
    let files = [node.conf(FILE), node.program("gybe-cni"), node.program("gybe")];
    let of = |path: &std::path::PathBuf| {
        let meta = fs::metadata(path).unwrap();
        (meta.ino(), meta.ctime(), meta.ctime_nsec())
    };
    files.iter().map(of).collect()
}

fn installed(node: &Node) -> Agent {
    let agent = node.agent();
    wait_until("readiness", || agent.is_ready());
    agent
}

#[test]
fn f14_whatever_ends_the_agent_leaves_everything_in_place_and_the_next_writes_nothing() {
    let node = Node::new("ends");
    node.puts(FILE, PRIMARY);
    drop(installed(&node));
    let before = stamps(&node);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGKILL, Signal::SIGABRT] {
        let mut agent = installed(&node);
        let status = agent.stop(signal);
        let clean = matches!(signal, Signal::SIGTERM | Signal::SIGINT);
        assert_eq!(status.success(), clean, "{signal}: {status}");
        assert_eq!(stamps(&node), before, "{signal}");
    }
}

#[test]
fn f14_killed_at_any_moment_of_its_first_pass_the_agent_leaves_a_conf_that_loads() {
    let node = Node::new("killed");
    for n in 0..40_u64 {
        node.puts(FILE, PRIMARY);
        let _ = fs::remove_file(node.program("gybe-cni"));
        let mut child = node.command().stderr(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(1500 * n));
        child.kill().unwrap();
        child.wait().unwrap();
        let text = node.text(FILE);
        let chain: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(chain["plugins"][0]["type"], "calico", "{n}");
        // If the conf file names the plugin, the plugin runs.
        assert!(node.entry(FILE).is_none() || node.build("gybe-cni") == "gybe-cni 1", "{n}: {text}");
    }
    let agent = installed(&node);
    assert!(node.entry(FILE).is_some());
    drop(agent);
    let names = || fs::read_dir(node.root.join("bin")).unwrap().map(|it| it.unwrap().file_name());
    let names: Vec<_> =
        names().filter(|name| !PRIMARIES.map(OsStr::new).contains(&name.as_os_str())).collect();
    assert_eq!(names.len(), 3, "both programs and the lock file, and nothing of the killed ones: {names:?}");
}

#[test]
fn f30_a_new_version_replaces_what_is_there_and_an_old_one_puts_it_back() {
    let node = Node::new("upgrade");
    // The entry and the program of a future version.
    let ahead = r#"{ "type": "gybe-cni", "zones": [1], "facts": { "quic": true } }"#;
    node.puts(
        FILE,
        &PRIMARY
            .replace("{\n      \"type\": \"calico\"\n    }", &format!("{{ \"type\": \"calico\" }}, {ahead}")),
    );
    node.brings("3");
    let agent = installed(&node);
    assert_eq!(node.build("gybe-cni"), "gybe-cni 3");
    let entry = node.entry(FILE).unwrap();
    assert!(entry.get("zones").is_none() && entry["facts"].get("quic").is_none(), "{entry}");
    assert_eq!(node.text(FILE).matches("gybe-cni").count(), 1);
    drop(agent);
    node.brings("2");
    let _back = installed(&node);
    assert_eq!((node.build("gybe-cni"), node.build("gybe")), ("gybe-cni 2".into(), "gybe 2".into()));
    assert_eq!(node.entry(FILE), Some(entry));
}

#[test]
fn f14_an_agent_that_cannot_create_a_socket_is_not_ready_and_without_both_not_healthy() {
    let node = Node::new("unserved");
    node.puts(FILE, PRIMARY);
    let agent = installed(&node);
    let [facts, log] = ["facts.sock", "log.sock"].map(|name| node.root.join("run").join(name));
    // In one step, because otherwise the agent binds the path first.
    let occupy = |socket: &Path| {
        let theirs = node.root.join("run/theirs");
        fs::write(&theirs, "precious").unwrap();
        fs::rename(theirs, socket).unwrap();
    };
    occupy(&facts);
    wait_until("an end of its readiness", || agent.get("/readyz").0 == 503);
    let (_, text) = agent.get("/readyz");
    let why = format!("cannot serve at {}: another file that is not a socket has its name", facts.display());
    assert!(text.contains(&why), "{text}");
    agent.wait_for_message("the socket was removed, and cannot be created again");
    assert_eq!(agent.get("/healthz").0, 200, "another start would meet it too");
    occupy(&log);
    wait_until("an end of its health", || agent.get("/healthz").0 == 503);
    fs::remove_file(&facts).unwrap();
    fs::remove_file(&log).unwrap();
    wait_until("readiness", || agent.is_ready() && agent.get("/healthz").0 == 200);
    assert!(std::os::unix::net::UnixStream::connect(facts).is_ok());
}
