//! The plugin's own keys in a network's entry: what the installer writes and the plugin reads.
//!
//! A key nobody knows is a warning, a wrong value of a known key an error. Add a key here, in
//! `conf/known.rs` and in `conf/print.rs`; how values are read is in `conf/entry.rs`, what the
//! incumbent's keys mean to us in `conf/incumbent.rs`.

mod entry;
mod incumbent;
mod known;
mod print;
mod probed;

pub use entry::{ConfError, WrongValue};
pub use known::{is_plugin_key, unknown_keys};
pub use probed::Probed;

use entry::Entry;
use gybe_netfilter::choose::BackendSetting;
use incumbent::Kubernetes;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// How the plugin is to behave, every key with its default filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginConf {
    /// From which weight on lines are logged.
    pub log_level: LogLevel,
    /// The configured backend.
    pub backend: BackendSetting,
    /// What the probe had found out when the entry was written.
    pub probed: Probed,
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
    /// How many intervals a list in an annotation may come to.
    pub max_intervals: MaxIntervals,
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

/// How many intervals (ports in a row, networks, interfaces) a list in an annotation may come to, 1 to
/// 65,536: whoever owns a pod must not make its node slow. 4,096 unless the operator says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxIntervals(u32);

impl MaxIntervals {
    /// As a length.
    #[must_use]
    pub fn get(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl Default for MaxIntervals {
    fn default() -> Self {
        Self(4096)
    }
}

/// Where to learn about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactsConf {
    /// The node agent's socket; [`SOCKET`] unless the entry says otherwise, or names a directory only.
    pub socket: Option<PathBuf>,
    /// A directory of manifests, `<namespace>/<name>.json`.
    pub directory: Option<PathBuf>,
    /// A kubeconfig to ask the API server with.
    pub kubeconfig: Option<PathBuf>,
    /// How long all sources together may take.
    pub deadline: Duration,
}

/// Where the node agent answers when nobody says otherwise.
pub const SOCKET: &str = "/run/gybe/facts.sock";
/// What the socket beside it is called, at which the agent takes log lines.
pub const LOG_SOCKET: &str = "log.sock";

impl Default for FactsConf {
    fn default() -> Self {
        let socket = Some(PathBuf::from(SOCKET));
        Self { socket, directory: None, kubeconfig: None, deadline: Duration::from_millis(2000) }
    }
}

const LOG_LEVELS: [(&str, LogLevel); 6] = [
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("warn", LogLevel::Warn),
    ("error", LogLevel::Error),
    ("none", LogLevel::None),
    ("", LogLevel::Info),
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

impl PluginConf {
    /// Reads the plugin's keys out of a network's entry.
    ///
    /// # Errors
    /// Names every key that has a wrong value, with the value and what would be right.
    pub fn read(members: &Map<String, Value>) -> Result<Self, ConfError> {
        let mut entry = Entry::top(members);
        let older = entry.inside("kubernetes", Kubernetes::read);
        let mut conf = Self {
            log_level: entry.word("log_level", &LOG_LEVELS),
            backend: entry.word("backend", &BackendSetting::ALL.map(|setting| (setting.as_str(), setting))),
            probed: entry.inside("probed", Probed::read),
            exclude_namespaces: entry.texts("exclude_namespaces"),
            pod_namespace: entry.text("pod_namespace"),
            gates: entry.word("gates", &GATES),
            inbound_default: entry.word("inboundDefault", &INBOUND),
            ipv6: entry.word("ipv6", &IPV6),
            max_intervals: entry.intervals("max_intervals").unwrap_or_default(),
            facts: entry.inside("facts", |facts| FactsConf::read(facts, &older)),
        };
        incumbent::read(&mut entry, older, &mut conf);
        entry.finish(conf)
    }
}

impl FactsConf {
    fn read(entry: &mut Entry<'_>, older: &Kubernetes) -> Self {
        let default = Self::default();
        let directory = entry.path("directory");
        let kubeconfig = match entry.says("kubeconfig") {
            true => entry.path("kubeconfig"),
            false => older.kubeconfig.clone(),
        };
        // Somebody with a directory and no word about a cluster has no agent.
        let alone = directory.is_some() && kubeconfig.is_none();
        let socket = match entry.says("socket") {
            true => entry.path("socket"),
            false => default.socket.filter(|_| !alone),
        };
        let deadline = entry.milliseconds("deadline_ms").unwrap_or(default.deadline);
        Self { socket, directory, kubeconfig, deadline }
    }

    /// The node agent's other socket, for log lines, which stands beside the one for facts.
    pub fn log_socket(&self) -> Option<PathBuf> {
        self.socket.as_ref().map(|socket| socket.with_file_name(LOG_SOCKET))
    }
}

/// What logging needs to know, for the lines that tell why the rest cannot be read.
pub fn logging(members: &Map<String, Value>) -> (LogLevel, Option<PathBuf>) {
    let mut entry = Entry::top(members);
    let level = match entry.says("log_level") {
        true => entry.word("log_level", &LOG_LEVELS),
        false => entry.word("plugin_log_level", &LOG_LEVELS),
    };
    let older = entry.inside("kubernetes", Kubernetes::read);
    (level, entry.inside("facts", |facts| FactsConf::read(facts, &older)).log_socket())
}

#[cfg(test)]
mod tests;
