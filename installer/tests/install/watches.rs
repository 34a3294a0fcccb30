//! Watches on the conf directory: each rewrite by another program wakes a pass, which repairs it with one write and never
//! reverts it.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gybe_installer::host::apply::{Busy, NodeLock};
use gybe_installer::host::conflict::other_owner::OtherOwner;
use gybe_installer::host::conflist::PluginChain;
use gybe_installer::host::pass::{PassHistory, pass};
use gybe_installer::host::watch::{DirectoryWatch, WakeReason, WatchMode};

use crate::ground::{Ground, Over};
use crate::wants::chained;

/// The longest wait for one event: more than ten times what any takes.
const GUARD: Duration = Duration::from_secs(30);

fn list(n: usize) -> String {
    format!("{{\"name\":\"net\",\"n\":{n},\"plugins\":[{{\"type\":\"cilium-cni\"}}]}}\n")
}

/// Writes a conf file as a careful primary does: completely, then by rename.
fn write(ground: &Ground, n: usize) {
    fs::write(ground.conf(".theirs"), list(n)).unwrap();
    fs::rename(ground.conf(".theirs"), ground.conf("05-cilium.conflist")).unwrap();
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < GUARD, "{what}");
        thread::yield_now();
    }
}

#[test]
fn every_way_to_change_a_file_wakes() {
    let ground = Ground::new();
    let mut watch = DirectoryWatch::new([ground.places().conf]);
    assert_eq!(watch.mode(), WatchMode::Inotify);
    assert_eq!(watch.wait(Duration::ZERO, None), WakeReason::TimedOut);
    let ways: [&dyn Fn(); 5] = [
        &|| ground.put("a", "1"),
        &|| fs::rename(ground.conf("a"), ground.conf("b")).unwrap(),
        &|| symlink("b", ground.conf("c")).unwrap(),
        &|| fs::hard_link(ground.conf("b"), ground.conf("d")).unwrap(),
        &|| fs::remove_file(ground.conf("b")).unwrap(),
    ];
    for (n, way) in ways.iter().enumerate() {
        way();
        assert_eq!(watch.wait(GUARD, None), WakeReason::Changed, "way {n}");
        while watch.wait(Duration::ZERO, None) == WakeReason::Changed {}
    }
    let (read, write) = nix::unistd::pipe().unwrap();
    nix::unistd::write(&write, b"x").unwrap();
    assert_eq!(watch.wait(GUARD, Some(read.as_fd())), WakeReason::Readable);
}

#[test]
fn f13_a_directory_that_was_created_again_is_watched_again() {
    let ground = Ground::new();
    let conf = ground.places().conf;
    let mut watch = DirectoryWatch::new([conf.clone()]);
    for round in 0..5 {
        fs::remove_dir_all(&conf).unwrap();
        assert_eq!(watch.wait(GUARD, None), WakeReason::Changed);
        fs::create_dir(&conf).unwrap();
        until("told again", || {
            watch.wait(Duration::from_millis(10), None);
            watch.mode() == WatchMode::Inotify
        });
        while watch.wait(Duration::ZERO, None) == WakeReason::Changed {}
        ground.put("x", "x");
        assert_eq!(watch.wait(GUARD, None), WakeReason::Changed, "round {round}");
    }
}

#[test]
fn f13_a_changed_link_is_followed() {
    let ground = Ground::new();
    for folder in ["one", "two"] {
        fs::create_dir(ground.root.join(folder)).unwrap();
    }
    let link = ground.root.join("link");
    symlink("one", &link).unwrap();
    let mut watch = DirectoryWatch::new([link.clone()]);
    symlink("two", ground.root.join("link.new")).unwrap();
    fs::rename(ground.root.join("link.new"), &link).unwrap();
    assert_eq!(watch.wait(GUARD, None), WakeReason::Changed);
    while watch.wait(Duration::ZERO, None) == WakeReason::Changed {}
    fs::write(ground.root.join("two/x"), "x").unwrap();
    assert_eq!(watch.wait(GUARD, None), WakeReason::Changed);
}

#[test]
fn only_one_process_changes_a_node_at_a_time() {
    let ground = Ground::new();
    write(&ground, 0);
    let places = ground.places();
    let turn = NodeLock::take(&places.programs).unwrap();
    let refused = pass(&places, &chained(&ground.root), &mut PassHistory::default());
    assert_eq!(refused.unwrap_err(), Busy::Locked(places.programs.clone()));
    drop(turn);
    ground.settle(&chained(&ground.root));
}

#[test]
fn f05_rewrites_are_repaired_at_once_and_the_sixth_is_a_conflict_with_a_named_owner() {
    let ground = Ground::new();
    write(&ground, 0);
    let (places, wanted, mut memory) = (ground.places(), chained(&ground.root), PassHistory::default());
    let mut watch = DirectoryWatch::new([places.conf.clone()]);
    assert!(pass(&places, &wanted, &mut memory).unwrap().left.is_done());
    let mut slowest = Duration::ZERO;
    for n in 1..=5 {
        write(&ground, n);
        let (start, mut writes) = (Instant::now(), 0);
        until("healed", || {
            watch.wait(GUARD, None);
            let healed = pass(&places, &wanted, &mut memory).unwrap();
            writes += healed.applied.done;
            healed.left.is_done() && writes > 0
        });
        slowest = slowest.max(start.elapsed());
        assert_eq!(writes, 1, "one write for each rewrite");
    }
    println!("slowest repair: {slowest:?}");
    write(&ground, 6);
    let sixth = pass(&places, &wanted, &mut memory).unwrap();
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
    let ground = Ground::new();
    write(&ground, 0);
    let (places, wanted) = (ground.places(), chained(&ground.root));
    let (over, ours, overtaken) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let theirs = || fs::read(ground.conf("05-cilium.conflist")).unwrap();
    let number = |bytes: &[u8]| {
        let value: serde_json::Value = serde_json::from_slice(bytes).expect("it always loads");
        assert_eq!(value["plugins"][0]["type"], "cilium-cni");
        usize::try_from(value["n"].as_u64().unwrap()).unwrap()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // A new history has no conflict, so repairs are not rate limited.
                let performed = pass(&places, &wanted, &mut PassHistory::default()).unwrap().applied;
                ours.fetch_add(performed.done, Ordering::Relaxed);
                for why in performed.failed {
                    assert!(why.is_overtaken(), "{why:?}");
                    overtaken.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let _over = Over(&over);
        for n in 1..=WRITES {
            write(&ground, n);
            // A late renameat2 exchange may hide the primary's write for a moment, but must not lose it.
            until("a foreign write was lost", || number(&theirs()) == n);
            if n % 2 == 0 {
                until("not repaired", || theirs().windows(8).any(|text| text == b"gybe-cni"));
            } else {
                // Varies the moment of the next rewrite between the pass's read and its rename.
                let pause = Duration::from_micros(u64::try_from(n * 37 % 2_000).unwrap());
                let start = Instant::now();
                until("time stands still", || start.elapsed() > pause);
            }
        }
    });
    ground.pass(&wanted);
    let last = theirs();
    assert_eq!(PluginChain::read(&last).unwrap().without("gybe-cni").unwrap(), list(WRITES).into_bytes());
    let (ours, overtaken) = (ours.into_inner(), overtaken.into_inner());
    println!("{WRITES} rewrites, repaired {ours} times, overtaken {overtaken} times");
}
