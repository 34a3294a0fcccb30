//! The uninstall, and how long the programs stay.

use super::*;
use std::os::fd::AsFd;

/// Writes the cached result of a sandbox made with our plugin: `{"plugins":[{"type":"gybe-cni"}]}`.
fn sandbox(path: &Path) {
    let result = r#"{"config":"eyJwbHVnaW5zIjpbeyJ0eXBlIjoiZ3liZS1jbmkifV19"}"#;
    fs::write(path, result).unwrap();
}

#[test]
fn f29_the_plugin_is_removed_after_the_grace_period_and_the_last_sandbox() {
    let node = TestNode::new("grace-period");
    phases(&node, Duration::from_secs(3600), |turn| {
        assert_eq!(turn(), Phase::Installed);
        assert!(node.has_entry() && node.has("bin/gybe-cni") && node.has("bin/gybe"));
        node.set_mode("leave");
        for _ in 0..3 {
            assert!(matches!(turn(), Phase::Uninstalled { kept: Some(_) }));
            assert!(!node.has_entry() && node.has("bin/gybe-cni") && node.has("bin/gybe"));
        }
    });
    let cached = node.0.join("cache/results/n-one-eth0");
    sandbox(&cached);
    phases(&node, Duration::ZERO, |turn| {
        for _ in 0..3 {
            assert!(matches!(turn(), Phase::Uninstalled { kept: Some(_) }), "a sandbox still runs");
        }
        fs::remove_file(&cached).unwrap();
        assert_eq!(turn(), Phase::Uninstalled { kept: None });
        assert!(!node.has("bin/gybe-cni") && !node.has("bin/gybe"));
        node.set_mode("install");
        assert_eq!(turn(), Phase::Installed);
        assert!(node.has_entry() && node.has("bin/gybe-cni"));
    });
}

#[test]
fn f29_a_stand_in_of_any_version_is_removed_on_uninstall() {
    let node = TestNode::new("old-stand-in");
    fs::write(node.0.join("bin/istio-cni"), "#!/bin/sh\n# gybe-cni of another version\n").unwrap();
    node.set_mode("leave");
    phases(&node, Duration::ZERO, |turn| {
        turn();
        assert_eq!(turn(), Phase::Uninstalled { kept: None });
        assert!(!node.has("bin/istio-cni"));
    });
}

#[test]
fn f29_an_uninstall_as_the_agent_ends_waits_for_another_gybe() {
    let node = TestNode::new("end");
    with_loop(&node, GRACE_PERIOD, |reconciler, published, _| {
        reconciler.turn(Instant::now());
        assert!(node.has_entry());
        let other = NodeLock::take(&node.0.join("bin")).unwrap();
        let (stop, running) = std::io::pipe().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || reconciler.uninstall(stop.as_fd()));
            wait_for(published, |phase| phase == Phase::Uninstalling);
            drop(other);
            wait_for(published, |phase| matches!(phase, Phase::Uninstalled { kept: Some(_) }));
            // Another agent of the node leads now: it removes the programs, or installs the entry again.
            drop(running);
        });
        assert!(!node.has_entry() && node.has("bin/gybe-cni"));
    });
}

#[test]
fn f29_an_agent_that_ends_removes_the_entry_at_once_and_the_programs_after_the_grace_period() {
    let node = TestNode::new("end-programs");
    let length = Duration::from_secs(2);
    with_loop(&node, length, |reconciler, published, _| {
        reconciler.turn(Instant::now());
        let (stop, running) = std::io::pipe().unwrap();
        let started = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(move || reconciler.uninstall(stop.as_fd()));
            wait_for(published, |phase| matches!(phase, Phase::Uninstalled { kept: Some(_) }));
            assert!(!node.has_entry() && node.has("bin/gybe-cni") && node.has("bin/gybe"));
            wait_for(published, |phase| phase == Phase::Uninstalled { kept: None });
        });
        assert!(!node.has("bin/gybe-cni") && !node.has("bin/gybe") && started.elapsed() >= length);
        drop(running);
    });
}

fn wait_for(published: &PublishedStatus, is_reached: impl Fn(Phase) -> bool) {
    let started = Instant::now();
    while !is_reached(published.read().status.report.phase) {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", published.read().status.report);
        std::thread::yield_now();
    }
}
