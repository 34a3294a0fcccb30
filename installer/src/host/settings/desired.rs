//! Computes the desired state from the settings and the facts of the node: pure.

use super::{NodeMode, PodSource, Settings};
use crate::host::conflist::entry::{Entry, EntryError};
use crate::host::desired::{
    DesiredState, Install, Placement, PlacementOrder, Program, Shape, TakeOver, Uninstall,
};
use crate::host::image::{Image, OTHER_NAMES, PLUGIN, TOOL};
use crate::host::observe::{FileName, Hash};
use crate::probe::node_backend::NodeBackend;
use gybe_plugin::conf::ProbeHint;
use gybe_plugin::network_conf::POD_ANNOTATIONS;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// The facts of a node.
#[derive(Debug, Clone)]
pub struct NodeContext<'a> {
    /// The programs to be placed.
    pub image: &'a Image,
    /// The backend from this node's label or probe report; none for the configured backend.
    pub backend: Option<&'a NodeBackend>,
    /// The probe report to write until there is a newer one.
    pub probed: Option<&'a ProbeHint>,
    /// Whether an istio-cni entry may be replaced now.
    pub take_over: TakeOver,
    pub stand_in: StandIn,
    pub program_removal: ProgramRemoval,
}

/// What to do with the program name istio-cni.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StandIn {
    /// Nothing: the name is free and no sandbox needs it, or the program is istio-cni's own.
    #[default]
    None,
    /// No program has it, and sandboxes will need it: our plugin answers them.
    IfAbsent,
    /// Our plugin, with this hash, has it and stays, or is replaced by a newer one.
    Ours(Hash),
    /// Our plugin, with this hash, has it, and no sandbox needs it any more: it is removed.
    Obsolete(Hash),
}

impl StandIn {
    /// The hash of our plugin under that name.
    fn there(self) -> Option<Hash> {
        match self {
            Self::Ours(hash) | Self::Obsolete(hash) => Some(hash),
            Self::None | Self::IfAbsent => None,
        }
    }
}

/// How long the plugin stays after the conf stopped naming it: the kubelet gives up on a sandbox after 4 minutes at the
/// latest (docs/RULES.md, section 6.1).
pub const GRACE_PERIOD: Duration = Duration::from_secs(300);

/// Which of our programs an uninstall removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProgramRemoval {
    /// The plugin stays, needed or not: a sandbox may be in the making that is in no cache yet.
    Deferred,
    /// All programs that no existing sandbox needs.
    #[default]
    Now,
}

/// `gybe` under every further name that it may have had.
fn further_names(image: &Image) -> impl Iterator<Item = Program> {
    OTHER_NAMES.into_iter().filter_map(|name| FileName::new(name).ok()).map(|name| image.also_as(&name))
}

/// Our plugin under istio-cni's name: the installed one, possibly older, or the one to be placed.
fn stand_in(node: &NodeContext<'_>) -> Option<Program> {
    let program = node.image.istio_stand_in()?;
    Some(Program { hash: node.stand_in.there().unwrap_or(program.hash), ..program })
}

impl Settings {
    /// The desired state.
    ///
    /// # Errors
    /// Never in practice: settings make a valid entry.
    pub fn desired(&self, node: &NodeContext<'_>) -> Result<DesiredState, EntryError> {
        match self.options.mode {
            NodeMode::Install => self.installed(node).map(DesiredState::Installed),
            NodeMode::Leave => Ok(DesiredState::Uninstalled(self.uninstalled(node))),
        }
    }

    fn installed(&self, node: &NodeContext<'_>) -> Result<Install, EntryError> {
        let place = |place| node.image.istio_stand_in().map(|program| Program { place, ..program });
        let (stand_in, stood_in) = match node.stand_in {
            StandIn::None => (None, None),
            StandIn::IfAbsent => (place(Placement::IfAbsent), None),
            StandIn::Ours(_) => (place(Placement::Always), None),
            StandIn::Obsolete(_) => (None, stand_in(node)),
        };
        let tool = match self.options.pod_source {
            PodSource::Api => PlacementOrder::BeforeEntry,
            PodSource::Agent => PlacementOrder::AfterEntry,
        };
        let programs = node.image.programs(tool, &self.options.also_as).into_iter().chain(stand_in);
        let dropped = further_names(node.image);
        let dropped = dropped.filter(|program| !self.options.also_as.contains(&program.name));
        Ok(Install {
            shape: self.options.shape.clone(),
            pinned_by: self.options.pinned_by,
            entry: self.entry(node)?,
            programs: programs.collect(),
            retired: stood_in.into_iter().chain(dropped).collect(),
            take_over: node.take_over,
            mode: self.environment.conf_mode,
            confirmed: self.options.plugin_dir,
        })
    }

    fn uninstalled(&self, node: &NodeContext<'_>) -> Uninstall {
        let pinned = match self.options.shape.fixed() {
            Some(Shape::Chained { pinned }) => pinned.clone(),
            Some(Shape::Standalone { file }) => Some(file.clone()),
            Some(Shape::DropIn) | None => None,
        };
        let programs = node.image.programs(PlacementOrder::AfterEntry, &BTreeSet::new());
        let (last, plugin): (Vec<_>, Vec<_>) =
            programs.into_iter().partition(|program| program.name.as_os_str() == TOOL);
        Uninstall {
            plugin: PLUGIN.to_owned(),
            pinned,
            programs: plugin.iter().map(|program| program.name.clone()).collect(),
            // Includes the names of an earlier `also_as`.
            retired: further_names(node.image).collect(),
            last: last.into_iter().map(|program| program.name).next(),
            in_grace_period: node.program_removal == ProgramRemoval::Deferred,
            tombstones: plugin,
            stand_in: stand_in(node).map(|program| program.hash),
            put_back: self.options.put_back,
        }
    }

    /// The entry with this node's backend.
    fn entry(&self, node: &NodeContext<'_>) -> Result<Entry, EntryError> {
        let mut conf = self.options.conf.clone();
        if let Some(backend) = node.backend {
            backend.write_into(&mut conf);
        }
        if let Some(probed) = node.probed.filter(|_| conf.probed == ProbeHint::default()) {
            conf.probed = probed.clone();
        }
        let mut members = self.options.unknown_members.clone();
        members.extend(conf.to_members());
        let capabilities = json!({ POD_ANNOTATIONS: true });
        members.insert("capabilities".to_owned(), capabilities);
        let rest = Value::Object(members).to_string();
        // The type comes first, where a reader expects it.
        let text = format!("{{\"type\":\"{PLUGIN}\",{}", rest.trim_start_matches('{'));
        Entry::parse(text.as_bytes())
    }
}
