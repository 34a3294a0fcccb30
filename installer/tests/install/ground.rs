//! The directories of a simulated node. Dropping [`Ground`] removes them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use gybe_installer::host::desired::DesiredState;
use gybe_installer::host::libcni::choice::choose;
use gybe_installer::host::observe::{
    FileName, HashCache, LOCK, NodeDirectories, ObserveScope, ObservedState, observe,
};
use gybe_installer::host::pass::{Pass, PassHistory, pass};
use gybe_installer::host::problem::Problem;
use gybe_installer::host::runtimes::DropIns;
use gybe_installer::host::runtimes::Runtime;
use gybe_installer::host::runtimes::Runtimes;

use crate::wants;

/// Names of the other owners' plugins in the node's program directory.
const PRIMARIES: [&str; 5] = ["bridge", "calico", "cilium", "cilium-cni", "multus"];

pub(crate) struct Ground {
    pub(crate) root: PathBuf,
}

impl Ground {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ground-{}-{n}", std::process::id()));
        for folder in ["net.d", "bin", "results", "image"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        for plugin in PRIMARIES {
            fs::write(root.join("bin").join(plugin), "").unwrap();
        }
        Self { root }
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let ground = Self::new();
        for (name, content) in files {
            ground.put(name, content);
        }
        ground
    }

    pub(crate) fn places(&self) -> NodeDirectories {
        wants::places(&self.root)
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

    pub(crate) fn observe(&self, interest: &ObserveScope) -> ObservedState {
        observe(&self.places(), interest, &mut HashCache::default())
    }

    /// Returns the file that containerd would choose, and its plugins.
    pub(crate) fn chain(&self) -> (FileName, Vec<String>) {
        let choice =
            choose(&self.observe(&ObserveScope::default()).conf, Runtime::Containerd, DropIns::Loaded)
                .unwrap();
        (choice.file, choice.network.plugins)
    }

    pub(crate) fn pass(&self, wanted: &DesiredState) -> Pass {
        // A current containerd, which reads drop-ins.
        self.pass_by(wanted, Runtimes::of([(Runtime::Containerd, Some(DropIns::Loaded))]))
    }

    /// As `pass`, with these known runtimes.
    pub(crate) fn pass_by(&self, wanted: &DesiredState, runtimes: Runtimes) -> Pass {
        let mut memory = PassHistory::default();
        memory.set_runtimes(runtimes);
        pass(&self.places(), wanted, &mut memory).unwrap()
    }

    /// Runs one pass, or two for an uninstall, whose tombstone is removed in the second; then asserts that another pass
    /// plans and writes nothing.
    pub(crate) fn settle(&self, wanted: &DesiredState) {
        let passes = if matches!(wanted, DesiredState::Uninstalled(_)) { 2 } else { 1 };
        let last = (0..passes).map(|_| self.pass(wanted)).inspect(|pass| {
            assert!(pass.applied.failed.is_empty(), "{:?}", pass.applied.failed);
        });
        let last = last.reduce(|_, next| next).unwrap();
        // Other tests check whether the runtime uses the file.
        let of_the_runtime = |problem: &&Problem| {
            matches!(
                problem,
                Problem::Waiting
                    | Problem::BrokenFirst(_)
                    | Problem::NotMultus { .. }
                    | Problem::NoPrimary(_)
            )
        };
        let problems: Vec<_> = last.left.problems.iter().filter(|it| !of_the_runtime(it)).collect();
        assert!(last.left.changes.is_empty() && problems.is_empty(), "{:#?}", last.left);
        let before = self.times();
        assert_eq!(self.pass(wanted).applied.done, 0);
        assert_eq!(self.times(), before, "nothing is written when nothing differs");
    }

    fn times(&self) -> Vec<std::time::SystemTime> {
        ["net.d", "bin"]
            .iter()
            .map(|it| fs::metadata(self.root.join(it)).unwrap().modified().unwrap())
            .collect()
    }
}

/// A stop flag for a test's threads; dropping it sets the flag, also if the test panics.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
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

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
