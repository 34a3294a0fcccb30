//! Calls turns of the loop directly, for states that a running agent reaches only after minutes.

use super::environment::{has_istio_init, istiod_in_mesh};
use super::*;
use crate::agent::ManifestPods;
use crate::agent::status::Status;
use crate::host::apply::NodeLock;
use crate::host::change::Change;
use crate::host::conflict::{Conflict, ForeignRewrite};
use crate::host::pass::pass;
use crate::host::settings::GRACE_PERIOD;
use gybe_plugin::version::BUILD_MARK;
use gybe_test_support::TestDir;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The directories of a node.
struct TestNode(TestDir);

impl TestNode {
    fn new(test: &str) -> Self {
        let folders = ["net.d", "bin", "cache/results", "image", "config", "run", "probe", "pods"];
        let root = TestDir::new(&format!("reconcile-{test}")).with_subdirectories(&folders);
        root.write_programs("bin", ["calico", "loopback"]);
        for program in ["gybe", "gybe-cni"] {
            let file = root.join("image").join(program);
            let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
            fs::write(&file, format!("#!/bin/sh\n# {BUILD_MARK}\necho '{answer}'\n")).unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o755)).unwrap();
        }
        let chain = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"calico"}]}"#;
        fs::write(root.join("net.d/10.conflist"), chain).unwrap();
        Self(root)
    }

    fn config(&self, grace_period: Duration) -> ReconcileConfig {
        let folder = |name: &str| self.0.join(name).display().to_string();
        let environment: BTreeMap<_, _> = [
            ("MOUNTED_CNI_NET_DIR", folder("net.d")),
            ("MOUNTED_CNI_BIN_DIR", folder("bin")),
            ("MOUNTED_CNI_CACHE_DIR", folder("cache")),
            ("GYBE_CONFIG_DIR", folder("config")),
            ("CNI_AGENT_RUN_DIR", folder("run")),
            ("GYBE_ISTIO_RUN_DIR", folder("istio")),
            ("GYBE_PROBE_DIR", folder("probe")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let settings = LiveSettings::start(environment).unwrap();
        let image = Image::read(&self.0.join("image")).unwrap();
        let probe = ProbeCache::at(&self.0);
        ReconcileConfig {
            settings,
            image,
            probe,
            report_wait: Duration::ZERO,
            waits_for_report: ReportWait::Move,
            grace_period,
        }
    }

    fn set_mode(&self, mode: &str) {
        fs::write(self.0.join("config/mode"), mode).unwrap();
    }

    fn has(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    fn has_entry(&self) -> bool {
        fs::read_to_string(self.0.join("net.d/10.conflist")).unwrap().contains("gybe-cni")
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs `work` with a loop, its published status, and the plugin calls that it reads.
fn with_loop(
    node: &TestNode,
    grace_period: Duration,
    work: impl FnOnce(&mut Reconciler<'_>, &Shared<Published>, &PluginCalls),
) {
    let pods = ManifestPods::new(&node.0.join("pods"));
    let (published, calls, log) = Default::default();
    let context = ReconcileContext {
        pods: &pods,
        calls: &calls,
        published: &published,
        log: &log,
        node: None,
        events: None,
        ambient: None,
    };
    work(&mut Reconciler::new(node.config(grace_period), context), &published, &calls);
}

/// Runs `work` with a function that takes a turn and returns the published status.
fn statuses(node: &TestNode, grace_period: Duration, work: impl FnOnce(&mut dyn FnMut() -> Status)) {
    with_loop(node, grace_period, |reconciler, published, _| {
        work(&mut || {
            reconciler.turn(Instant::now());
            published.read().status
        });
    });
}

/// Runs `work` with a function that takes a turn and returns its report.
fn reports(node: &TestNode, grace_period: Duration, work: impl FnOnce(&mut dyn FnMut() -> TurnReport)) {
    statuses(node, grace_period, |turn| work(&mut || turn().report));
}

/// Runs `work` with a function that takes a turn and returns the phase.
fn phases(node: &TestNode, grace_period: Duration, work: impl FnOnce(&mut dyn FnMut() -> Phase)) {
    reports(node, grace_period, |turn| work(&mut || turn().phase));
}

#[test]
fn while_another_gybe_changes_the_node_the_changes_wait_and_are_reported() {
    let node = TestNode::new("busy");
    reports(&node, GRACE_PERIOD, |turn| {
        assert!(turn().missing.is_empty());
        let other = NodeLock::take(&node.0.join("bin")).unwrap();
        assert!(turn().missing.is_empty(), "there is nothing to change");
        node.set_mode("leave");
        let report = turn();
        let missing = report.missing;
        assert!(missing.len() == 1 && missing[0].starts_with("another gybe is changing"), "{missing:?}");
        assert_eq!(report.phase, Phase::Uninstalling);
        drop(other);
        let report = turn();
        assert!(report.missing.is_empty() && matches!(report.phase, Phase::Uninstalled { kept: Some(_) }));
    });
}

#[test]
fn an_unchanged_configmap_is_used_again_after_it_could_not_be_read() {
    let node = TestNode::new("unread");
    node.set_mode("install");
    with_loop(&node, GRACE_PERIOD, |reconciler, published, _| {
        let mut error = || {
            reconciler.turn(Instant::now());
            published.read().settings.error
        };
        assert_eq!(error(), None);
        fs::write(node.0.join("config/mode"), [0xff]).unwrap();
        assert!(error().is_some_and(|why| why.contains("config/mode")));
        node.set_mode("install");
        assert_eq!(error(), None);
    });
}

/// By hand, where the probe may start after the agent, and before the runtime.
#[test]
fn a_drop_in_moves_after_the_wait_for_a_report_or_for_its_renewal() {
    let node = TestNode::new("renewed");
    fs::write(node.0.join("config/shape"), "auto").unwrap();
    let report = |runtimes: Value, is_renewed: bool| {
        let report = json!({ "runtimes": runtimes, "is_renewed": is_renewed });
        fs::write(node.0.join("probe/runtime.json"), report.to_string()).unwrap();
    };
    let containerd = json!([{ "name": "containerd", "reads_drop_ins": true }]);
    with_loop(&node, GRACE_PERIOD, |reconciler, _, _| {
        let is_drop_in = |reconciler: &mut Reconciler<'_>| {
            reconciler.turn(Instant::now());
            assert_ne!(node.has("net.d/n/zz-gybe-cni.conf"), node.has_entry());
            !node.has_entry()
        };
        assert!(!is_drop_in(reconciler), "nothing is reported");
        report(containerd.clone(), true);
        assert!(is_drop_in(reconciler));
        report(containerd, false);
        assert!(is_drop_in(reconciler));
        reconciler.renewed_until = Some(Instant::now());
        assert!(!is_drop_in(reconciler));
        reconciler.renewed_until = Some(Instant::now() + RENEWAL_WAIT);
        assert!(is_drop_in(reconciler));
        // As after a boot.
        reconciler.report_until = Instant::now() + RENEWAL_WAIT;
        report(json!([]), true);
        assert!(is_drop_in(reconciler));
        reconciler.report_until = Instant::now();
        assert!(!is_drop_in(reconciler));
    });
}

#[test]
fn the_kubeconfig_is_removed_only_after_the_conf_is_as_desired() {
    let node = TestNode::new("kubeconfig");
    let conf = node.0.join("net.d/10.conflist");
    let primary = fs::read(&conf).unwrap();
    fs::write(&conf, "{").unwrap();
    let temporary = "run/.kubeconfig.gybe.tmp";
    for file in ["run/kubeconfig", temporary] {
        fs::write(node.0.join(file), "").unwrap();
    }
    reports(&node, GRACE_PERIOD, |turn| {
        assert!(!turn().missing.is_empty() && node.has("run/kubeconfig"));
        fs::write(&conf, primary).unwrap();
        assert!(turn().missing.is_empty() && !node.has("run/kubeconfig") && !node.has(temporary));
    });
}

#[test]
fn a_program_that_does_not_stay_is_placed_again_only_after_a_pause() {
    let node = TestNode::new("removed-program");
    with_loop(&node, GRACE_PERIOD, |reconciler, _, _| {
        reconciler.turn(Instant::now());
        let desired = reconciler.desired.clone().unwrap();
        fs::remove_file(node.0.join("bin/gybe-cni")).unwrap();
        let directories = reconciler.settings().environment.directories.clone();
        let mut pass = pass(&directories, &desired, &mut PassHistory::default()).unwrap();
        assert!(pass.left.is_done());
        assert_eq!(reconciler.passed(&pass, None, Instant::now()).next, NextTurn::OnChange(RESYNC));
        pass.left.changes = pass.plan.changes.clone();
        pass.left.changes.retain(|change| matches!(change, Change::PlaceProgram { .. }));
        assert!(!pass.left.changes.is_empty());
        assert_eq!(reconciler.passed(&pass, None, Instant::now()).next, NextTurn::After(RETRY));
    });
}

#[test]
fn neither_the_resync_nor_the_grace_period_shortens_the_wait_of_a_conflict_over_the_conf() {
    let node = TestNode::new("conflict-wait");
    let (grace_period, wait) = (RESYNC / 2, RESYNC * 3);
    with_loop(&node, grace_period, |reconciler, _, _| {
        node.set_mode("leave");
        reconciler.turn(Instant::now());
        let desired = reconciler.desired.clone().unwrap();
        let directories = reconciler.settings().environment.directories.clone();
        let mut pass = pass(&directories, &desired, &mut PassHistory::default()).unwrap();
        let NextTurn::OnChange(next) = reconciler.passed(&pass, None, Instant::now()).next else {
            panic!("no change needed")
        };
        assert!(next <= grace_period, "the programs are removed at the end of the grace period: {next:?}");
        pass.conflicts.conf =
            Some(Conflict { rewrite: ForeignRewrite::default(), rewrites: 9, wait: Some(wait) });
        assert_eq!(reconciler.passed(&pass, None, Instant::now()).next, NextTurn::After(wait));
    });
}

#[test]
fn f05_a_turn_is_due_when_the_expectation_of_a_rewrite_ends() {
    let node = TestNode::new("rewriter");
    let conf = node.0.join("net.d/10.conflist");
    let primary = fs::read(&conf).unwrap();
    with_loop(&node, GRACE_PERIOD, |reconciler, _, _| {
        for is_expected in [false, false, true] {
            fs::write(&conf, &primary).unwrap();
            let NextTurn::OnChange(next) = reconciler.turn(Instant::now()) else { panic!("a step failed") };
            assert!(node.has_entry());
            assert_eq!(reconciler.published.status.report.is_rewrite_expected, is_expected);
            assert_eq!(next < RESYNC, is_expected, "{next:?}");
        }
    });
}

#[test]
fn f37_a_program_that_cannot_be_placed_is_retried_with_growing_waits_and_the_chain_is_repaired_meanwhile() {
    let node = TestNode::new("retry");
    let (image, conf) = (node.0.join("image/gybe-cni"), node.0.join("net.d/10.conflist"));
    let (whole, primary) = (fs::read(&image).unwrap(), fs::read(&conf).unwrap());
    fs::copy(&image, node.0.join("bin/gybe-cni")).unwrap();
    statuses(&node, GRACE_PERIOD, |turn| {
        // Every user may write the installed program, so it has to be replaced; and the image's program is damaged.
        fs::set_permissions(node.0.join("bin/gybe-cni"), Permissions::from_mode(0o777)).unwrap();
        fs::write(&image, "cut off").unwrap();
        let mut failures = 0;
        for n in 0..20 {
            // More rewrites would count as a conflict.
            if n < 5 {
                fs::write(&conf, &primary).unwrap();
            }
            let status = turn();
            assert!(node.has_entry() && !status.report.missing.is_empty());
            failures = status.counts.program_failures;
            // The fourth attempt is due after seven seconds.
            assert!((1..=3).contains(&failures) && status.counts.conf_failures == 0, "{status:?}");
        }
        // Another program changed the directory: it may now accept the program that it refused.
        fs::write(node.0.join("bin/another"), "").unwrap();
        assert_eq!(turn().counts.program_failures, failures + 1);
        node.set_mode("leave");
        let failures = turn().counts.program_failures;
        node.set_mode("install");
        assert_eq!(turn().counts.program_failures, failures + 1, "the desired state changed");
        fs::write(&image, &whole).unwrap();
        node.set_mode("leave");
        turn();
        node.set_mode("install");
        assert!(turn().report.missing.is_empty());
    });
}

#[test]
fn whether_the_runtime_reads_a_drop_in_is_unknown_until_an_add_that_only_the_drop_in_explains() {
    let node = TestNode::new("drop-in");
    fs::write(node.0.join("config/shape"), "dropin").unwrap();
    for (grace_period, is_known) in [(Duration::ZERO, true), (GRACE_PERIOD, false)] {
        with_loop(&node, grace_period, |reconciler, published, calls| {
            let mut missing = || {
                reconciler.turn(Instant::now());
                published.read().status.report.missing
            };
            let unknown = "whether the runtime reads n/zz-gybe-cni.conf is unknown here";
            assert!(missing()[0].starts_with(unknown));
            calls
                .record(json!({ "verb": "DEL", "decision": "nothing" }).as_object().unwrap(), None, |_| None);
            assert!(missing()[0].starts_with(unknown));
            calls.record(
                json!({ "verb": "ADD", "decision": "leave alone" }).as_object().unwrap(),
                None,
                |_| None,
            );
            assert_eq!(missing().is_empty(), is_known);
        });
    }
}

#[test]
fn a_pod_with_istio_init_is_reported_unless_its_namespace_is_excluded() {
    let node = TestNode::new("istio-init");
    let pods = ManifestPods::new(&node.0.join("pods"));
    let is_reported = || has_istio_init(&pods, &node.config(GRACE_PERIOD).settings.current);
    for (namespace, init, expected) in [
        ("shop", "istio-validation", false),
        ("shop", "istio-init", true),
        ("kube-system", "istio-init", false),
    ] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": namespace, "name": "cart-0", "uid": "u" },
            "spec": { "initContainers": [{ "name": init }], "containers": [{ "name": "istio-proxy" }] },
        });
        fs::write(node.0.join("pods/cart.json"), pod.to_string()).unwrap();
        assert_eq!(is_reported(), expected, "{namespace} {init}");
    }
}

#[test]
fn istiod_in_a_namespace_that_is_not_excluded_is_reported_on_its_node() {
    let node = TestNode::new("istiod");
    let pods = ManifestPods::new(&node.0.join("pods"));
    let in_mesh = || istiod_in_mesh(&pods, &node.config(GRACE_PERIOD).settings.current);
    let write_pod = |namespace: &str| {
        let labels = json!({ "app": "istiod" });
        let metadata =
            json!({ "namespace": namespace, "name": "istiod-5d8f-x", "uid": "u", "labels": labels });
        let pod: Value =
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "containers": [] } });
        fs::write(node.0.join("pods/istiod.json"), pod.to_string()).unwrap();
    };
    write_pod("istio-system");
    assert_eq!(in_mesh(), None);
    fs::write(node.0.join("config/exclude_namespaces"), "kube-system").unwrap();
    assert!(in_mesh().is_some_and(|why| why.contains("istio-system")));
    write_pod("shop");
    assert_eq!(in_mesh(), None, "a tenant's pod");
}

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

fn wait_for(published: &Shared<Published>, is_reached: impl Fn(Phase) -> bool) {
    let started = Instant::now();
    while !is_reached(published.read().status.report.phase) {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", published.read().status.report);
        std::thread::yield_now();
    }
}
