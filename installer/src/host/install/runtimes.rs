//! What is known about the container runtimes that may run on a node. Where nothing is known, every kind may.

use std::path::PathBuf;

use super::loads::DropIns;
use super::loads::choice::Runtime;

/// The runtimes that may run here, and what their configuration says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtimes {
    /// Each that may run here; never empty.
    pub possible: Vec<Possible>,
    /// What their configuration says about the directory that we place programs in.
    pub plugin_directory: ConfiguredDirectory,
    /// What it says about the conf directory.
    pub conf_directory: ConfiguredDirectory,
}

/// A runtime that may run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Possible {
    /// Which.
    pub runtime: Runtime,
    /// Whether it reads a network's own directory.
    pub drop_ins: DropIns,
}

/// What the runtimes' own configuration says about one of our directories.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ConfiguredDirectory {
    /// Nothing, or one runtime's this and another's that: the default depends on the build of the runtime (Debian's
    /// containerd has `/usr/lib/cni`).
    #[default]
    Unknown,
    /// Nothing yet: the probe has not reported.
    Awaited,
    /// Each runtime names this directory.
    Named,
    /// Each runtime names others: these.
    Others(Vec<PathBuf>),
}

impl Default for Runtimes {
    fn default() -> Self {
        Self::of([(Runtime::Containerd, None), (Runtime::CriO, None)])
    }
}

impl Runtimes {
    /// These kinds run here; what becomes of drop-ins may be unknown. Without any, every kind may run.
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
            plugin_directory: ConfiguredDirectory::Unknown,
            conf_directory: ConfiguredDirectory::Unknown,
        }
    }

    /// Each of them reads drop-ins: it was observed that one of ours is run.
    pub fn read_drop_ins(&mut self) {
        let mut read = self.possible.clone();
        read.retain(|one| one.drop_ins == DropIns::Loaded);
        if !read.is_empty() {
            self.possible = read;
        }
    }
}
