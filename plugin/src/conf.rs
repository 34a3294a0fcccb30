//! The plugin's own keys in a network's entry: what the installer writes and the plugin reads.
//!
//! A key nobody knows is a warning, a wrong value of a known key an error. Add a key here and in
//! [`KNOWN`]; how values are read is in `conf/entry.rs`.

mod entry;

pub use entry::{ConfError, WrongValue};

use entry::Entry;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// How the plugin is to behave, every key with its default filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginConf {
    /// From which weight on lines are logged.
    pub log_level: LogLevel,
    /// Which tool writes the rules.
    pub backend: BackendChoice,
    /// Namespaces whose pods are left alone.
    pub exclude_namespaces: BTreeSet<String>,
    /// The namespace the node agent runs in; empty when nobody said.
    pub pod_namespace: String,
    /// When a pod counts as part of the mesh.
    pub gates: Gates,
    /// Which inbound ports are captured when the pod does not say.
    pub inbound_default: InboundDefault,
    /// What becomes of IPv6.
    pub ipv6: Ipv6Choice,
    /// Where to learn about a pod.
    pub facts: FactsConf,
}

/// From which weight on lines are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// No line at all.
    None,
    /// Failures.
    Error,
    /// And what an operator should look at.
    Warn,
    /// And one line per call.
    #[default]
    Info,
    /// And why.
    Debug,
}

/// Which tool writes the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendChoice {
    /// The best one the node has.
    #[default]
    Auto,
    /// nftables over netlink.
    Nft,
    /// `iptables-nft-restore`.
    IptablesNft,
    /// `iptables-legacy-restore`.
    IptablesLegacy,
    /// Whichever iptables the node has.
    Iptables,
}

/// When a pod counts as part of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gates {
    /// As Istio decides today.
    #[default]
    Istio,
    /// Also two containers, and an inject value that is absent or true.
    Strict,
}

/// Which inbound ports are captured when the pod does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InboundDefault {
    /// Every port.
    #[default]
    All,
    /// The TCP ports its containers declare.
    ContainerPorts,
}

/// What becomes of a pod's IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ipv6Choice {
    /// Istio's rule: the first address decides, or `ISTIO_DUAL_STACK`.
    #[default]
    Auto,
    /// Redirected whenever the pod has an IPv6 address.
    Redirect,
    /// Always left alone.
    Leave,
    /// A pod whose IPv6 would be left alone is refused.
    Reject,
}

/// Where to learn about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactsConf {
    /// The node agent's socket.
    pub socket: Option<PathBuf>,
    /// A directory of manifests, `<namespace>/<name>.json`.
    pub directory: Option<PathBuf>,
    /// A kubeconfig to ask the API server with.
    pub kubeconfig: Option<PathBuf>,
    /// How long all sources together may take.
    pub deadline: Duration,
}

impl Default for FactsConf {
    fn default() -> Self {
        Self { socket: None, directory: None, kubeconfig: None, deadline: Duration::from_millis(2000) }
    }
}

/// Every key of ours that means something in an entry.
const KNOWN: [&str; 8] = [
    "log_level",
    "backend",
    "exclude_namespaces",
    "pod_namespace",
    "gates",
    "inboundDefault",
    "ipv6",
    "facts",
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

const LOG_LEVELS: [(&str, LogLevel); 6] = [
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("warn", LogLevel::Warn),
    ("error", LogLevel::Error),
    ("none", LogLevel::None),
    ("", LogLevel::Info),
];

const BACKENDS: [(&str, BackendChoice); 5] = [
    ("auto", BackendChoice::Auto),
    ("nft", BackendChoice::Nft),
    ("iptables-nft", BackendChoice::IptablesNft),
    ("iptables-legacy", BackendChoice::IptablesLegacy),
    ("iptables", BackendChoice::Iptables),
];

const GATES: [(&str, Gates); 2] = [("istio", Gates::Istio), ("strict", Gates::Strict)];

const INBOUND: [(&str, InboundDefault); 2] =
    [("all", InboundDefault::All), ("containerPorts", InboundDefault::ContainerPorts)];

const IPV6: [(&str, Ipv6Choice); 4] = [
    ("auto", Ipv6Choice::Auto),
    ("redirect", Ipv6Choice::Redirect),
    ("leave", Ipv6Choice::Leave),
    ("reject", Ipv6Choice::Reject),
];

impl BackendChoice {
    /// The word for it in an entry.
    pub fn as_str(self) -> &'static str {
        BACKENDS.iter().find(|(_, choice)| *choice == self).map_or("", |(word, _)| word)
    }
}

impl PluginConf {
    /// Reads the plugin's keys out of a network's entry.
    ///
    /// # Errors
    /// Names every key that has a wrong value, with the value and what would be right.
    pub fn read(members: &Map<String, Value>) -> Result<Self, ConfError> {
        let mut entry = Entry::top(members);
        let conf = Self {
            log_level: entry.word("log_level", &LOG_LEVELS),
            backend: entry.word("backend", &BACKENDS),
            exclude_namespaces: entry.texts("exclude_namespaces"),
            pod_namespace: entry.text("pod_namespace"),
            gates: entry.word("gates", &GATES),
            inbound_default: entry.word("inboundDefault", &INBOUND),
            ipv6: entry.word("ipv6", &IPV6),
            facts: entry.inside("facts", FactsConf::read),
        };
        entry.finish(conf)
    }
}

impl FactsConf {
    fn read(entry: &mut Entry<'_>) -> Self {
        let default = Self::default();
        Self {
            socket: entry.path("socket"),
            directory: entry.path("directory"),
            kubeconfig: entry.path("kubeconfig"),
            deadline: entry.milliseconds("deadline_ms").unwrap_or(default.deadline),
        }
    }
}

/// The log level alone, for the lines that tell why the rest cannot be read.
pub fn log_level(members: &Map<String, Value>) -> LogLevel {
    Entry::top(members).word("log_level", &LOG_LEVELS)
}

/// Keys that mean nothing to us: worth a warning, since one may be a known key misspelt.
pub fn unknown_keys(members: &Map<String, Value>) -> Vec<String> {
    // The protocol's keys come in any case (Go reads them so); ours are read as they are written.
    let protocol = |key: &str| PROTOCOL.iter().any(|known| known.eq_ignore_ascii_case(key));
    let top = members.keys().filter(|key| !KNOWN.contains(&key.as_str()) && !protocol(key));
    let facts = members.get("facts").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let facts = facts.filter(|key| !KNOWN_FACTS.contains(&key.as_str()));
    top.cloned().chain(facts.map(|key| format!("facts.{key}"))).collect()
}

#[cfg(test)]
mod tests;
