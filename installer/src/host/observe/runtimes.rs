//! What is known about the container runtimes of a node. If nothing is known, a runtime of any kind may run.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// A container runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// Loads no network while a broken file sorts before the first valid one.
    Containerd,
    /// Skips broken files.
    CriO,
}

/// Whether the files in a network's own directory belong to its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropIns {
    /// The plugins in `<dir>/<name>/` are appended.
    Loaded,
    /// They are not appended: libcni is older than 1.3, the file has `loadOnlyInlinedPlugins`, or it is a single
    /// plugin.
    Ignored,
}

/// The runtimes that may run here, and what their configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtimes {
    /// Never empty.
    pub possible: Vec<Possible>,
    /// What the agent leaves undone until the probe has reported them.
    pub waits: ReportWait,
    /// Whether their configuration names the directory that we place programs in.
    pub plugin_directory: ConfiguredDirectory,
    /// Whether it names the conf directory.
    pub conf_directory: ConfiguredDirectory,
    /// Where each runtime looks for programs, in its order; empty unless `plugin_directory` is named.
    pub search_paths: Vec<Vec<SearchedDirectory>>,
    /// The only network that CRI-O uses, if its configuration names one (`cni_default_network`).
    pub crio_network: Option<String>,
    /// Whether containerd sets up `lo` itself (`use_internal_loopback`); if not, it runs the plugin `loopback`.
    pub has_internal_loopback: bool,
    /// How many networks containerd attaches a pod to (`max_conf_num`); none for one.
    pub several_networks: Option<NetworkCount>,
    /// containerd's runtime handlers with another conf directory (`cni_conf_dir`) without our entry, and that directory.
    pub handlers_elsewhere: Vec<(String, PathBuf)>,
    /// Those with our entry, which an operator has added.
    pub handlers_with_entry: Vec<(String, PathBuf)>,
}

/// How many conf files containerd loads, where it is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkCount {
    All,
    AtMost(usize),
}

/// A directory in which a runtime looks for programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchedDirectory {
    pub path: PathBuf,
    /// Whether it is the one that we place programs in.
    pub is_ours: bool,
    /// Whether the host's mount forbids to run programs.
    pub is_noexec: bool,
    /// Its files, and whether each is executable; none where it was not listed.
    pub programs: Option<BTreeMap<String, bool>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Possible {
    pub runtime: Runtime,
    /// Whether it reads a network's own directory.
    pub drop_ins: DropIns,
}

/// What the agent leaves undone until the probe has reported the runtimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportWait {
    /// The report is there, or the agent no longer waits.
    Nothing,
    /// It does not move an entry between chain and drop-in (`shape: auto`).
    Move,
    /// It does not write an entry either.
    Entry,
}

/// Whether the runtimes' configuration names one of our directories.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ConfiguredDirectory {
    /// Nothing, or the runtimes differ. The default depends on the build of the runtime (Debian's containerd
    /// has `/usr/lib/cni`).
    #[default]
    Unknown,
    /// Each runtime names our directory.
    Named,
    /// Each runtime names other directories: these.
    Others(Vec<PathBuf>),
}

impl Default for Runtimes {
    fn default() -> Self {
        Self::of([(Runtime::Containerd, None), (Runtime::CriO, None)])
    }
}

impl Runtimes {
    /// Runtimes of these kinds; it may be unknown whether they read drop-ins. Without any, every kind may run.
    #[must_use]
    pub fn of(kinds: impl IntoIterator<Item = (Runtime, Option<DropIns>)>) -> Self {
        let mut possible = Vec::new();
        for (runtime, known) in kinds {
            for drop_ins in [DropIns::Loaded, DropIns::Ignored] {
                let one = Possible { runtime, drop_ins };
                if known.is_none_or(|known| known == drop_ins) && !possible.contains(&one) {
                    possible.push(one);
                }
            }
        }
        if possible.is_empty() {
            return Self::default();
        }
        Self {
            possible,
            waits: ReportWait::Nothing,
            plugin_directory: ConfiguredDirectory::Unknown,
            conf_directory: ConfiguredDirectory::Unknown,
            search_paths: Vec::new(),
            crio_network: None,
            has_internal_loopback: false,
            several_networks: None,
            handlers_elsewhere: Vec::new(),
            handlers_with_entry: Vec::new(),
        }
    }

    /// Records that they may have been replaced, so that it is unknown whether they read drop-ins.
    pub fn forget_drop_ins(&mut self) {
        self.possible = Self::of(self.possible.iter().map(|one| (one.runtime, None))).possible;
    }

    /// Records that they read drop-ins: one of them called our plugin, which only a drop-in names.
    pub fn read_drop_ins(&mut self) {
        let mut read = self.possible.clone();
        read.retain(|one| one.drop_ins == DropIns::Loaded);
        if !read.is_empty() {
            self.possible = read;
        }
    }
}
