//! The keys of Istio's own plugin, older and newer, so that a conflist is moved over by changing
//! `type` (docs/ISTIO.md, section 5). Where one of our keys says the same, ours counts.

use super::entry::Entry;
use super::{LOG_LEVELS, PluginConf};
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::choose::BackendSetting;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What stood under `kubernetes` before the keys moved to the top.
pub(super) struct Kubernetes {
    /// Read with the other sources of facts.
    pub(super) kubeconfig: Option<PathBuf>,
    exclude_namespaces: BTreeSet<String>,
}

/// Reads the others, and completes what ours left open.
pub(super) fn read(entry: &mut Entry<'_>, older: Kubernetes, conf: &mut PluginConf) {
    let level = entry.word("plugin_log_level", &LOG_LEVELS);
    if !entry.says("log_level") {
        conf.log_level = level;
    }
    if !entry.says("exclude_namespaces") {
        conf.exclude_namespaces = older.exclude_namespaces;
    }
    // `false` asks for iptables where Istio has no third choice; here the default is better.
    if entry.yes("native_nftables") && !entry.says("backend") {
        conf.backend = BackendSetting::Only(BackendKind::Nft);
    }
    ambient(entry);
    // The run directory holds the incumbent's agent's kubeconfig and sockets; ours asks ours.
    let _ = entry.path("cni_agent_run_dir");
}

/// A pod of the ambient mode would start without its redirection, so the mode is refused.
fn ambient(entry: &mut Entry<'_>) {
    if entry.yes("ambient_enabled") {
        entry.refuse("ambient_enabled", "false: gybe-cni redirects to sidecars, and has no ambient mode");
    }
    // Of the same mode, and without meaning when it is off.
    let _ = entry.yes("enable_ambient_detection_retry");
    entry.list("enablement_selectors");
}

impl Kubernetes {
    pub(super) fn read(entry: &mut Entry<'_>) -> Self {
        // Means nothing here; read so that a wrong one is told.
        let _ = entry.path("cni_bin_dir");
        Self { kubeconfig: entry.path("kubeconfig"), exclude_namespaces: entry.texts("exclude_namespaces") }
    }
}
