//! The report about the runtimes of a node: made where the host's root and processes are visible, and kept in
//! `/run/gybe/runtime.json` for the agent, which sees neither.

pub mod config;
pub mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::{Duration, SystemTime};

use gybe_plugin::probe_cache::{RUNTIME, read_own_file, replace_file};
use nix::sys::stat::stat;
use nix::sys::statvfs::{FsFlags, statvfs};
use serde::{Deserialize, Serialize};

use crate::host::image::PLUGIN;
use crate::host::libcni::choose;
use crate::host::observe::runtimes::{
    ConfiguredDirectory, DropIns, NetworkCount, Runtime, Runtimes, SearchedDirectory,
};
use crate::host::observe::{NodeDirectories, conf_directory, is_executable};
use config::on_host;
use processes::RuntimeProcess;

/// The most files of a plugin directory that are listed: the report is read in one piece.
const MAX_PROGRAMS: usize = 512;

/// How old a file may be that its writer renews each minute.
const RENEWED_WITHIN: Duration = Duration::from_secs(180);

/// Reports whether the file's writer renewed it within [`RENEWED_WITHIN`]. A time in the future is that of a clock that
/// was set back.
pub(crate) fn is_renewed(file: &Metadata) -> bool {
    file.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age <= RENEWED_WITHIN))
}

/// The runtimes that run on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeReport {
    runtimes: Vec<ReportedRuntime>,
    /// Whether the writer goes on reporting: otherwise another runtime may replace a reported one unnoticed.
    #[serde(default)]
    is_renewed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedRuntime {
    /// `containerd`, `crio` or `cri-dockerd`.
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
    #[serde(default)]
    internal_loopback: bool,
    #[serde(default)]
    max_conf_num: Option<i64>,
    #[serde(default)]
    handlers: Vec<ReportedHandler>,
}

/// A runtime handler with a conf directory of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedHandler {
    name: String,
    conf_dir: ReportedDirectory,
    /// Whether the file that containerd takes there runs our plugin.
    has_entry: bool,
}

/// A directory of the host. A mount of it has the same device and inode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedDirectory {
    path: PathBuf,
    /// Device and inode; none if it does not exist.
    identity: Option<(u64, u64)>,
    #[serde(default)]
    is_noexec: bool,
    /// The files in a plugin directory, and whether each is executable; none where they were not listed.
    #[serde(default)]
    programs: Option<BTreeMap<String, bool>>,
}

impl RuntimeReport {
    /// Returns the report about these runtimes. `root` is the path of the host's root in this mount namespace.
    #[must_use]
    pub fn of(root: &Path, runtimes: &[RuntimeProcess]) -> Self {
        let directory = |path: &PathBuf| ReportedDirectory {
            path: path.clone(),
            identity: identity(&on_host(root, path)),
            is_noexec: false,
            programs: None,
        };
        let of_plugins = |path: &PathBuf| {
            let here = on_host(root, path);
            let is_noexec = statvfs(&here).is_ok_and(|it| it.flags().contains(FsFlags::ST_NOEXEC));
            ReportedDirectory { is_noexec, programs: programs(&here), ..directory(path) }
        };
        let handler = |(name, path): (&String, &PathBuf), drop_ins: Option<DropIns>| ReportedHandler {
            name: name.clone(),
            conf_dir: directory(path),
            has_entry: has_entry(&on_host(root, path), drop_ins.unwrap_or(DropIns::Ignored)),
        };
        let of_runtime = |one: &RuntimeProcess| ReportedRuntime {
            name: one.name.clone(),
            reads_drop_ins: one.drop_ins.map(|drop_ins| drop_ins == DropIns::Loaded),
            plugin_dirs: one
                .configured
                .plugin_dirs
                .as_ref()
                .map(|dirs| dirs.iter().map(of_plugins).collect()),
            conf_dir: one.configured.conf_dir.as_ref().map(directory),
            default_network: one.configured.default_network.clone(),
            internal_loopback: one.configured.internal_loopback,
            max_conf_num: one.configured.max_conf_num,
            handlers: one.configured.handlers.iter().map(|it| handler(it, one.drop_ins)).collect(),
        };
        Self { runtimes: runtimes.iter().map(of_runtime).collect(), is_renewed: false }
    }

    /// The report of a writer that goes on reporting, at least once a minute.
    #[must_use]
    pub fn renewed(self) -> Self {
        Self { is_renewed: true, ..self }
    }

    /// Reads the report kept in `directory`, if root wrote one.
    #[must_use]
    pub fn kept_in(directory: &Path) -> Option<Self> {
        let (text, metadata) = read_own_file(&directory.join(RUNTIME))?;
        let report: Self = serde_json::from_slice(&text).ok()?;
        Some(Self { is_renewed: report.is_renewed && is_renewed(&metadata), ..report })
    }

    /// Whether no runtime ran.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runtimes.is_empty()
    }

    /// Whether a runtime that replaces a reported one is noticed.
    #[must_use]
    pub fn is_renewed(&self) -> bool {
        self.is_renewed
    }

    /// Writes the report to `directory`; of an unchanged one, only the file's time. While no runtime runs the last report
    /// stays valid: a runtime that restarts has the same configuration.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep_in(&self, directory: &Path) -> std::io::Result<()> {
        match Self::kept_in(directory) {
            Some(kept) if self.runtimes.is_empty() || kept == *self => {
                File::open(directory.join(RUNTIME))?.set_modified(SystemTime::now())
            }
            _ => replace_file(directory, RUNTIME, &serde_json::to_string(self)?),
        }
    }

    /// What the report means for our directories.
    #[must_use]
    pub fn known(&self, directories: &NodeDirectories) -> Runtimes {
        // cri-dockerd skips broken files, too (network/cni/cni.go, getDefaultCNINetwork).
        let kind = |name: &str| if name == "containerd" { Runtime::Containerd } else { Runtime::CriO };
        let drop_ins = |reads: bool| if reads { DropIns::Loaded } else { DropIns::Ignored };
        let kinds = self.runtimes.iter().map(|one| (kind(&one.name), one.reads_drop_ins.map(drop_ins)));
        let plugin_dirs = self.runtimes.iter().map(|one| one.plugin_dirs.as_deref());
        let conf_dirs = self.runtimes.iter().map(|one| one.conf_dir.as_ref().map(slice::from_ref));
        let plugin_directory = compare(plugin_dirs.clone(), &directories.programs);
        let paths = plugin_dirs.flatten().filter(|_| plugin_directory == ConfiguredDirectory::Named);
        let of_containerd = || self.runtimes.iter().filter(|one| kind(&one.name) == Runtime::Containerd);
        let handlers = |has_entry: bool| {
            let others = of_containerd().flat_map(|one| &one.handlers).filter(|handler| {
                handler.has_entry == has_entry && handler.conf_dir.identity != identity(&directories.conf)
            });
            others.map(|handler| (handler.name.clone(), handler.conf_dir.path.clone())).collect()
        };
        Runtimes {
            search_paths: paths.map(|dirs| search_path(dirs, identity(&directories.programs))).collect(),
            plugin_directory,
            conf_directory: compare(conf_dirs, &directories.conf),
            crio_network: self.runtimes.iter().find_map(|one| one.default_network.clone()),
            has_internal_loopback: of_containerd().next().is_some()
                && of_containerd().all(|one| one.internal_loopback),
            several_networks: of_containerd().find_map(|one| several_networks(one.max_conf_num?)),
            handlers_elsewhere: handlers(false),
            handlers_with_entry: handlers(true),
            ..Runtimes::of(kinds)
        }
    }
}

fn search_path(named: &[ReportedDirectory], ours: Option<(u64, u64)>) -> Vec<SearchedDirectory> {
    let directory = |one: &ReportedDirectory| SearchedDirectory {
        path: one.path.clone(),
        is_ours: one.identity.is_some() && one.identity == ours,
        is_noexec: one.is_noexec,
        programs: one.programs.clone(),
    };
    named.iter().map(directory).collect()
}

/// containerd/go-cni, opts.go: loading ends when this many files are loaded, which 0 and negative numbers never are.
fn several_networks(max_conf_num: i64) -> Option<NetworkCount> {
    match usize::try_from(max_conf_num) {
        Ok(1) => None,
        Ok(most @ 2..) => Some(NetworkCount::AtMost(most)),
        _ => Some(NetworkCount::All),
    }
}

/// The files in a plugin directory, and whether each is executable; none if it cannot be read, or has too many. A
/// directory that does not exist has no files.
fn programs(directory: &Path) -> Option<BTreeMap<String, bool>> {
    let entries = match fs::read_dir(directory) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Some(BTreeMap::new()),
        entries => entries.ok()?,
    };
    let mut programs = BTreeMap::new();
    for entry in entries {
        let entry = entry.ok()?;
        let file = fs::metadata(entry.path()).ok().filter(Metadata::is_file);
        if let (Some(file), Ok(name)) = (file, entry.file_name().into_string()) {
            programs.insert(name, is_executable(file.mode()));
        }
        if programs.len() > MAX_PROGRAMS {
            return None;
        }
    }
    Some(programs)
}

/// Reports whether the file that containerd takes in this conf directory runs our plugin.
fn has_entry(directory: &Path, drop_ins: DropIns) -> bool {
    let conf = conf_directory(directory, &BTreeSet::new());
    choose(&conf, Runtime::Containerd, drop_ins)
        .is_ok_and(|choice| choice.network.plugins.iter().any(|kind| kind == PLUGIN))
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
    use std::os::unix::fs::{PermissionsExt, symlink};

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
    fn f37_where_each_runtime_finds_which_programs_is_reported() {
        let host = Host::new("programs");
        for (path, mode) in [("usr/lib/cni/gybe-cni", 0o755), ("usr/lib/cni/portmap", 0o644)] {
            fs::write(host.root.join(path), "").unwrap();
            fs::set_permissions(host.root.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink("portmap", host.root.join("usr/lib/cni/link")).unwrap();
        symlink("nowhere", host.root.join("usr/lib/cni/dangling")).unwrap();
        fs::create_dir(host.root.join("usr/lib/cni/directory")).unwrap();
        let dirs: &[&str] = &["/usr/lib/cni", "/none", "/opt/cni/bin"];
        let listed = |names: &[(&str, bool)]| -> Option<BTreeMap<String, bool>> {
            Some(names.iter().map(|(name, runs)| ((*name).to_owned(), *runs)).collect())
        };
        let directory = |path: &str, is_ours, programs| SearchedDirectory {
            path: path.into(),
            is_ours,
            is_noexec: false,
            programs,
        };
        let expected = vec![
            directory(
                "/usr/lib/cni",
                false,
                listed(&[("gybe-cni", true), ("link", false), ("portmap", false)]),
            ),
            directory("/none", false, listed(&[])),
            directory("/opt/cni/bin", true, listed(&[])),
        ];
        assert_eq!(host.known(&[runtime("containerd", Some(dirs))]).search_paths, [expected]);
        assert!(host.known(&[runtime("containerd", Some(&["/usr/lib/cni"]))]).search_paths.is_empty());
        for n in 0..=MAX_PROGRAMS {
            fs::write(host.root.join(format!("usr/lib/cni/{n}")), "").unwrap();
        }
        let many = host.known(&[runtime("containerd", Some(dirs))]);
        assert_eq!(many.search_paths[0][0].programs, None);
    }

    #[test]
    fn f37_a_handlers_conf_directory_is_reported_unless_it_is_ours_or_has_the_entry() {
        let host = Host::new("handlers");
        let list =
            |plugin: &str| format!(r#"{{"name":"n","plugins":[{{"type":"a"}},{{"type":"{plugin}"}}]}}"#);
        let known = |conf_dir: &str, drop_ins| {
            let handlers = [("kata".to_owned(), PathBuf::from(conf_dir))].into();
            let configured = RuntimeConfig { handlers, internal_loopback: true, ..RuntimeConfig::default() };
            let known = host.known(&[RuntimeProcess { configured, drop_ins, ..runtime("containerd", None) }]);
            assert!(known.has_internal_loopback);
            (known.handlers_elsewhere, known.handlers_with_entry)
        };
        let handler = |path: &str| vec![("kata".to_owned(), PathBuf::from(path))];
        let elsewhere = |path| (handler(path), Vec::new());
        assert_eq!(known("/etc/cni/net.d/", None), Default::default());
        assert_eq!(known("/none", None), elsewhere("/none"));
        fs::write(host.root.join("etc/cni/custom/20.conflist"), list(PLUGIN)).unwrap();
        assert_eq!(known("/etc/cni/custom", None), (Vec::new(), handler("/etc/cni/custom")));
        fs::write(host.root.join("etc/cni/custom/10.conflist"), list("b")).unwrap();
        assert_eq!(
            known("/etc/cni/custom", None),
            elsewhere("/etc/cni/custom"),
            "containerd takes the first file"
        );
        let drop_in = format!(r#"{{"type":"{PLUGIN}"}}"#);
        fs::create_dir(host.root.join("etc/cni/custom/n")).unwrap();
        fs::write(host.root.join("etc/cni/custom/n/90-gybe.conf"), drop_in).unwrap();
        assert_eq!(
            known("/etc/cni/custom", None),
            elsewhere("/etc/cni/custom"),
            "an old containerd has no drop-ins"
        );
        let loaded = Some(DropIns::Loaded);
        assert_eq!(known("/etc/cni/custom", loaded), (Vec::new(), handler("/etc/cni/custom")));
    }

    #[test]
    fn f37_the_number_of_networks_is_that_of_go_cni() {
        let all = [1, 2, 0, -1].map(several_networks);
        assert_eq!(
            all,
            [None, Some(NetworkCount::AtMost(2)), Some(NetworkCount::All), Some(NetworkCount::All)]
        );
    }

    #[test]
    fn f37_a_report_is_renewed_while_its_writer_goes_on() {
        let host = Host::new("renewed");
        let report = RuntimeReport::of(&host.root, &[runtime("containerd", None)]);
        let kept = || RuntimeReport::kept_in(&host.root).unwrap();
        report.keep_in(&host.root).unwrap();
        assert!(!kept().is_renewed());
        let renewed = report.renewed();
        renewed.keep_in(&host.root).unwrap();
        assert!(kept().is_renewed());
        let path = host.root.join(RUNTIME);
        let now = SystemTime::now();
        for other in [now - RENEWED_WITHIN - Duration::from_secs(1), now + Duration::from_secs(60)] {
            File::open(&path).unwrap().set_modified(other).unwrap();
            assert!(!kept().is_renewed());
            renewed.keep_in(&host.root).unwrap();
            assert!(kept().is_renewed());
        }
        // An unchanged file only gets a new time.
        let before = identity(&path);
        File::open(&path).unwrap().set_modified(now - RENEWED_WITHIN / 2).unwrap();
        renewed.keep_in(&host.root).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(modified >= now && identity(&path) == before);
    }

    #[test]
    fn f37_while_no_runtime_runs_the_last_report_stays_valid() {
        let host = Host::new("restart");
        let before = host.known(&[runtime("containerd", Some(&["/usr/lib/cni"]))]);
        assert_eq!(host.known(&[]), before);
        let renewed = |runtimes: &[_]| RuntimeReport::of(&host.root, runtimes).renewed().keep_in(&host.root);
        let is_renewed = || RuntimeReport::kept_in(&host.root).unwrap().is_renewed();
        renewed(&[runtime("containerd", None)]).unwrap();
        let old = SystemTime::now() - RENEWED_WITHIN * 2;
        File::open(host.root.join(RUNTIME)).unwrap().set_modified(old).unwrap();
        assert!(!is_renewed());
        renewed(&[]).unwrap();
        assert!(is_renewed());
        assert_ne!(host.known(&[runtime("crio", None)]), before);
    }
}
