//! The uninstall, and how long the programs stay.

use super::*;

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
            assert_eq!(turn(), Phase::Uninstalled { plugin_stays: true });
            assert!(!node.has_entry() && node.has("bin/gybe-cni") && node.has("bin/gybe"));
        }
    });
    let cached = node.0.join("cache/results/n-one-eth0");
    sandbox(&cached);
    phases(&node, Duration::ZERO, |turn| {
        for _ in 0..3 {
            assert_eq!(turn(), Phase::Uninstalled { plugin_stays: true }, "a sandbox still runs");
        }
        fs::remove_file(&cached).unwrap();
        assert_eq!(turn(), Phase::Uninstalled { plugin_stays: false });
        assert!(!node.has("bin/gybe-cni") && !node.has("bin/gybe"));
        node.set_mode("install");
        assert_eq!(turn(), Phase::Installed);
        assert!(node.has_entry() && node.has("bin/gybe-cni"));
    });
}

#[test]
fn f29_without_the_runtimes_cache_the_plugin_stays() {
    let node = TestNode::new("no-cache");
    fs::remove_dir_all(node.0.join("cache")).unwrap();
    phases(&node, Duration::ZERO, |turn| {
        turn();
        node.set_mode("leave");
        for _ in 0..3 {
            assert_eq!(turn(), Phase::Uninstalled { plugin_stays: true });
        }
    });
}

#[test]
fn f29_a_stand_in_of_any_version_is_removed_on_uninstall() {
    let node = TestNode::new("old-stand-in");
    fs::write(node.0.join("bin/istio-cni"), "#!/bin/sh\n# gybe-cni of another version\n").unwrap();
    node.set_mode("leave");
    phases(&node, Duration::ZERO, |turn| {
        turn();
        assert_eq!(turn(), Phase::Uninstalled { plugin_stays: false });
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
        let started = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| reconciler.uninstall());
            while published.read().report.phase != Phase::Uninstalling {
                assert!(started.elapsed() < Duration::from_secs(60), "the uninstall does not start");
                std::thread::yield_now();
            }
            drop(other);
        });
        assert!(!node.has_entry());
    });
}
