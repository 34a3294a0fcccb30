//! Which keys mean something in an entry; what they mean is in `conf`.

use serde_json::{Map, Value};

/// Every key of ours that means something in an entry.
const KNOWN: [&str; 17] = [
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
    // The incumbent's.
    "kubernetes",
    "plugin_log_level",
    "cni_agent_run_dir",
    "ambient_enabled",
    "enablement_selectors",
    "native_nftables",
    "enable_ambient_detection_retry",
];

/// The protocol's own, and what runtimes put beside them.
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

/// Every key that means something under `facts`.
const KNOWN_FACTS: [&str; 4] = ["socket", "directory", "kubeconfig", "deadline_ms"];

/// Every key that means something under `probed`.
const KNOWN_PROBED: [&str; 2] = ["backend", "kernel"];

/// Every key that means something under `kubernetes`, in the incumbent's older form.
const KNOWN_KUBERNETES: [&str; 5] =
    ["kubeconfig", "cni_bin_dir", "exclude_namespaces", "k8s_api_root", "node_name"];

/// Whether this key of an entry is one of the plugin's own, or one of istio-cni's that it reads.
#[must_use]
pub fn is_plugin_key(key: &str) -> bool {
    KNOWN.contains(&key)
}

/// Keys that mean nothing to us: worth a warning, since one may be a known key misspelt.
pub fn unknown_keys(members: &Map<String, Value>) -> Vec<String> {
    // The protocol's keys come in any case (Go reads them so); ours are read as they are written.
    let protocol = |key: &str| PROTOCOL.iter().any(|known| known.eq_ignore_ascii_case(key));
    let top = members.keys().filter(|key| !KNOWN.contains(&key.as_str()) && !protocol(key));
    let mut unknown: Vec<_> = top.cloned().collect();
    for (under, known) in
        [("facts", KNOWN_FACTS.as_slice()), ("probed", &KNOWN_PROBED), ("kubernetes", &KNOWN_KUBERNETES)]
    {
        let inside = members.get(under).and_then(Value::as_object).into_iter().flat_map(Map::keys);
        let inside = inside.filter(|key| !known.contains(&key.as_str()));
        unknown.extend(inside.map(|key| format!("{under}.{key}")));
    }
    unknown
}
