//! Finds our entry and programs in the directories of other kinds of node: left by an earlier install with
//! other directories, or because this node's kind was not recognized then.

use super::of_any_name;
use crate::host::entries::OurEntries;
use crate::host::image::PLUGIN;
use crate::host::observe::{NodeDirectories, conf_directory};
use crate::host::platform::Platform;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Directories that contain our entry or programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherDirectories {
    /// Conf directories with a file that names the plugin.
    pub conf: BTreeSet<PathBuf>,
    /// Directories with the plugin's program.
    pub programs: BTreeSet<PathBuf>,
}

impl OtherDirectories {
    /// Searches the directories of every kind of node except `directories`.
    #[must_use]
    pub fn than(directories: &NodeDirectories, root: &Path) -> Self {
        let mut found = Self::default();
        for other in Platform::all_node_directories(root) {
            if !is_same(&other.conf, &directories.conf) && has_entry(&other.conf) {
                found.conf.insert(other.conf);
            }
            if !is_same(&other.programs, &directories.programs)
                && other.programs.join(PLUGIN).symlink_metadata().is_ok()
            {
                found.programs.insert(other.programs);
            }
        }
        found
    }

    /// A note for the operator.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let listed = |directories: &BTreeSet<PathBuf>| {
            directories.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
        };
        let conf = (!self.conf.is_empty()).then(|| format!("a conf file in {} names it", listed(&self.conf)));
        let programs =
            (!self.programs.is_empty()).then(|| format!("its program is in {}", listed(&self.programs)));
        let both: Vec<_> = conf.into_iter().chain(programs).collect();
        (!both.is_empty()).then(|| {
            format!(
                "note: gybe-cni is also in directories of another kind of node, which were not changed: {}; name them \
                 with --conf-dir and --bin-dir",
                both.join(", and ")
            )
        })
    }

    /// Reports whether nothing was found.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.conf.is_empty() && self.programs.is_empty()
    }
}

/// Reports whether two paths lead to one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

fn has_entry(directory: &Path) -> bool {
    let conf = conf_directory::read(directory, &BTreeSet::new());
    OurEntries::find(&conf).is_anywhere() || of_any_name(directory).is_some()
}
