//! Which backend the entry names: the node's label, the settings' word, and the last findings there were.

use super::told::Told;
use crate::install::conflist::Chain;
use crate::install::seen::{Hashes, Interest, Places, look};
use crate::node::label::{Known, Label};
use crate::node_backend::{Found, NodeBackend, node_backend, word};
use crate::settings::{PLUGIN, Settings};
use gybe_netfilter::choose::Override;
use gybe_plugin::probe_cache::{ProbeCache, this_node};
use serde_json::{Value, json};
use std::time::Duration;

/// How long the first turn waits for the label: the API server is near, and if it is away the entry
/// that is there says what the label said.
const FIRST: Duration = Duration::from_secs(2);

/// The last findings, and the label.
#[derive(Debug)]
pub(super) struct Backend {
    cache: ProbeCache,
    found: Option<Found>,
    label: Known,
    has_waited: bool,
    /// The word of our own entry, from before we started.
    before: Option<String>,
}

impl Backend {
    pub(super) fn new(cache: ProbeCache) -> Self {
        Self { cache, found: None, label: Known::Nothing, has_waited: false, before: None }
    }

    /// What it comes to now.
    pub(super) fn look(
        &mut self,
        settings: &Settings,
        label: Option<&Label>,
        told: &mut Told<'_>,
    ) -> NodeBackend {
        let recalled = self.cache.recall();
        // Findings are forgotten for a moment now and then, and the last ones hold meanwhile.
        if let (Some(capabilities), Ok(node)) = (recalled, this_node()) {
            self.found = Some(Found { kernel: node.kernel, capabilities });
        }
        self.ask(label, &settings.ground.places);
        let label = match &self.label {
            Known::Says(label) => label.as_deref(),
            Known::Nothing => self.before.as_deref(),
        };
        let cluster = word(settings.choices.conf.backend.as_str()).unwrap_or(Override::Auto);
        let backend = node_backend(cluster, label, self.found.as_ref());
        told.state("label", ("warn", backend.note()), json!({}));
        backend
    }

    fn ask(&mut self, label: Option<&Label>, places: &Places) {
        let Some(label) = label else { return };
        if self.has_waited {
            self.label = label.read();
            return;
        }
        self.has_waited = true;
        self.label = label.wait(FIRST);
        if self.label == Known::Nothing {
            self.before = word_before(places);
        }
    }
}

/// Until the label is known, the word that is in the entry is the best anybody has: written over, it
/// would be another backend's for the moment until it is.
fn word_before(places: &Places) -> Option<String> {
    let seen = look(places, &Interest::default(), &mut Hashes::default());
    let contents = seen.conf.files.values().filter_map(|file| file.content.as_ref().ok());
    let entries = contents.filter_map(|bytes| {
        let chain = Chain::read(bytes).ok()?;
        serde_json::from_slice::<Value>(chain.entry(PLUGIN)?).ok()
    });
    entries.into_iter().find_map(|entry| entry.get("backend")?.as_str().map(str::to_owned))
}
