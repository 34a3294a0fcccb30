//! The known keys of the plugin's entry in a conflist; finds unknown ones.

use serde_json::{Map, Value};

/// The plugin's own keys, and istio-cni's that it reads.
const PLUGIN: [&str; 18] = [
    "log_level",
    "backend",
    "probed",
    "exclude_namespaces",
    "pod_namespace",
    "gates",
    "inboundDefault",
    "ipv6",
    "max_intervals",
    "facts",
    "ambient",
    // istio-cni's, read by `istio_keys`.
    "kubernetes",
    "plugin_log_level",
    "cni_agent_run_dir",
    "ambient_enabled",
    "enablement_selectors",
    "native_nftables",
    "enable_ambient_detection_retry",
];

/// The keys of the CNI specification, and those that runtimes add.
const PROTOCOL: [&str; 14] = [
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "capabilities",
    "runtimeConfig",
    "prevResult",
    "ipam",
    "dns",
    "args",
    "disableCheck",
    "disableGC",
    "cni.dev/valid-attachments",
    "cni.dev/attachments",
];

/// The keys in `facts`.
const FACTS: [&str; 4] = ["socket", "directory", "kubeconfig", "deadline_ms"];

/// The keys in `probed`.
const PROBED: [&str; 2] = ["backend", "kernel"];

/// The keys in `ambient`.
const AMBIENT: [&str; 4] = ["dns_capture", "ipv6", "probe_ipv4", "probe_ipv6"];

/// The keys in `kubernetes`, of older releases of istio-cni.
const KUBERNETES: [&str; 5] =
    ["kubeconfig", "cni_bin_dir", "exclude_namespaces", "k8s_api_root", "node_name"];

/// Reports whether this key of an entry is one of the plugin's own, or one of istio-cni's that it reads.
#[must_use]
pub fn is_plugin_key(key: &str) -> bool {
    PLUGIN.contains(&key)
}

/// Returns the unknown keys of an entry, which may be misspelt; inside an object as `PARENT.KEY`.
pub fn unknown_keys(members: &Map<String, Value>) -> Vec<String> {
    // Go's encoding/json matches the specification's keys in any case; the plugin's are case-sensitive.
    let is_protocol = |key: &str| PROTOCOL.iter().any(|known| known.eq_ignore_ascii_case(key));
    let top = members.keys().filter(|key| !PLUGIN.contains(&key.as_str()) && !is_protocol(key));
    let mut unknown: Vec<_> = top.cloned().collect();
    let parents: [(&str, &[&str]); 4] =
        [("facts", &FACTS), ("probed", &PROBED), ("ambient", &AMBIENT), ("kubernetes", &KUBERNETES)];
    for (parent, known) in parents {
        let inside = members.get(parent).and_then(Value::as_object).into_iter().flat_map(Map::keys);
        let inside = inside.filter(|key| !known.contains(&key.as_str()));
        unknown.extend(inside.map(|key| format!("{parent}.{key}")));
    }
    unknown
}
