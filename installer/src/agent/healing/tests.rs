//! The loop turned by hand, for what would take minutes to wait for.

mod leaving;

use super::*;
use crate::agent::PodsFrom;
use crate::agent::bulletin::Stage;
use crate::host::apply::NodeLock;
use crate::host::change::Change;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Directories of a node, gone with the value.
struct Ground(PathBuf);

impl Ground {
    fn new(test: &str) -> Self {
        let root = std::env::temp_dir().join(format!("gybe-healing-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for folder in ["net.d", "bin", "cache/results", "image", "config", "run", "pods"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("bin/calico"), "").unwrap();
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
        let settings = Following::start(environment).unwrap();
        let image = Image::look(&self.0.join("image")).unwrap();
        Keeping { settings, image, probe: ProbeCache::at(&self.0), report_wait: Duration::ZERO, rest }
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

/// A loop of its own, which rests as long; with what it posts, and the calls it hears of.
fn with_loop(ground: &Ground, rest: Duration, work: impl FnOnce(&mut Healing<'_>, &Bulletin, &Calls)) {
    let pods = PodsFrom::new(&ground.0.join("pods"));
    let (bulletin, calls, journal) = Default::default();
    let around = Around { pods: &pods, calls: &calls, bulletin: &bulletin, journal: &journal, label: None };
    work(&mut Healing::new(ground.keeping(rest), around), &bulletin, &calls);
}

/// Turns it as often as it is told, for who reads all that is posted.
fn posts(ground: &Ground, rest: Duration, work: impl FnOnce(&mut dyn FnMut() -> Posted)) {
    with_loop(ground, rest, |healing, bulletin, _| {
        work(&mut || {
            healing.turn(Instant::now());
            bulletin.read()
        });
    });
}

/// The same, for who reads how far it is.
fn turns(ground: &Ground, rest: Duration, work: impl FnOnce(&mut dyn FnMut() -> Stage)) {
    posts(ground, rest, |turn| work(&mut || turn().stage));
}

#[test]
fn while_another_gybe_changes_the_node_what_is_still_to_do_waits_and_is_reported() {
    let ground = Ground::new("busy");
    posts(&ground, REST, |turn| {
        assert!(turn().missing.is_empty());
        let other = NodeLock::take(&ground.0.join("bin")).unwrap();
        assert!(turn().missing.is_empty(), "there is nothing to change");
        ground.asks("leave");
        let posted = turn();
        let told = posted.missing;
        assert!(told.len() == 1 && told[0].starts_with("another gybe is changing"), "{told:?}");
        assert_eq!(posted.stage, Stage::Leaving);
        drop(other);
        let posted = turn();
        assert!(posted.missing.is_empty() && posted.stage == Stage::Left { plugin_stays: true });
    });
}

#[test]
fn a_configmap_that_can_be_read_again_is_followed_again_though_it_says_the_same() {
    let ground = Ground::new("unread");
    ground.asks("install");
    posts(&ground, REST, |turn| {
        assert_eq!(turn().settings, None);
        fs::write(ground.0.join("config/mode"), [0xff]).unwrap();
        assert!(turn().settings.is_some_and(|why| why.contains("config/mode")));
        ground.asks("install");
        assert_eq!(turn().settings, None);
    });
}

#[test]
fn the_kubeconfig_goes_only_after_the_conf_is_as_wanted() {
    let ground = Ground::new("kubeconfig");
    let conf = ground.0.join("net.d/10.conflist");
    let primary = fs::read(&conf).unwrap();
    fs::write(&conf, "{").unwrap();
    let part = "run/.kubeconfig.gybe.tmp";
    for file in ["run/kubeconfig", part] {
        fs::write(ground.0.join(file), "").unwrap();
    }
    posts(&ground, REST, |turn| {
        assert!(!turn().missing.is_empty() && ground.has("run/kubeconfig"));
        fs::write(&conf, primary).unwrap();
        assert!(turn().missing.is_empty() && !ground.has("run/kubeconfig") && !ground.has(part));
    });
}

#[test]
fn a_program_that_does_not_stay_is_placed_again_after_a_while_and_not_without_end() {
    let ground = Ground::new("in-vain");
    let pods = PodsFrom::new(&ground.0.join("pods"));
    let (bulletin, calls, journal) = Default::default();
    let around = Around { pods: &pods, calls: &calls, bulletin: &bulletin, journal: &journal, label: None };
    let mut healing = Healing::new(ground.keeping(REST), around);
    let (wanted, now) = (healing.wanted().unwrap(), Instant::now());
    let places = healing.following.good.ground.places.clone();
    let mut pass = pass(&places, &wanted, &mut PassHistory::default()).unwrap();
    assert!(pass.left.is_done());
    assert_eq!(healing.account(&pass, now), NextTurn::OnChange(RESYNC));
    pass.left.changes = pass.plan.changes.clone();
    pass.left.changes.retain(|change| matches!(change, Change::PlaceProgram { .. }));
    assert!(!pass.left.changes.is_empty());
    assert_eq!(healing.account(&pass, now), NextTurn::After(RETRY));
}

#[test]
fn f37_a_program_that_cannot_be_placed_is_tried_ever_more_seldom_and_the_chain_is_healed_meanwhile() {
    let ground = Ground::new("setback");
    let (image, conf) = (ground.0.join("image/gybe-cni"), ground.0.join("net.d/10.conflist"));
    let (whole, primary) = (fs::read(&image).unwrap(), fs::read(&conf).unwrap());
    fs::copy(&image, ground.0.join("bin/gybe-cni")).unwrap();
    posts(&ground, REST, |turn| {
        // The one that serves is another's to write, so it is to be replaced; and the image is damaged.
        fs::set_permissions(ground.0.join("bin/gybe-cni"), Permissions::from_mode(0o777)).unwrap();
        fs::write(&image, "cut off").unwrap();
        let mut failures = 0;
        for n in 0..20 {
            // More would be a fight.
            if n < 5 {
                fs::write(&conf, &primary).unwrap();
            }
            let posted = turn();
            assert!(ground.is_in() && !posted.missing.is_empty());
            failures = posted.counts.program_failures;
            // The fourth comes after seven seconds.
            assert!((1..=3).contains(&failures) && posted.counts.conf_failures == 0, "{posted:?}");
        }
        // Somebody has been there: it may be another matter now.
        fs::write(ground.0.join("bin/another"), "").unwrap();
        assert_eq!(turn().counts.program_failures, failures + 1);
        ground.asks("leave");
        let failures = turn().counts.program_failures;
        ground.asks("install");
        assert_eq!(turn().counts.program_failures, failures + 1, "something else is wanted");
        fs::write(&image, &whole).unwrap();
        ground.asks("leave");
        turn();
        ground.asks("install");
        assert!(turn().missing.is_empty());
    });
}

#[test]
fn whether_the_runtime_reads_a_drop_in_is_open_until_an_add_is_heard_that_only_it_can_have_led_to() {
    let ground = Ground::new("drop-in");
    fs::write(ground.0.join("config/shape"), "dropin").unwrap();
    for (rest, is_seen) in [(Duration::ZERO, true), (REST, false)] {
        with_loop(&ground, rest, |healing, bulletin, calls| {
            let mut missing = || {
                healing.turn(Instant::now());
                bulletin.read().missing
            };
            let open = "whether the runtime reads n/zz-gybe-cni.conf cannot be seen from here";
            assert!(missing()[0].starts_with(open));
            calls.heard(json!({ "verb": "DEL", "decision": "nothing" }).as_object().unwrap());
            assert!(missing()[0].starts_with(open));
            calls.heard(json!({ "verb": "ADD", "decision": "leave alone" }).as_object().unwrap());
            assert_eq!(missing().is_empty(), is_seen);
        });
    }
}

#[test]
fn istiod_in_a_namespace_that_is_not_left_alone_is_told_on_its_node() {
    let ground = Ground::new("istiod");
    let pods = PodsFrom::new(&ground.0.join("pods"));
    let meshed = || meshed_istiod(&pods, &ground.keeping(REST).settings.good);
    let place = |namespace: &str| {
        let labels = json!({ "app": "istiod" });
        let metadata =
            json!({ "namespace": namespace, "name": "istiod-5d8f-x", "uid": "u", "labels": labels });
        let pod: Value =
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "containers": [] } });
        fs::write(ground.0.join("pods/istiod.json"), pod.to_string()).unwrap();
    };
    place("istio-system");
    assert_eq!(meshed(), None);
    fs::write(ground.0.join("config/exclude_namespaces"), "kube-system").unwrap();
    assert!(meshed().is_some_and(|told| told.contains("istio-system")));
    place("shop");
    assert_eq!(meshed(), None, "a tenant's pod");
}
