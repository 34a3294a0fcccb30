//! Watches on the conf directory: each rewrite by another program wakes a pass, which repairs it with one write and
//! never reverts it.

use crate::test_node::chained;
use crate::test_node::{StopFlag, TestNode};
use gybe_installer::host::apply::{Busy, NodeLock};
use gybe_installer::host::conflict::OtherOwner;
use gybe_installer::host::conflist::PluginChain;
use gybe_installer::host::pass::{PassHistory, pass};
use gybe_installer::host::watch::{DirectoryWatch, WakeReason, WatchMode, WatchedDirectories};
use gybe_test_support::PATIENCE;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

fn list(n: usize) -> String {
    format!("{{\"name\":\"net\",\"n\":{n},\"plugins\":[{{\"type\":\"cilium-cni\"}}]}}\n")
}

/// Writes a conf file as a careful primary does: completely, then by rename.
fn write(node: &TestNode, n: usize) {
    fs::write(node.conf(".theirs"), list(n)).unwrap();
    fs::rename(node.conf(".theirs"), node.conf("05-cilium.conflist")).unwrap();
}

/// Polls without a pause: the next rewrite must come at once.
fn yield_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::yield_now();
    }
}

#[test]
fn every_kind_of_change_wakes_a_pass() {
    let node = TestNode::new();
    let mut watch = DirectoryWatch::new([node.directories().conf]);
    assert_eq!(watch.mode(), WatchMode::Inotify);
    assert_eq!(watch.wait(Duration::ZERO, None), WakeReason::TimedOut);
    let ways: [&dyn Fn(); 6] = [
        &|| node.put("a", "1"),
        &|| fs::rename(node.conf("a"), node.conf("b")).unwrap(),
        &|| symlink("b", node.conf("c")).unwrap(),
        &|| fs::hard_link(node.conf("b"), node.conf("d")).unwrap(),
        &|| fs::remove_file(node.conf("b")).unwrap(),
        // As a container runtime does when it starts.
        &|| drop(UnixListener::bind(node.conf("e.sock")).unwrap()),
    ];
    for (n, way) in ways.iter().enumerate() {
        way();
        assert_eq!(watch.wait(PATIENCE, None), WakeReason::Changed, "way {n}");
        while watch.wait(Duration::ZERO, None) == WakeReason::Changed {}
    }
    let (read, write) = nix::unistd::pipe().unwrap();
    nix::unistd::write(&write, b"x").unwrap();
    assert_eq!(watch.wait(PATIENCE, Some(read.as_fd())), WakeReason::Readable);
}

#[test]
fn where_files_are_replaced_a_rename_wakes_a_pass_and_a_write_in_place_does_not() {
    let node = TestNode::new();
    node.put("report.new", "");
    let renamed = vec![node.directories().conf];
    let mut watch = DirectoryWatch::of(WatchedDirectories { written: Vec::new(), renamed });
    assert_eq!(watch.mode(), WatchMode::Inotify);
    node.put("report.new", "1");
    node.put("failed.new", "");
    fs::remove_file(node.conf("failed.new")).unwrap();
    assert_eq!(watch.wait(Duration::ZERO, None), WakeReason::TimedOut);
    fs::rename(node.conf("report.new"), node.conf("report")).unwrap();
    assert_eq!(watch.wait(PATIENCE, None), WakeReason::Changed);
}

#[test]
fn f13_a_directory_that_was_created_again_is_watched_again() {
    let node = TestNode::new();
    let conf = node.directories().conf;
    let mut watch = DirectoryWatch::new([conf.clone()]);
    for round in 0..5 {
        fs::remove_dir_all(&conf).unwrap();
        assert_eq!(watch.wait(PATIENCE, None), WakeReason::Changed);
        fs::create_dir(&conf).unwrap();
        yield_until("inotify again", || {
            watch.wait(Duration::from_millis(10), None);
            watch.mode() == WatchMode::Inotify
        });
        while watch.wait(Duration::ZERO, None) == WakeReason::Changed {}
        node.put("x", "x");
        assert_eq!(watch.wait(PATIENCE, None), WakeReason::Changed, "round {round}");
    }
}

#[test]
fn f13_a_changed_link_is_followed() {
    let node = TestNode::new();
    for folder in ["one", "two"] {
        fs::create_dir(node.root.join(folder)).unwrap();
    }
    let link = node.root.join("link");
    symlink("one", &link).unwrap();
    let mut watch = DirectoryWatch::new([link.clone()]);
    symlink("two", node.root.join("link.new")).unwrap();
    fs::rename(node.root.join("link.new"), &link).unwrap();
    assert_eq!(watch.wait(PATIENCE, None), WakeReason::Changed);
    while watch.wait(Duration::ZERO, None) == WakeReason::Changed {}
    fs::write(node.root.join("two/x"), "x").unwrap();
    assert_eq!(watch.wait(PATIENCE, None), WakeReason::Changed);
}

#[test]
fn only_one_process_changes_a_node_at_a_time() {
    let node = TestNode::new();
    write(&node, 0);
    let directories = node.directories();
    let lock = NodeLock::take(&directories.programs).unwrap();
    let refused = pass(&directories, &chained(&node.root), &mut PassHistory::default());
    assert_eq!(refused.unwrap_err(), Busy::Locked(directories.programs.clone()));
    drop(lock);
    node.settle(&chained(&node.root));
}

#[test]
fn f05_rewrites_are_repaired_at_once_and_the_sixth_is_a_conflict_with_a_named_owner() {
    let node = TestNode::new();
    write(&node, 0);
    let (directories, desired, mut history) =
        (node.directories(), chained(&node.root), PassHistory::default());
    let mut watch = DirectoryWatch::new([directories.conf.clone()]);
    assert!(pass(&directories, &desired, &mut history).unwrap().left.is_done());
    let mut slowest = Duration::ZERO;
    for n in 1..=5 {
        write(&node, n);
        let (start, mut writes) = (Instant::now(), 0);
        yield_until("a repair", || {
            watch.wait(PATIENCE, None);
            let repair = pass(&directories, &desired, &mut history).unwrap();
            writes += repair.applied.done;
            repair.left.is_done() && writes > 0
        });
        slowest = slowest.max(start.elapsed());
        assert_eq!(writes, 1, "one write for each rewrite");
    }
    println!("slowest repair: {slowest:?}");
    write(&node, 6);
    let sixth = pass(&directories, &desired, &mut history).unwrap();
    let conflict = sixth.conflicts.conf.unwrap();
    assert_eq!(
        (sixth.applied.done, sixth.left.is_done(), conflict.rewrites, conflict.wait),
        (1, true, 6, None)
    );
    assert!(
        matches!(conflict.rewrite.other_owner, Some(OtherOwner { name: "the Cilium agent", .. })),
        "{conflict:?}"
    );
}

#[test]
fn f05_a_storm_of_rewrites_loses_none_of_them() {
    const WRITES: usize = 4_000;
    let node = TestNode::new();
    write(&node, 0);
    let (directories, desired) = (node.directories(), chained(&node.root));
    let (stop, ours, overtaken) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let theirs = || fs::read(node.conf("05-cilium.conflist")).unwrap();
    let number = |bytes: &[u8]| {
        let value: serde_json::Value = serde_json::from_slice(bytes).expect("it always loads");
        assert_eq!(value["plugins"][0]["type"], "cilium-cni");
        usize::try_from(value["n"].as_u64().unwrap()).unwrap()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // A new history has no conflict, so repairs are not rate limited.
                let performed = pass(&directories, &desired, &mut PassHistory::default()).unwrap().applied;
                ours.fetch_add(performed.done, Ordering::Relaxed);
                for why in performed.failed {
                    assert!(why.is_overtaken(), "{why:?}");
                    overtaken.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let _stop = StopFlag(&stop);
        for n in 1..=WRITES {
            write(&node, n);
            // A late renameat2 exchange may hide the primary's write for a moment, but must not lose it.
            yield_until("the rewrite, which must not be lost", || number(&theirs()) == n);
            if n % 2 == 0 {
                yield_until("a repair", || theirs().windows(8).any(|text| text == b"gybe-cni"));
            } else {
                // Varies the moment of the next rewrite between the pass's read and its rename.
                let pause = Duration::from_micros(u64::try_from(n * 37 % 2_000).unwrap());
                let start = Instant::now();
                yield_until("a pause", || start.elapsed() > pause);
            }
        }
    });
    node.pass(&desired);
    let last = theirs();
    assert_eq!(PluginChain::read(&last).unwrap().without("gybe-cni").unwrap(), list(WRITES).into_bytes());
    let (ours, overtaken) = (ours.into_inner(), overtaken.into_inner());
    println!("{WRITES} rewrites, repaired {ours} times, overtaken {overtaken} times");
}
