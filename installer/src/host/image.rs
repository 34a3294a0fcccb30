//! The programs in the image: the files to be copied to a node, with their hashes.

use crate::host::conflist::ISTIO;
use crate::host::desired::{Placement, PlacementOrder, Program, Trial};
use crate::host::observe::{FileName, Hash};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Our plugin: the entry's type, and its program's name.
pub const PLUGIN: &str = "gybe-cni";
/// The operator's tool, and the agent.
pub const TOOL: &str = "gybe";
/// The tool's name as a pod's init container.
pub const ISTIO_IPTABLES: &str = "istio-iptables";
/// The name of the script in the images of Istio 1.0 to 1.2, which took only flags.
pub const ISTIO_IPTABLES_SH: &str = "istio-iptables.sh";
/// The tool's name as Istio's controller of the taint `NodeReadiness`.
pub const ISTIO_CNI_TAINT: &str = "istio-cni-taint";
/// Further names that the tool may have on a host: the values of `also_as`.
pub const OTHER_NAMES: [&str; 3] = [ISTIO_IPTABLES, ISTIO_IPTABLES_SH, ISTIO_CNI_TAINT];

/// Every name that a program of ours may have on a host.
pub fn every_name() -> impl Iterator<Item = &'static str> {
    [PLUGIN, TOOL, ISTIO].into_iter().chain(OTHER_NAMES)
}

/// Both programs of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    plugin: Program,
    tool: Program,
}

/// Why a program of the image cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the program {}", .path.display())]
pub struct ImageError {
    pub path: PathBuf,
    pub source: io::Error,
}

impl Image {
    /// Reads both programs once: an image does not change under its container.
    pub fn read(directory: &Path) -> Result<Self, ImageError> {
        let plugin = program(directory, PLUGIN, Trial::CniVersion, PlacementOrder::BeforeEntry)?;
        let tool = program(directory, TOOL, Trial::Version, PlacementOrder::AfterEntry)?;
        Ok(Self { plugin, tool })
    }

    /// The programs for a node. `tool` is `BeforeEntry` if the plugin runs the tool, as it does to query the
    /// API server.
    #[must_use]
    pub fn programs(&self, tool: PlacementOrder, also_as: &BTreeSet<FileName>) -> Vec<Program> {
        let tool = Program { need: tool, ..self.tool.clone() };
        let others = also_as.iter().map(|name| self.also_as(name));
        [self.plugin.clone(), tool].into_iter().chain(others).collect()
    }

    /// The tool under a further name.
    #[must_use]
    pub fn also_as(&self, name: &FileName) -> Program {
        Program { name: name.clone(), ..self.tool.clone() }
    }

    /// The plugin under istio-cni's name, placed if no file has the name: it serves DEL, CHECK and VERSION for
    /// sandboxes that were made with istio-cni.
    #[must_use]
    pub fn istio_stand_in(&self) -> Option<Program> {
        let name = FileName::new(ISTIO).ok()?;
        Some(Program {
            name,
            place: Placement::IfAbsent,
            need: PlacementOrder::AfterEntry,
            ..self.plugin.clone()
        })
    }
}

fn program(directory: &Path, name: &str, trial: Trial, need: PlacementOrder) -> Result<Program, ImageError> {
    let path = directory.join(name);
    let read = || {
        let hash = Hash::of_all(File::open(&path)?)?;
        let name = FileName::new(name).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        Ok(Program { name, source: path.clone(), hash, trial, place: Placement::Always, need })
    };
    read().map_err(|source| ImageError { path: path.clone(), source })
}

/// Reports whether the program's file `source` contains `text`, which identifies it whatever its file name is. Reads in
/// pieces: a container's memory may be smaller than the program.
pub(crate) fn has_text(mut source: impl Read, text: &[u8]) -> io::Result<bool> {
    let (mut piece, mut searched) = (vec![0; 1 << 16], Vec::new());
    loop {
        let read = source.read(&mut piece)?;
        if read == 0 {
            return Ok(false);
        }
        searched.extend_from_slice(piece.get(..read).unwrap_or_default());
        if memchr::memmem::find(&searched, text).is_some() {
            return Ok(true);
        }
        // The text may begin in this piece and end in the next one.
        searched.drain(..searched.len().saturating_sub(text.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"gybe-cni";

    #[test]
    fn text_is_found_wherever_a_piece_ends() {
        struct Pieces<'a>(std::slice::Chunks<'a, u8>);
        impl Read for Pieces<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                let piece = self.0.next().unwrap_or_default();
                into[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            }
        }
        let program = [b"gybe-c\0".as_slice(), TEXT, b"\0"].concat();
        for length in 1..=program.len() {
            assert!(has_text(Pieces(program.chunks(length)), TEXT).unwrap(), "{length}");
            assert!(
                !has_text(Pieces(program[..program.len() - 2].chunks(length)), TEXT).unwrap(),
                "{length}"
            );
        }
    }
}
