//! The backend that the entry names, from the node's label, the settings and the last probe report.

use super::status_log::StatusLog;
use crate::cluster::{ObservedNode, OwnNode};
use crate::host::conflist::PluginChain;
use crate::host::image::PLUGIN;
use crate::host::observe::{HashCache, NodeDirectories, ObserveScope, observe};
use crate::host::settings::Settings;
use crate::log::Level;
use crate::probe::node_backend::{LABEL, NodeBackend, NodeProbe, node_backend};
use gybe_netfilter::probe::choose::BackendSetting;
use gybe_plugin::conf::{PluginConf, ProbeHint};
use gybe_plugin::probe_cache::{ProbeCache, this_node};
use serde_json::json;
use std::time::Duration;

/// How long the first turn waits for the label. A reachable API server responds within this time; without a response
/// the agent uses the label's last value, which is in the existing entry.
const LABEL_WAIT: Duration = Duration::from_secs(2);

/// The label of the node that names a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelState {
    /// The API server has not sent the node yet.
    Unknown,
    Absent,
    Set(String),
}

/// The last probe report, and the label.
#[derive(Debug)]
pub(super) struct Backend {
    cache: ProbeCache,
    probe: Option<NodeProbe>,
    label: LabelState,
    /// Our entry as it was before the first turn.
    initial: Option<InitialEntry>,
}

/// The backend in our entry as it was before the first turn, and the cluster's setting then.
#[derive(Debug)]
struct InitialEntry {
    cluster: BackendSetting,
    setting: Option<BackendSetting>,
    probed: Option<ProbeHint>,
}

impl Backend {
    pub(super) fn new(cache: ProbeCache) -> Self {
        Self { cache, probe: None, label: LabelState::Unknown, initial: None }
    }

    /// Decides the node's backend.
    pub(super) fn decide(
        &mut self,
        settings: &Settings,
        node: Option<&OwnNode>,
        log: &mut StatusLog<'_>,
    ) -> NodeBackend {
        // The plugin removes the report when a backend fails; until the next probe the agent uses the last one.
        if let (Some(capabilities), Ok(node)) = (self.cache.load(), this_node()) {
            self.probe = Some(NodeProbe { kernel: node.kernel, capabilities });
        }
        let cluster = settings.options.conf.backend;
        self.read_label(node, &settings.environment.directories, cluster);
        let label = match &self.label {
            LabelState::Set(label) => Some(label.as_str()),
            LabelState::Absent => None,
            LabelState::Unknown => {
                node.and(self.initial.as_ref()).and_then(|initial| initial.setting(cluster))
            }
        };
        let backend = node_backend(cluster, label, self.probe.as_ref());
        log.condition(Level::Warn, "gybe node: the node's label is ignored", backend.note(), json!({}));
        backend
    }

    /// Returns the probe result in our entry, until there is a report. It names the kernel for which it holds, so the
    /// entry may keep it; removing it would mean a write to the conf file at every boot.
    pub(super) fn recorded_probe(&self) -> Option<&ProbeHint> {
        self.initial.as_ref().filter(|_| self.probe.is_none())?.probed.as_ref()
    }

    fn read_label(&mut self, node: Option<&OwnNode>, directories: &NodeDirectories, cluster: BackendSetting) {
        let is_first = self.initial.is_none();
        if is_first {
            self.initial = Some(InitialEntry::read(directories, cluster));
        }
        let observed = node.and_then(|node| if is_first { node.wait(LABEL_WAIT) } else { node.read() });
        self.label = match observed {
            Some(ObservedNode { mut labels, .. }) => {
                labels.remove(LABEL).map_or(LabelState::Absent, LabelState::Set)
            }
            None => LabelState::Unknown,
        };
    }
}

impl InitialEntry {
    /// Reads the entry. The agent uses its setting until it knows the label, so that the backend does not change
    /// meanwhile.
    fn read(directories: &NodeDirectories, cluster: BackendSetting) -> Self {
        let observed = observe(directories, &ObserveScope::default(), &mut HashCache::default());
        let contents = observed.conf.files.values().filter_map(|file| file.content.as_ref().ok());
        let entries = contents.filter_map(|bytes| {
            let chain = PluginChain::read(bytes).ok()?;
            PluginConf::read(&serde_json::from_slice(chain.entry(PLUGIN)?).ok()?).ok()
        });
        let entry = entries.into_iter().next();
        let (setting, probed) = entry.map(|conf| (conf.backend, conf.probed)).unzip();
        Self { cluster, setting, probed }
    }

    /// Returns the setting, unless the cluster's setting changed since.
    fn setting(&self, cluster: BackendSetting) -> Option<&'static str> {
        self.setting.filter(|_| self.cluster == cluster).map(BackendSetting::as_str)
    }
}
