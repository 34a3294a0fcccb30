//! The loop turned by hand, for what would take minutes to wait for.

use super::*;
use crate::node::PodsFrom;
use crate::node::bulletin::Stage;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Directories of a node, gone with the value.
struct Ground(PathBuf);

impl Ground {
    fn new(test: &str) -> Self {
        let root = std::env::temp_dir().join(format!("gybe-healing-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for folder in ["net.d", "bin", "cache/results", "image", "config", "run", "pods"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for program in ["gybe", "gybe-cni"] {
            let file = root.join("image").join(program);
            let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
            fs::write(&file, format!("#!/bin/sh\necho '{answer}'\n")).unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o755)).unwrap();
        }
        let chain = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"calico"}]}"#;
        fs::write(root.join("net.d/10.conflist"), chain).unwrap();
        Self(root)
    }

    fn keeping(&self, rest: Duration) -> Keeping {
        let folder = |name: &str| self.0.join(name).display().to_string();
        let environment: BTreeMap<_, _> = [
            ("MOUNTED_CNI_NET_DIR", folder("net.d")),
            ("MOUNTED_CNI_BIN_DIR", folder("bin")),
            ("MOUNTED_CNI_CACHE_DIR", folder("cache")),
            ("GYBE_CONFIG_DIR", folder("config")),
            ("CNI_AGENT_RUN_DIR", folder("run")),
            ("GYBE_ISTIO_RUN_DIR", folder("istio")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let given = Given::gather(environment).unwrap();
        let settings = Settings::read(&given).unwrap();
        let image = Image::look(&self.0.join("image")).unwrap();
        Keeping { settings: (given, settings), image, probe: ProbeCache::at(&self.0), rest }
    }

    fn asks(&self, mode: &str) {
        fs::write(self.0.join("config/mode"), mode).unwrap();
    }

    fn has(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    fn is_in(&self) -> bool {
        fs::read_to_string(self.0.join("net.d/10.conflist")).unwrap().contains("gybe-cni")
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Turns a loop of its own, which rests as long, as often as it is told.
fn turns(ground: &Ground, rest: Duration, work: impl FnOnce(&mut dyn FnMut() -> Stage)) {
    let pods = PodsFrom::new(&ground.0.join("pods"));
    let (bulletin, journal) = (Bulletin::default(), Journal::default());
    let around = Around { pods: &pods, bulletin: &bulletin, journal: &journal, label: None };
    let mut healing = Healing::new(ground.keeping(rest), around);
    work(&mut || {
        healing.turn(Instant::now());
        bulletin.read().stage
    });
}

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
fn istiod_in_a_namespace_that_is_not_left_alone_is_told_on_its_node() {
    let ground = Ground::new("istiod");
    let (pods, keeping) = (PodsFrom::new(&ground.0.join("pods")), ground.keeping(REST));
    let meshed = |settings: &Settings| meshed_istiod(&pods, settings);
    let place = |namespace: &str| {
        let metadata = json!({ "namespace": namespace, "name": "istiod-5d8f-x", "uid": "u" });
        let pod: Value =
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "containers": [] } });
        fs::write(ground.0.join("pods/istiod.json"), pod.to_string()).unwrap();
    };
    assert_eq!(meshed(&keeping.settings.1), None);
    place("istio-system");
    assert_eq!(meshed(&keeping.settings.1), None);
    place("mesh-control");
    assert!(meshed(&keeping.settings.1).is_some_and(|told| told.contains("mesh-control")));
}
