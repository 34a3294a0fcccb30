//! From the settings, and what is known of the node, to the state the node is to be in: pure.

use super::{Mode, PLUGIN, Settings};
use crate::image::Image;
use crate::install::entry::{Entry, EntryError};
use crate::install::wanted::{Install, Leave, Shape, TakeOver, Wanted};
use crate::node_backend::NodeBackend;

/// What is known of the node.
#[derive(Debug, Clone)]
pub struct OnNode<'a> {
    /// The programs to be placed.
    pub image: &'a Image,
    /// What this node's label and its probe came to; none is what the settings say for every node.
    pub backend: Option<&'a NodeBackend>,
    /// Whether an istio-cni entry may be replaced now.
    pub take_over: TakeOver,
    /// Whether something has to answer under istio-cni's name, if nothing does.
    pub stand_in: bool,
}

impl Settings {
    /// The state the node is to be in.
    ///
    /// # Errors
    /// Never with an entry that was made here; the type cannot say so.
    pub fn wanted(&self, node: &OnNode<'_>) -> Result<Wanted, EntryError> {
        match self.choices.mode {
            Mode::Install => self.installed(node).map(Wanted::Installed),
            Mode::Leave => Ok(Wanted::Left(self.left(node))),
        }
    }

    fn installed(&self, node: &OnNode<'_>) -> Result<Install, EntryError> {
        let stand_in = node.image.istio_stand_in().filter(|_| node.stand_in);
        let programs = node.image.programs(&self.choices.also_as).into_iter().chain(stand_in);
        Ok(Install {
            shape: self.choices.shape.clone(),
            entry: self.entry(node.backend)?,
            programs: programs.collect(),
            take_over: node.take_over,
            mode: self.ground.conf_mode,
        })
    }

    fn left(&self, node: &OnNode<'_>) -> Leave {
        let pinned = match &self.choices.shape {
            Shape::Chained { pinned } => pinned.clone(),
            Shape::Standalone { file } => Some(file.clone()),
            Shape::DropIn => None,
        };
        let programs = node.image.programs(&self.choices.also_as);
        let tombstones = programs.iter().filter(|program| program.name.as_os_str() == PLUGIN).cloned();
        Leave {
            plugin: PLUGIN.to_owned(),
            pinned,
            programs: programs.iter().map(|program| program.name.clone()).collect(),
            tombstones: tombstones.chain(node.image.istio_stand_in()).collect(),
            put_back: self.choices.put_back,
        }
    }

    /// An operator's own entry, letter by letter; else ours, with this node's backend.
    fn entry(&self, backend: Option<&NodeBackend>) -> Result<Entry, EntryError> {
        if let Some(entry) = &self.choices.entry {
            return Ok(entry.clone());
        }
        let mut conf = self.choices.conf.clone();
        if let Some(backend) = backend {
            backend.write_into(&mut conf);
        }
        let mut members = conf.to_members();
        let capabilities = serde_json::json!({ "io.kubernetes.cri.pod-annotations": true });
        members.insert("capabilities".to_owned(), capabilities);
        let rest = serde_json::Value::Object(members).to_string();
        // The type first, where a person looks for it.
        let text = format!("{{\"type\":\"{PLUGIN}\",{}", rest.trim_start_matches('{'));
        Entry::parse(text.as_bytes())
    }
}
