//! The keys of istio-cni, older and newer, so that an operator moves a conflist over by changing
//! `type` (docs/ISTIO.md, section 5). The plugin's own keys override them.

use super::reader::ConfReader;
use super::{LOG_LEVELS, PluginConf};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::probe::choose::BackendSetting;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The keys in `kubernetes`, where older releases have them.
pub(super) struct KubernetesKeys {
    pub(super) kubeconfig: Option<PathBuf>,
    exclude_namespaces: BTreeSet<String>,
}

/// Reads istio-cni's keys, and sets what the plugin's own keys do not.
pub(super) fn read(keys: &mut ConfReader<'_>, older: KubernetesKeys, conf: &mut PluginConf) {
    let level = keys.choice("plugin_log_level", &LOG_LEVELS);
    if !keys.contains("log_level") {
        conf.log_level = level;
    }
    if !keys.contains("exclude_namespaces") {
        conf.exclude_namespaces = older.exclude_namespaces;
    }
    // `false` means iptables in istio-cni, which has no third choice; here `auto` is better.
    if keys.boolean("native_nftables") && !keys.contains("backend") {
        conf.backend = BackendSetting::Only(BackendKind::Nft);
    }
    ambient(keys);
    // The directory of the incumbent's agent, which the plugin does not use; read to report a wrong value.
    let _ = keys.path("cni_agent_run_dir");
}

/// Refuses istio-cni's key for ambient mode: without the node agent its pods would start without redirection.
fn ambient(keys: &mut ConfReader<'_>) {
    if keys.boolean("ambient_enabled") {
        keys.refuse(
            "ambient_enabled",
            "false: the node agent writes the key ambient, and decides which pods are ambient",
        );
    }
    // Keys of ambient mode, without effect when it is off.
    let _ = keys.boolean("enable_ambient_detection_retry");
    keys.check_list("enablement_selectors");
}

impl KubernetesKeys {
    pub(super) fn read(keys: &mut ConfReader<'_>) -> Self {
        // Without effect; read to report a wrong value.
        let _ = keys.path("cni_bin_dir");
        Self { kubeconfig: keys.path("kubeconfig"), exclude_namespaces: keys.strings("exclude_namespaces") }
    }
}
