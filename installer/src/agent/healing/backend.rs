//! Which backend the entry names: the node's label, the settings' word, and the last findings there were.

use super::told::Told;
use crate::agent::label::{Known, Label};
use crate::host::conflist::PluginChain;
use crate::host::image::PLUGIN;
use crate::host::observe::{HashCache, NodeDirectories, ObserveScope, look};
use crate::host::settings::Settings;
use crate::probe::node_backend::{Found, NodeBackend, node_backend};
use gybe_netfilter::choose::BackendSetting;
use gybe_plugin::conf::{PluginConf, ProbeHint};
use gybe_plugin::probe_cache::{ProbeCache, this_node};
use serde_json::json;
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
    /// What our entry said before we started.
    before: Option<Before>,
}

/// What our entry said, and the cluster's setting then.
#[derive(Debug)]
struct Before {
    cluster: BackendSetting,
    word: Option<BackendSetting>,
    probed: Option<ProbeHint>,
}

impl Backend {
    pub(super) fn new(cache: ProbeCache) -> Self {
        Self { cache, found: None, label: Known::Nothing, before: None }
    }

    /// What it comes to now.
    pub(super) fn look(
        &mut self,
        settings: &Settings,
        label: Option<&Label>,
        told: &mut Told<'_>,
    ) -> NodeBackend {
        let recalled = self.cache.load();
        // Findings are forgotten for a moment now and then, and the last ones hold meanwhile.
        if let (Some(capabilities), Ok(node)) = (recalled, this_node()) {
            self.found = Some(Found { kernel: node.kernel, capabilities });
        }
        let cluster = settings.choices.conf.backend;
        self.ask(label, &settings.ground.places, cluster);
        let label = match &self.label {
            Known::Says(label) => label.as_deref(),
            Known::Nothing => label.and(self.before.as_ref()).and_then(|before| before.word(cluster)),
        };
        let backend = node_backend(cluster, label, self.found.as_ref());
        told.state("label", ("warn", backend.note()), json!({}));
        backend
    }

    /// What the entry said of the probe, while nobody has found out anything: true for a kernel it
    /// names, and so harmless, where to drop it would be a write at every boot.
    pub(super) fn probed(&self) -> Option<&ProbeHint> {
        self.before.as_ref().filter(|_| self.found.is_none())?.probed.as_ref()
    }

    fn ask(&mut self, label: Option<&Label>, places: &NodeDirectories, cluster: BackendSetting) {
        let is_first = self.before.is_none();
        if is_first {
            self.before = Some(Before::look(places, cluster));
        }
        self.label = match label {
            Some(label) if is_first => label.wait(FIRST),
            Some(label) => label.read(),
            None => Known::Nothing,
        };
    }
}

impl Before {
    /// Until the label is known, the word that is in the entry is the best anybody has: written over,
    /// it would be another backend's for the moment until it is.
    fn look(places: &NodeDirectories, cluster: BackendSetting) -> Self {
        let seen = look(places, &ObserveScope::default(), &mut HashCache::default());
        let contents = seen.conf.files.values().filter_map(|file| file.content.as_ref().ok());
        let entries = contents.filter_map(|bytes| {
            let chain = PluginChain::read(bytes).ok()?;
            PluginConf::read(&serde_json::from_slice(chain.entry(PLUGIN)?).ok()?).ok()
        });
        let entry = entries.into_iter().next();
        let (word, probed) = entry.map(|conf| (conf.backend, conf.probed)).unzip();
        Self { cluster, word, probed }
    }

    /// The word, unless the operator has chosen anew since.
    fn word(&self, cluster: BackendSetting) -> Option<&'static str> {
        self.word.filter(|_| self.cluster == cluster).map(BackendSetting::as_str)
    }
}
