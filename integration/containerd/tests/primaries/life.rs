//! The primary's agent starts again, Gybe's starts again, and the primary is removed and comes back.

use std::fs;
use std::time::{Duration, Instant};

use gybe_containerd_tests::containerd::CONF_DIR;
use gybe_installer::host::watch::DirectoryWatch;

use crate::boots::BEFORE_RELOAD;
use crate::node::{EntryShape, PATIENCE, Primary, PrimaryNode, REWRITE};

const RESTARTS: usize = 10;

pub(crate) fn restarts_and_removal(primary: &Primary, shape: EntryShape) {
    let node = PrimaryNode::start(primary, shape);
    let shape = shape.name();
    node.start_primary();
    node.start_gybe();
    node.wait_for_entry();
    assert_redirected(&node, "first");
    let (_kept, is_redirected) = node.run_pod("kept", &node.node.cri);
    assert!(is_redirected);
    for command in ["verify --all", "explain --pod default/kept", "doctor"] {
        let (code, text) = node.run_gybe(&format!("{command} --conf-dir {CONF_DIR}"));
        println!("{}, {shape}: gybe {command}: {code:?}\n{text}", primary.name);
        assert!(command == "doctor" || code == Some(0), "{command}: {text}");
    }

    let mut unchained: Vec<Duration> = (0..RESTARTS).filter_map(|_| restart(&node)).collect();
    unchained.sort();
    let part = |percent: usize| unchained.get(unchained.len() * percent / 100);
    let (median, last, writes) = (part(50), unchained.last(), unchained.len());
    println!(
        "{}, {shape}: {writes} of {RESTARTS} restarts write; unchained: median {median:?}, longest {last:?}",
        primary.name
    );
    assert_redirected(&node, "after-restarts");

    let written = fs::read(node.conf_file()).unwrap();
    node.stop_gybe();
    node.start_gybe();
    node.wait_for_entry();
    assert_redirected(&node, "after-gybe");
    assert_eq!(fs::read(node.conf_file()).unwrap(), written, "Gybe's restart changes nothing");

    node.stop_primary();
    fs::remove_file(node.conf_file()).unwrap();
    node.start_primary();
    node.wait_for_entry();
    assert_redirected(&node, "after-removal");
}

/// The entry is in the file; containerd may still have the file before.
fn assert_redirected(node: &PrimaryNode, name: &str) {
    let redirected = (0..BEFORE_RELOAD).any(|number| {
        let (id, is_redirected) = node.run_pod(&format!("{name}-{number}"), &node.node.cri);
        node.node.cri.delete(&id).unwrap();
        is_redirected
    });
    assert!(redirected, "{name}");
}

/// Starts the primary's agent again. Returns how long the runtime's conf file had no entry, or `None` when the agent did
/// not write it.
fn restart(node: &PrimaryNode) -> Option<Duration> {
    let directory = node.host().path(CONF_DIR);
    let before = node.version();
    node.stop_primary();
    let mut watch = DirectoryWatch::new([directory]);
    let start = Instant::now();
    node.start_primary();
    let (mut unchained, mut without_since) = (Duration::ZERO, None);
    loop {
        let has_entry = node.has_entry();
        match (has_entry, without_since) {
            (false, None) => without_since = Some(Instant::now()),
            (true, Some(since)) => {
                unchained += Instant::now().duration_since(since);
                without_since = None;
            }
            _ => {}
        }
        if has_entry && node.version() != before {
            return Some(unchained);
        }
        assert!(start.elapsed() < PATIENCE, "{}: no entry after a restart", node.primary.name);
        if has_entry && start.elapsed() > REWRITE {
            return None;
        }
        watch.wait(Duration::from_millis(100), None);
    }
}
