//! Out of the chain, and what stays for how long.

use super::*;
use crate::host::apply::NodeLock;

/// A sandbox that was made with our plugin: `{"plugins":[{"type":"gybe-cni"}]}`.
fn sandbox(at: &Path) {
    let result = r#"{"config":"eyJwbHVnaW5zIjpbeyJ0eXBlIjoiZ3liZS1jbmkifV19"}"#;
    fs::write(at, result).unwrap();
}

#[test]
fn f29_the_plugin_goes_minutes_after_the_conf_and_after_the_last_sandbox() {
    let ground = Ground::new("rest");
    turns(&ground, Duration::from_secs(3600), |turn| {
        assert_eq!(turn(), Stage::In);
        assert!(ground.is_in() && ground.has("bin/gybe-cni") && ground.has("bin/gybe"));
        ground.asks("leave");
        for _ in 0..3 {
            assert_eq!(turn(), Stage::Left { plugin_stays: true });
            assert!(!ground.is_in() && ground.has("bin/gybe-cni") && ground.has("bin/gybe"));
        }
    });
    let living = ground.0.join("cache/results/n-one-eth0");
    sandbox(&living);
    turns(&ground, Duration::ZERO, |turn| {
        for _ in 0..3 {
            assert_eq!(turn(), Stage::Left { plugin_stays: true }, "a sandbox lives");
        }
        fs::remove_file(&living).unwrap();
        assert_eq!(turn(), Stage::Left { plugin_stays: false });
        assert!(!ground.has("bin/gybe-cni") && !ground.has("bin/gybe"));
        ground.asks("install");
        assert_eq!(turn(), Stage::In);
        assert!(ground.is_in() && ground.has("bin/gybe-cni"));
    });
}

#[test]
fn f29_without_the_cache_nobody_knows_who_lives_and_the_plugin_stays() {
    let ground = Ground::new("no-cache");
    fs::remove_dir_all(ground.0.join("cache")).unwrap();
    turns(&ground, Duration::ZERO, |turn| {
        turn();
        ground.asks("leave");
        for _ in 0..3 {
            assert_eq!(turn(), Stage::Left { plugin_stays: true });
        }
    });
}

#[test]
fn f29_a_stand_in_of_any_version_goes_when_we_leave() {
    let ground = Ground::new("old-stand-in");
    fs::write(ground.0.join("bin/istio-cni"), "#!/bin/sh\n# gybe-cni of another day\n").unwrap();
    ground.asks("leave");
    turns(&ground, Duration::ZERO, |turn| {
        turn();
        assert_eq!(turn(), Stage::Left { plugin_stays: false });
        assert!(!ground.has("bin/istio-cni"));
    });
}

#[test]
fn f29_who_leaves_as_the_agent_ends_waits_for_another_gybe_to_let_it() {
    let ground = Ground::new("parting");
    with_loop(&ground, REST, |healing, bulletin, _| {
        healing.turn(Instant::now());
        assert!(ground.is_in());
        let other = NodeLock::take(&ground.0.join("bin")).unwrap();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| healing.leave());
            while bulletin.read().stage != Stage::Leaving {
                assert!(begun.elapsed() < Duration::from_secs(60), "it does not begin to leave");
                std::thread::yield_now();
            }
            drop(other);
        });
        assert!(!ground.is_in());
    });
}
