//! The directories of a simulated node, and desired states of it: scripts that answer as the real programs do, and an
//! entry like the real one.

use gybe_installer::host::conflist::entry::Entry;
use gybe_installer::host::desired::{
    Confirmed, DesiredState, Install, Placement, PlacementOrder, Program, PutBack, Shape, ShapeSetting,
    TakeOver, Trial, Uninstall,
};
use gybe_installer::host::libcni::choose;
use gybe_installer::host::observe::runtimes::{DropIns, Runtime, Runtimes};
use gybe_installer::host::observe::{
    FileName, Hash, HashCache, LOCK, NodeDirectories, ObserveScope, ObservedState, observe,
};
use gybe_installer::host::pass::{Pass, PassHistory, pass};
use gybe_installer::host::problem::Problem;
use gybe_plugin::version::BUILD_MARK;
use gybe_test_support::TestDir;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Names of the other owners' plugins in the node's program directory.
const PRIMARIES: [&str; 16] = [
    "bandwidth",
    "bridge",
    "calico",
    "calico-ipam",
    "cilium",
    "cilium-cni",
    "flannel",
    "host-local",
    "linkerd-cni",
    "loopback",
    "multus",
    "multus-shim",
    "portmap",
    "prefix-istio-cni",
    "ptp",
    "tuning",
];

/// The directories; dropping it removes them.
pub(crate) struct TestNode {
    pub(crate) root: TestDir,
}

impl TestNode {
    pub(crate) fn new() -> Self {
        // Not below /tmp, which may be mounted noexec: the programs in it are run.
        let root = TestDir::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")), "node")
            .with_subdirectories(&["net.d", "bin", "results", "image"]);
        root.write_programs("bin", PRIMARIES);
        Self { root }
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let node = Self::new();
        for (name, content) in files {
            node.put(name, content);
        }
        node
    }

    pub(crate) fn directories(&self) -> NodeDirectories {
        directories(&self.root)
    }

    pub(crate) fn conf(&self, name: &str) -> PathBuf {
        self.root.join("net.d").join(name)
    }

    /// Writes a file into the conf directory in place, as another agent does.
    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.conf(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns the names and contents of all files in the conf directory.
    pub(crate) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        collect(&self.root.join("net.d"), "", &mut files);
        files
    }

    /// Returns the names in the program directory except the other owners' plugins and the lock file.
    pub(crate) fn programs(&self) -> Vec<String> {
        let mut files = BTreeMap::new();
        collect(&self.root.join("bin"), "", &mut files);
        files.into_keys().filter(|name| name != LOCK && !PRIMARIES.contains(&name.as_str())).collect()
    }

    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.conf(name)).unwrap()
    }

    pub(crate) fn observe(&self, scope: &ObserveScope) -> ObservedState {
        observe(&self.directories(), scope, &mut HashCache::default())
    }

    /// Returns the file that containerd would choose, and its plugins.
    pub(crate) fn chain(&self) -> (FileName, Vec<String>) {
        let choice =
            choose(&self.observe(&ObserveScope::default()).conf, Runtime::Containerd, DropIns::Loaded)
                .unwrap();
        (choice.file, choice.network.plugins)
    }

    pub(crate) fn pass(&self, desired: &DesiredState) -> Pass {
        // A current containerd, which reads drop-ins.
        self.pass_with_runtimes(desired, Runtimes::of([(Runtime::Containerd, Some(DropIns::Loaded))]))
    }

    /// As `pass`, with these known runtimes.
    pub(crate) fn pass_with_runtimes(&self, desired: &DesiredState, runtimes: Runtimes) -> Pass {
        let mut history = PassHistory::default();
        history.set_runtimes(runtimes);
        pass(&self.directories(), desired, &mut history).unwrap()
    }

    /// Runs one pass, or two for an uninstall, whose tombstone is removed in the second; then asserts that another pass
    /// plans and writes nothing.
    pub(crate) fn settle(&self, desired: &DesiredState) {
        let passes = if matches!(desired, DesiredState::Uninstalled(_)) { 2 } else { 1 };
        let last = (0..passes).map(|_| self.pass(desired)).inspect(|pass| {
            assert!(pass.applied.failed.is_empty(), "{:?}", pass.applied.failed);
        });
        let last = last.reduce(|_, next| next).unwrap();
        // Other tests check whether the runtime uses the file.
        let is_about_the_runtime = |problem: &&Problem| {
            matches!(
                problem,
                Problem::Waiting
                    | Problem::BrokenFirst(_)
                    | Problem::NotMultus { .. }
                    | Problem::NoPrimary(_)
            )
        };
        let problems: Vec<_> = last.left.problems.iter().filter(|it| !is_about_the_runtime(it)).collect();
        assert!(last.left.changes.is_empty() && problems.is_empty(), "{:#?}", last.left);
        let before = self.modification_times();
        assert_eq!(self.pass(desired).applied.done, 0);
        assert_eq!(self.modification_times(), before, "nothing is written when nothing differs");
    }

    fn modification_times(&self) -> Vec<std::time::SystemTime> {
        ["net.d", "bin"]
            .iter()
            .map(|it| fs::metadata(self.root.join(it)).unwrap().modified().unwrap())
            .collect()
    }
}

/// A stop flag for a test's threads; dropping it sets the flag, also if the test panics.
pub(crate) struct StopFlag<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopFlag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn collect(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{name}/"), files);
        } else {
            files.insert(name, fs::read(entry.path()).unwrap_or_default());
        }
    }
}

pub(crate) fn name(name: &str) -> FileName {
    FileName::new(name).unwrap()
}

pub(crate) fn directories(root: &Path) -> NodeDirectories {
    NodeDirectories { conf: root.join("net.d"), programs: root.join("bin"), results: root.join("results") }
}

pub(crate) fn entry(level: &str) -> Entry {
    Entry::from_value(&json!({
        "type": "gybe-cni", "log_level": level, "exclude_namespaces": ["kube-system"],
        "capabilities": { "io.kubernetes.cri.pod-annotations": true },
    }))
    .unwrap()
}

/// Writes a program into the image that answers VERSION and `--version` and contains its build's number.
pub(crate) fn program(root: &Path, file: &str, build: &str) -> Program {
    let source = root.join("image").join(format!("{file}-{build}"));
    let text = format!(
        "#!/bin/sh\n# {build}\n# {BUILD_MARK}\necho '{{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}}'\n"
    );
    if !source.exists() {
        fs::write(&source, &text).unwrap();
        fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let trial = if file == "gybe" { Trial::Version } else { Trial::CniVersion };
    let place = if file == "istio-cni" { Placement::IfAbsent } else { Placement::Always };
    let need = if file == "gybe-cni" { PlacementOrder::BeforeEntry } else { PlacementOrder::AfterEntry };
    Program { name: name(file), source, hash: Hash::of(text.as_bytes()), trial, place, need }
}

pub(crate) fn install(root: &Path, shape: impl Into<ShapeSetting>, build: &str) -> Install {
    Install {
        shape: shape.into(),
        pinned_by: "conf_name",
        entry: entry(if build == "1" { "info" } else { "debug" }),
        programs: vec![program(root, "gybe-cni", build), program(root, "gybe", build)],
        retired: Vec::new(),
        take_over: TakeOver::Now,
        mode: 0o600,
        confirmed: Confirmed::No,
    }
}

pub(crate) fn installed(root: &Path, shape: impl Into<ShapeSetting>) -> DesiredState {
    DesiredState::Installed(install(root, shape, "1"))
}

pub(crate) fn chained(root: &Path) -> DesiredState {
    installed(root, Shape::Chained { pinned: None })
}

pub(crate) fn uninstalled(root: &Path, put_back: PutBack) -> DesiredState {
    DesiredState::Uninstalled(Uninstall {
        plugin: "gybe-cni".into(),
        pinned: None,
        programs: vec![name("gybe-cni"), name("gybe")],
        retired: Vec::new(),
        last: None,
        in_grace_period: false,
        tombstones: vec![program(root, "gybe-cni", "tombstone")],
        stand_in: Some(program(root, "istio-cni", "tombstone").hash),
        put_back,
    })
}
