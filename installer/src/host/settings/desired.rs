//! From the settings, and what is known of the node, to the state the node is to be in: pure.

use super::{Mode, PodSource, Settings};
use crate::host::conflist::entry::{Entry, EntryError};
use crate::host::desired::{
    DesiredState, Install, Placement, PlacementOrder, Program, Shape, TakeOver, Uninstall,
};
use crate::host::image::PLUGIN;
use crate::host::image::{Image, OTHER_NAMES, TOOL};
use crate::host::observe::{FileName, Hash};
use crate::probe::node_backend::NodeBackend;
use gybe_plugin::conf::ProbeHint;
use gybe_plugin::network_conf::POD_ANNOTATIONS;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// What is known of the node.
#[derive(Debug, Clone)]
pub struct NodeContext<'a> {
    /// The programs to be placed.
    pub image: &'a Image,
    /// What this node's label or its probe came to; none is what the settings say for every node.
    pub backend: Option<&'a NodeBackend>,
    /// What goes beside it while nobody has found out anything.
    pub probed: Option<&'a ProbeHint>,
    /// Whether an istio-cni entry may be replaced now.
    pub take_over: TakeOver,
    /// What to do under istio-cni's name.
    pub stand_in: StandIn,
    /// Which of our programs may go when we leave.
    pub burial: ProgramRemoval,
}

/// What to do under istio-cni's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StandIn {
    /// Nothing: the name is free, and nobody asks; or the program is istio-cni's own.
    #[default]
    None,
    /// Nobody is there, and sandboxes will ask: our plugin answers them.
    IfAbsent,
    /// Our plugin is there, this very one, and goes on, also as a newer one.
    Ours(Hash),
    /// Our plugin is there, and nobody asks any more: this very one goes.
    Obsolete(Hash),
}

impl StandIn {
    /// Which of our plugins is there.
    fn there(self) -> Option<Hash> {
        match self {
            Self::Ours(hash) | Self::Obsolete(hash) => Some(hash),
            Self::None | Self::IfAbsent => None,
        }
    }
}

/// How long the plugin outlives the conf that named it: the kubelet gives up on a sandbox after 4 minutes at the latest
/// (docs/RULES.md, section 6.1).
pub const GRACE_PERIOD: Duration = Duration::from_secs(300);

/// Which of our programs may go when we leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProgramRemoval {
    /// The plugin stays, asked for or not: a sandbox may be on its way that is in no cache yet.
    Deferred,
    /// All that no living sandbox asks for.
    #[default]
    Now,
}

/// `gybe` under every further name it may have had.
fn further_names(image: &Image) -> impl Iterator<Item = Program> {
    OTHER_NAMES.into_iter().filter_map(|name| FileName::new(name).ok()).map(|name| image.also_as(&name))
}

/// Our plugin under istio-cni's name: as it stands there, also as an older one, or as it would.
fn stand_in(node: &NodeContext<'_>) -> Option<Program> {
    let program = node.image.istio_stand_in()?;
    Some(Program { hash: node.stand_in.there().unwrap_or(program.hash), ..program })
}

impl Settings {
    /// The state the node is to be in.
    ///
    /// # Errors
    /// Never with an entry that was made here; the type cannot say so.
    pub fn wanted(&self, node: &NodeContext<'_>) -> Result<DesiredState, EntryError> {
        match self.choices.mode {
            Mode::Install => self.installed(node).map(DesiredState::Installed),
            Mode::Leave => Ok(DesiredState::Uninstalled(self.left(node))),
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
        let tool = match self.choices.pod_source {
            PodSource::Api => PlacementOrder::BeforeEntry,
            PodSource::Agent => PlacementOrder::AfterEntry,
        };
        let programs = node.image.programs(tool, &self.choices.also_as).into_iter().chain(stand_in);
        let dropped = further_names(node.image);
        let dropped = dropped.filter(|program| !self.choices.also_as.contains(&program.name));
        Ok(Install {
            shape: self.choices.shape.clone(),
            pinned_by: self.choices.pinned_by,
            entry: self.entry(node)?,
            programs: programs.collect(),
            retired: stood_in.into_iter().chain(dropped).collect(),
            take_over: node.take_over,
            mode: self.ground.conf_mode,
            confirmed: self.choices.plugin_dir,
        })
    }

    fn left(&self, node: &NodeContext<'_>) -> Uninstall {
        let pinned = match &self.choices.shape {
            Shape::Chained { pinned } => pinned.clone(),
            Shape::Standalone { file } => Some(file.clone()),
            Shape::DropIn => None,
        };
        let programs = node.image.programs(PlacementOrder::AfterEntry, &BTreeSet::new());
        let (last, plugin): (Vec<_>, Vec<_>) =
            programs.into_iter().partition(|program| program.name.as_os_str() == TOOL);
        Uninstall {
            plugin: PLUGIN.to_owned(),
            pinned,
            programs: plugin.iter().map(|program| program.name.clone()).collect(),
            // Also what an `also_as` of before has named.
            retired: further_names(node.image).collect(),
            last: last.into_iter().map(|program| program.name).next(),
            rests: node.burial == ProgramRemoval::Deferred,
            tombstones: plugin.into_iter().chain(stand_in(node)).collect(),
            put_back: self.choices.put_back,
        }
    }

    /// The entry with this node's backend.
    fn entry(&self, node: &NodeContext<'_>) -> Result<Entry, EntryError> {
        let mut conf = self.choices.conf.clone();
        if let Some(backend) = node.backend {
            backend.write_into(&mut conf);
        }
        if let Some(probed) = node.probed.filter(|_| conf.probed == ProbeHint::default()) {
            conf.probed = probed.clone();
        }
        let mut members = self.choices.further.clone();
        members.extend(conf.to_members());
        let capabilities = json!({ POD_ANNOTATIONS: true });
        members.insert("capabilities".to_owned(), capabilities);
        let rest = Value::Object(members).to_string();
        // The type first, where a person looks for it.
        let text = format!("{{\"type\":\"{PLUGIN}\",{}", rest.trim_start_matches('{'));
        Entry::parse(text.as_bytes())
    }
}
