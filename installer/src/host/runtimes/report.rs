//! The report about the runtimes of a node: made where the host's root and processes are visible, and kept in
//! `/run/gybe/runtime.json` for the agent, which sees neither.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::slice;

use gybe_plugin::probe_cache::{RUNTIME, read_own_file, replace_file};
use nix::sys::stat::stat;
use serde::{Deserialize, Serialize};

use crate::host::observe::NodeDirectories;
use crate::host::runtimes::DropIns;
use crate::host::runtimes::Runtime;
use crate::host::runtimes::config::on_host;
use crate::host::runtimes::processes::RuntimeProcess;
use crate::host::runtimes::{ConfiguredDirectory, Runtimes};

/// The runtimes that run on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeReport {
    runtimes: Vec<ReportedRuntime>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedRuntime {
    /// `containerd` or `crio`.
    name: String,
    /// Whether it reads a network's own directory; none if unknown.
    reads_drop_ins: Option<bool>,
    /// The plugin directories that its configuration names; none if it names none.
    plugin_dirs: Option<Vec<ReportedDirectory>>,
    /// The conf directory that its configuration names.
    #[serde(default)]
    conf_dir: Option<ReportedDirectory>,
    /// The network that CRI-O's configuration names.
    #[serde(default)]
    default_network: Option<String>,
}

/// A directory of the host. A mount of it has the same device and inode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedDirectory {
    path: PathBuf,
    /// Device and inode; none if it does not exist.
    identity: Option<(u64, u64)>,
}

impl RuntimeReport {
    /// Returns the report about these runtimes. `root` is the path of the host's root in this mount namespace.
    #[must_use]
    pub fn of(root: &Path, runtimes: &[RuntimeProcess]) -> Self {
        let directory = |path: &PathBuf| ReportedDirectory {
            path: path.clone(),
            identity: identity(&on_host(root, path)),
        };
        let of_runtime = |one: &RuntimeProcess| ReportedRuntime {
            name: one.name.clone(),
            reads_drop_ins: one.drop_ins.map(|drop_ins| drop_ins == DropIns::Loaded),
            plugin_dirs: one.configured.plugin_dirs.as_ref().map(|dirs| dirs.iter().map(directory).collect()),
            conf_dir: one.configured.conf_dir.as_ref().map(directory),
            default_network: one.configured.default_network.clone(),
        };
        Self { runtimes: runtimes.iter().map(of_runtime).collect() }
    }

    /// Reads the report kept in `directory`, if root wrote one.
    #[must_use]
    pub fn kept_in(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&read_own_file(&directory.join(RUNTIME))?.0).ok()
    }

    /// Writes the report to `directory` if it changed. While no runtime runs the last report stays valid: a
    /// runtime that restarts has the same configuration.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep_in(&self, directory: &Path) -> std::io::Result<()> {
        if Self::kept_in(directory).is_some_and(|kept| kept == *self || self.runtimes.is_empty()) {
            return Ok(());
        }
        replace_file(directory, RUNTIME, &serde_json::to_string(self)?)
    }

    /// What the report means for our directories.
    #[must_use]
    pub fn known(&self, directories: &NodeDirectories) -> Runtimes {
        let kind = |name: &str| if name == "crio" { Runtime::CriO } else { Runtime::Containerd };
        let drop_ins = |reads: bool| if reads { DropIns::Loaded } else { DropIns::Ignored };
        let kinds = self.runtimes.iter().map(|one| (kind(&one.name), one.reads_drop_ins.map(drop_ins)));
        let plugin_dirs = self.runtimes.iter().map(|one| one.plugin_dirs.as_deref());
        let conf_dirs = self.runtimes.iter().map(|one| one.conf_dir.as_ref().map(slice::from_ref));
        Runtimes {
            plugin_directory: compare(plugin_dirs, &directories.programs),
            conf_directory: compare(conf_dirs, &directories.conf),
            crio_network: self.runtimes.iter().find_map(|one| one.default_network.clone()),
            ..Runtimes::of(kinds)
        }
    }
}

/// Compares the directories that each runtime names with ours. Any of several runtimes may be the one that
/// starts pods: if one names nothing, or they differ, nothing is known.
fn compare<'a>(
    named: impl Iterator<Item = Option<&'a [ReportedDirectory]>>,
    ours: &Path,
) -> ConfiguredDirectory {
    let all: Option<Vec<_>> = named.collect();
    let (Some(all), Some(ours)) = (all, identity(ours)) else { return ConfiguredDirectory::Unknown };
    let names_ours = |dirs: &&[ReportedDirectory]| dirs.iter().any(|one| one.identity == Some(ours));
    match all.iter().filter(|dirs| names_ours(dirs)).count() {
        _ if all.is_empty() => ConfiguredDirectory::Unknown,
        0 => {
            let others: BTreeSet<_> = all.into_iter().flatten().map(|one| one.path.clone()).collect();
            ConfiguredDirectory::Others(others.into_iter().collect())
        }
        number if number == all.len() => ConfiguredDirectory::Named,
        _ => ConfiguredDirectory::Unknown,
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::runtimes::config::RuntimeConfig;
    use crate::host::runtimes::processes::RuntimeWatch;
    use gybe_test_support::TestDir;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn runtime(name: &str, dirs: Option<&[&str]>) -> RuntimeProcess {
        let plugin_dirs = dirs.map(|dirs| dirs.iter().map(PathBuf::from).collect());
        RuntimeProcess {
            name: name.to_owned(),
            pid: 7,
            watches: RuntimeWatch::Unknown,
            drop_ins: Some(DropIns::Loaded),
            configured: RuntimeConfig { plugin_dirs, ..RuntimeConfig::default() },
        }
    }

    /// A host with two plugin directories and two conf directories. The first plugin directory is mounted at
    /// another path, as in the agent's container.
    struct Host {
        root: TestDir,
        directories: NodeDirectories,
    }

    impl Host {
        fn new(test: &str) -> Self {
            let folders = ["opt/cni/bin", "usr/lib/cni", "etc/cni/net.d", "etc/cni/custom"];
            let root = TestDir::new(&format!("report-{test}")).with_subdirectories(&folders);
            symlink(root.join("opt/cni/bin"), root.join("mounted")).unwrap();
            let directories = NodeDirectories {
                conf: root.join("etc/cni/net.d"),
                programs: root.join("mounted"),
                results: root.join("results"),
            };
            Self { root, directories }
        }

        fn known(&self, all: &[RuntimeProcess]) -> Runtimes {
            RuntimeReport::of(&self.root, all).keep_in(&self.root).unwrap();
            RuntimeReport::kept_in(&self.root).unwrap().known(&self.directories)
        }
    }

    #[test]
    fn f37_a_plugin_directory_is_identified_by_its_inode_and_not_by_its_path() {
        let host = Host::new("identity");
        assert_eq!(host.known(&[]), Runtimes::default());
        let of_containerd = |dirs| host.known(&[runtime("containerd", dirs)]).plugin_directory;
        assert_eq!(of_containerd(Some(&["/usr/lib/cni", "/opt/cni/bin/"])), ConfiguredDirectory::Named);
        let others = ConfiguredDirectory::Others(vec!["/usr/lib/cni".into()]);
        assert_eq!(of_containerd(Some(&["/usr/lib/cni"])), others);
        assert_eq!(of_containerd(None), ConfiguredDirectory::Unknown);
        fs::write(host.root.join(RUNTIME), "{").unwrap();
        assert_eq!(RuntimeReport::kept_in(&host.root), None);
    }

    #[test]
    fn f37_if_runtimes_differ_nothing_is_known() {
        let host = Host::new("several");
        let (ours, other): (&[&str], &[&str]) = (&["/opt/cni/bin"], &["/usr/lib/cni"]);
        let of_both = |one, another| {
            let known = host.known(&[runtime("containerd", one), runtime("crio", another)]);
            assert_eq!(known.possible.len(), 2);
            known.plugin_directory
        };
        assert_eq!(of_both(Some(ours), Some(ours)), ConfiguredDirectory::Named);
        assert_eq!(of_both(Some(ours), Some(other)), ConfiguredDirectory::Unknown);
        assert_eq!(of_both(Some(other), Some(ours)), ConfiguredDirectory::Unknown);
        assert_eq!(of_both(None, Some(ours)), ConfiguredDirectory::Unknown);
        assert_eq!(of_both(Some(other), None), ConfiguredDirectory::Unknown);
        let neither = of_both(Some(other), Some(&["/x", "/usr/lib/cni"]));
        assert_eq!(neither, ConfiguredDirectory::Others(vec!["/usr/lib/cni".into(), "/x".into()]));
    }

    #[test]
    fn f37_the_conf_directory_is_compared_with_ours() {
        let host = Host::new("networks");
        let of = |conf_dir: Option<&str>| {
            let configured =
                RuntimeConfig { conf_dir: conf_dir.map(PathBuf::from), ..RuntimeConfig::default() };
            host.known(&[RuntimeProcess { configured, ..runtime("containerd", None) }]).conf_directory
        };
        assert_eq!(of(None), ConfiguredDirectory::Unknown);
        assert_eq!(of(Some("/etc/cni/net.d/")), ConfiguredDirectory::Named);
        assert_eq!(of(Some("/etc/cni/custom")), ConfiguredDirectory::Others(vec!["/etc/cni/custom".into()]));
    }

    #[test]
    fn f37_while_no_runtime_runs_the_last_report_stays_valid() {
        let host = Host::new("restart");
        let before = host.known(&[runtime("containerd", Some(&["/usr/lib/cni"]))]);
        assert_eq!(host.known(&[]), before);
        assert_ne!(host.known(&[runtime("crio", None)]), before);
    }
}
