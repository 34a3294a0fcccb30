//! What was seen of the runtimes that run on a node: looked at where the host's root and processes are seen, and kept
//! in `/run/gybe/runtime.json` for the agent, which sees neither.

use std::path::{Path, PathBuf};

use gybe_plugin::probe_cache::{RUNTIME, kept, place};
use nix::sys::stat::stat;
use serde::{Deserialize, Serialize};

use crate::doctor::sight::RuntimeSeen;
use crate::install::loads::DropIns;
use crate::install::loads::choice::Runtime;
use crate::install::runtimes::{PluginDirectory, Runtimes};
use crate::runtime_config::seen_at;

/// The runtimes that run on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    runtimes: Vec<OfRuntime>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OfRuntime {
    /// `containerd` or `crio`.
    name: String,
    /// Whether it reads a network's own directory, where that is known.
    reads_drop_ins: Option<bool>,
    /// Where its configuration says that it looks for plugins, if it says so.
    plugin_dirs: Option<Vec<Directory>>,
}

/// A directory of the host's. A mount of it has the same numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Directory {
    path: PathBuf,
    /// Device and inode; none when it is not there.
    identity: Option<(u64, u64)>,
}

impl Report {
    /// Of those that were seen where the host's root is at `root`.
    #[must_use]
    pub fn of(root: &Path, seen: &[RuntimeSeen]) -> Self {
        let directory =
            |path: &PathBuf| Directory { path: path.clone(), identity: identity(&seen_at(root, path)) };
        let of_runtime = |one: &RuntimeSeen| OfRuntime {
            name: one.name.clone(),
            reads_drop_ins: one.drop_ins.map(|drop_ins| drop_ins == DropIns::Loaded),
            plugin_dirs: one.plugin_dirs.as_ref().map(|dirs| dirs.iter().map(directory).collect()),
        };
        Self { runtimes: seen.iter().map(of_runtime).collect() }
    }

    /// The one that is kept in `directory`, if root wrote one.
    #[must_use]
    pub fn kept_in(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&kept(&directory.join(RUNTIME))?.0).ok()
    }

    /// Keeps it, unless it is kept already.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_in(&self, directory: &Path) -> std::io::Result<()> {
        if Self::kept_in(directory).as_ref() == Some(self) {
            return Ok(());
        }
        place(directory, RUNTIME, &serde_json::to_string(self)?)
    }

    /// What that means for a node whose programs are placed in `programs`.
    #[must_use]
    pub fn known(&self, programs: &Path) -> Runtimes {
        let kind = |name: &str| if name == "crio" { Runtime::CriO } else { Runtime::Containerd };
        let drop_ins = |reads: bool| if reads { DropIns::Loaded } else { DropIns::Ignored };
        let kinds = self.runtimes.iter().map(|one| (kind(&one.name), one.reads_drop_ins.map(drop_ins)));
        Runtimes { plugin_directory: self.plugin_directory(programs), ..Runtimes::of(kinds) }
    }

    /// Where one of several runtimes says nothing, nothing is known: it may be the one that starts pods.
    fn plugin_directory(&self, programs: &Path) -> PluginDirectory {
        let all: Option<Vec<_>> = self.runtimes.iter().map(|one| one.plugin_dirs.as_ref()).collect();
        let (Some(all), Some(ours)) = (all.filter(|all| !all.is_empty()), identity(programs)) else {
            return PluginDirectory::Unknown;
        };
        let names_ours = |dirs: &&&Vec<Directory>| dirs.iter().any(|one| one.identity == Some(ours));
        match all.iter().find(|dirs| !names_ours(dirs)) {
            None => PluginDirectory::Named,
            Some(others) => PluginDirectory::Others(others.iter().map(|one| one.path.clone()).collect()),
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::sight::Watches;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn seen(name: &str, dirs: Option<&[&str]>) -> RuntimeSeen {
        RuntimeSeen {
            name: name.to_owned(),
            pid: 7,
            watches: Watches::Unknown,
            drop_ins: Some(DropIns::Loaded),
            plugin_dirs: dirs.map(|dirs| dirs.iter().map(PathBuf::from).collect()),
        }
    }

    #[test]
    fn f37_a_plugin_directory_is_known_by_what_it_is_and_not_by_its_path() {
        let root = std::env::temp_dir().join(format!("gybe-report-{}", std::process::id()));
        for folder in ["opt/cni/bin", "usr/lib/cni"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        // As it is mounted in the agent's container.
        symlink(root.join("opt/cni/bin"), root.join("mounted")).unwrap();
        let mounted = root.join("mounted");
        let known = |all: &[RuntimeSeen]| {
            Report::of(&root, all).keep_in(&root).unwrap();
            Report::kept_in(&root).unwrap().known(&mounted)
        };
        let of_containerd = |dirs| known(&[seen("containerd", dirs)]).plugin_directory;
        assert_eq!(of_containerd(Some(&["/usr/lib/cni", "/opt/cni/bin/"])), PluginDirectory::Named);
        assert_eq!(
            of_containerd(Some(&["/usr/lib/cni"])),
            PluginDirectory::Others(vec!["/usr/lib/cni".into()])
        );
        assert_eq!(of_containerd(None), PluginDirectory::Unknown);
        let both = known(&[seen("containerd", None), seen("crio", Some(&["/opt/cni/bin"]))]);
        assert_eq!(both.plugin_directory, PluginDirectory::Unknown, "either may start the pods");
        assert_eq!(both.possible.len(), 2);
        assert_eq!(known(&[]), Runtimes::default());
        fs::write(root.join(RUNTIME), "{").unwrap();
        assert_eq!(Report::kept_in(&root), None);
        fs::remove_dir_all(root).unwrap();
    }
}
