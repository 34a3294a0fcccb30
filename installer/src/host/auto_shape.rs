//! `shape: auto`: decides from the observed state where the entry belongs. Pure. A drop-in outlives what the primary
//! plugin writes, so it is preferred wherever it is certain that the runtime reads it.

use std::ffi::OsStr;

use super::conflist::{ISTIO, PluginChain, as_list};
use super::desired::{Install, Shape};
use super::entries::OurEntries;
use super::judge::primary;
use super::observe::runtimes::{DropIns, Possible, ReportWait};
use super::observe::{ConfDirectory, FileName, ORIGINAL, ObservedState};

/// The shape on this node, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoShape {
    /// `Shape::DropIn`, or `Shape::Chained` without a pinned file.
    pub shape: &'static Shape,
    pub reason: AutoReason,
}

/// Why `shape: auto` puts the entry where it does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AutoReason {
    #[error("the entry is a drop-in, which the runtime reads")]
    DropIn,
    #[error("no conf file of a primary plugin can be read; the entry stays where it is")]
    NoPrimary,
    #[error("the entry stays where it is until the probe has reported the container runtime")]
    Awaited,
    #[error(
        "the entry is in the primary's chain: only Multus reads this directory, and whether it reads drop-ins is unknown"
    )]
    OfMultus,
    #[error(
        "the entry is in the primary's chain: whether every runtime that may run here reads drop-ins is unknown"
    )]
    UnknownRuntime,
    #[error(
        "the entry is in the primary's chain: a runtime on this node does not read drop-ins, which need containerd 2.1 or CRI-O 1.34"
    )]
    OlderRuntime,
    #[error("the entry is in the primary's chain: the network of {0} accepts no drop-in files")]
    NoDropIns(FileName),
    #[error(
        "the entry is in the primary's chain: {0} was a single plugin's file, which accepts no drop-in files"
    )]
    WasSingle(FileName),
    #[error("the entry is in the primary's chain: {0} has istio-cni's entry, which Gybe's replaces")]
    HasIstio(FileName),
    #[error(
        "the entry is in the primary's chain: istio-cni's entry in {0} can be put back as long as its program is on the node"
    )]
    HadIstio(FileName),
}

/// Decides the shape. The changes that follow from an answer change it only after istio-cni's entry was replaced, and
/// then once.
#[must_use]
pub fn auto_shape(install: &Install, observed: &ObservedState) -> AutoShape {
    let (conf, runtimes) = (&observed.conf, &observed.runtimes);
    let chained = |reason| AutoShape { shape: &Shape::Chained { pinned: None }, reason };
    let drop_in = |reason| AutoShape { shape: &Shape::DropIn, reason };
    if conf.is_of_multus {
        return chained(AutoReason::OfMultus);
    }
    // After a boot the report comes within seconds. Until then a drop-in is not replaced by an entry that the primary may
    // overwrite, and no entry in a chain, which every runtime reads, by a drop-in.
    if runtimes.waits != ReportWait::Nothing {
        let ours = OurEntries::find(conf);
        return match ours.listed.is_empty() && !ours.drop_ins.is_empty() {
            true => drop_in(AutoReason::Awaited),
            false => chained(AutoReason::Awaited),
        };
    }
    // A runtime that ignores a drop-in starts every pod without redirection, so each one has to be known to read it.
    let mut ignoring = runtimes.possible.iter().filter(|one| one.drop_ins == DropIns::Ignored).peekable();
    if ignoring.peek().is_some() {
        let may_read =
            |one: &Possible| runtimes.possible.contains(&Possible { drop_ins: DropIns::Loaded, ..*one });
        return chained(match ignoring.all(may_read) {
            true => AutoReason::UnknownRuntime,
            false => AutoReason::OlderRuntime,
        });
    }
    // Nothing is written before there is a network, whatever the shape.
    let Some(primary) = primary(conf, install.entry.plugin(), runtimes) else {
        return drop_in(AutoReason::NoPrimary);
    };
    if primary.network.own_directory().is_none() {
        return chained(AutoReason::NoDropIns(primary.file));
    }
    // Removing the entry would restore the single file, which accepts no drop-ins.
    if was_single(conf, &primary.file, install.entry.plugin()) {
        return chained(AutoReason::WasSingle(primary.file));
    }
    // A drop-in would leave istio-cni's entry in the file, and pods would get the rules of both.
    if primary.network.plugins.iter().any(|kind| kind == ISTIO) {
        return chained(AutoReason::HasIstio(primary.file));
    }
    // Uninstalling restores the entry from the original, which only the chain keeps.
    if had_istio(conf, &primary.file) && has_istio_program(install, observed) {
        return chained(AutoReason::HadIstio(primary.file));
    }
    drop_in(AutoReason::DropIn)
}

/// The plugin list in a file; none if it has none.
fn chain<'a>(conf: &'a ConfDirectory, file: &FileName) -> Option<PluginChain<'a>> {
    PluginChain::read(conf.files.get(file)?.content.as_ref().ok()?).ok()
}

/// Reports whether Gybe made this list of a single plugin's file, which is set aside.
fn was_single(conf: &ConfDirectory, list: &FileName, plugin: &str) -> bool {
    let mut singles = conf.files.keys().filter_map(|aside| aside.without(ORIGINAL));
    chain(conf, list).is_some_and(|chain| chain.unlisted(plugin).is_some())
        && singles.any(|single| as_list(&single).contains(list))
}

/// Reports whether Gybe replaced istio-cni's entry in this file.
fn had_istio(conf: &ConfDirectory, file: &FileName) -> bool {
    chain(conf, &file.with(ORIGINAL)).is_some_and(|chain| chain.entry(ISTIO).is_some())
}

/// Reports whether the program with istio-cni's name is istio-cni's own.
fn has_istio_program(install: &Install, observed: &ObservedState) -> bool {
    let name = OsStr::new(ISTIO);
    let is_stand_in =
        install.programs.iter().chain(&install.retired).any(|program| program.name.as_os_str() == name);
    observed.programs.names.contains_key(name) && !is_stand_in
}
