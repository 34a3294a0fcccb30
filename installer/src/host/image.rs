//! The programs as the image has them: what is copied to a node, known by its hash.

use crate::host::install::conflist::ISTIO;
use crate::host::install::seen::{FileName, Hash};
use crate::host::install::wanted::{Need, Place, Program, Trial};
use crate::host::settings::PLUGIN;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The operator's tool, and the agent.
pub const TOOL: &str = "gybe";
/// The tool as a pod's init container calls it.
pub const ISTIO_IPTABLES: &str = "istio-iptables";
/// The same in the images of Istio 1.0 to 1.2, whose script took flags alone.
pub const ISTIO_IPTABLES_SH: &str = "istio-iptables.sh";
/// A name under which the tool does nothing, and says so.
pub const ISTIO_CNI_TAINT: &str = "istio-cni-taint";
/// Further names that the tool may have on a host: those that `also_as` takes.
pub const OTHER_NAMES: [&str; 3] = [ISTIO_IPTABLES, ISTIO_IPTABLES_SH, ISTIO_CNI_TAINT];

/// Every name under which a program of ours may stand on a host.
pub fn every_name() -> impl Iterator<Item = &'static str> {
    [PLUGIN, TOOL, ISTIO].into_iter().chain(OTHER_NAMES)
}

/// Both programs of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    plugin: Program,
    tool: Program,
}

/// It lacks one.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the program {}", .path.display())]
pub struct ImageError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

impl Image {
    /// Reads both programs once: an image does not change under its container.
    pub fn look(directory: &Path) -> Result<Self, ImageError> {
        let plugin = program(directory, PLUGIN, Trial::CniVersion, Need::BeforeEntry)?;
        let tool = program(directory, TOOL, Trial::Version, Need::AfterEntry)?;
        Ok(Self { plugin, tool })
    }

    /// The programs for a node. `tool` says whether the plugin runs the tool: it does to ask the API server.
    #[must_use]
    pub fn programs(&self, tool: Need, also_as: &BTreeSet<FileName>) -> Vec<Program> {
        let tool = Program { need: tool, ..self.tool.clone() };
        let others = also_as.iter().map(|name| self.also_as(name));
        [self.plugin.clone(), tool].into_iter().chain(others).collect()
    }

    /// The tool under a further name.
    #[must_use]
    pub fn also_as(&self, name: &FileName) -> Program {
        Program { name: name.clone(), ..self.tool.clone() }
    }

    /// The plugin under istio-cni's name, where nothing is: it answers DEL, CHECK and VERSION for
    /// sandboxes that were made with istio-cni.
    #[must_use]
    pub fn istio_stand_in(&self) -> Option<Program> {
        let name = FileName::new(ISTIO).ok()?;
        Some(Program { name, place: Place::IfAbsent, need: Need::AfterEntry, ..self.plugin.clone() })
    }
}

fn program(directory: &Path, name: &str, trial: Trial, need: Need) -> Result<Program, ImageError> {
    let path = directory.join(name);
    let read = || {
        let hash = Hash::of_all(File::open(&path)?)?;
        let name = FileName::new(name).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        Ok(Program { name, source: path.clone(), hash, trial, place: Place::Always, need })
    };
    read().map_err(|source| ImageError { path: path.clone(), source })
}
