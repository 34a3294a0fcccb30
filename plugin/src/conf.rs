//! The plugin's keys in its entry of a conflist: the installer writes them, and the plugin reads them.
//!
//! An unknown key is a warning, a wrong value of a known key an error. A new key is added here and in
//! `conf/keys.rs`. `conf/reader.rs` reads typed values, `conf/istio_keys.rs` the keys of istio-cni.

mod ambient;
mod istio_keys;
mod keys;
mod reader;

pub use ambient::AmbientConf;
pub use keys::{is_plugin_key, unknown_keys};
pub use reader::{ConfError, WrongValue, joined};

use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::probe::choose::BackendSetting;
use istio_keys::KubernetesKeys;
use reader::ConfReader;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// The plugin's configuration, with defaults for missing keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginConf {
    /// The least severe level that is logged.
    pub log_level: LogLevel,
    /// The configured backend.
    pub backend: BackendSetting,
    /// The probe's finding when the installer wrote the keys.
    pub probed: ProbeHint,
    /// Namespaces whose pods are left alone.
    pub exclude_namespaces: BTreeSet<String>,
    /// The namespace in which the node agent runs; empty when it is unknown.
    pub pod_namespace: String,
    /// The conditions for redirecting a pod.
    pub gates: Gates,
    /// The inbound ports that are captured when the pod has no annotation.
    pub inbound_default: InboundDefault,
    /// Whether IPv6 is redirected.
    pub ipv6: Ipv6Setting,
    /// The most intervals that a list in an annotation may have.
    pub max_intervals: MaxIntervals,
    /// The sources of facts about pods.
    pub facts: FactsConf,
    /// How ambient pods are redirected; none where ambient mode is off.
    pub ambient: Option<AmbientConf>,
}

/// The least severe level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Nothing.
    None,
    /// Errors.
    Error,
    /// Also warnings.
    Warn,
    /// Also one line per ADD.
    #[default]
    Info,
    /// Also one line per call of the other verbs.
    Debug,
}

/// The conditions for redirecting a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gates {
    /// Istio's conditions.
    #[default]
    Istio,
    /// Also two containers, and an inject value that is absent or true.
    Strict,
}

/// The inbound ports that are captured when the pod has no annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InboundDefault {
    /// Every port.
    #[default]
    All,
    /// The TCP ports its containers declare.
    ContainerPorts,
}

/// Whether a pod's IPv6 is redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ipv6Setting {
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

/// The most intervals (ranges of adjacent ports, networks, interfaces) that a list in an annotation may have,
/// 1 to 65,536, so that a pod's owner cannot slow the node down. The default is 4,096.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxIntervals(u32);

impl MaxIntervals {
    /// Returns the number as a length.
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

/// The sources of facts about pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactsConf {
    /// The node agent's socket: [`SOCKET`], unless the entry has another or only a directory.
    pub socket: Option<PathBuf>,
    /// A directory of manifests, `<namespace>/<name>.json`.
    pub directory: Option<PathBuf>,
    /// A kubeconfig for the API server.
    pub kubeconfig: Option<PathBuf>,
    /// The time for all sources together, 1 ms to 60 s. The default is the longest: the agent answers an ADD that waits as
    /// soon as it runs, and the kubelet tries a refused pod again only after a pause. The kubelet waits longer for a
    /// sandbox: `runtimeRequestTimeout` is 2 minutes by default.
    pub deadline: Duration,
}

/// The default path of the node agent's socket for facts.
pub const SOCKET: &str = "/run/gybe/facts.sock";
/// The name of the agent's socket for log lines, in the same directory.
pub const LOG_SOCKET: &str = "log.sock";

impl Default for FactsConf {
    fn default() -> Self {
        let socket = Some(PathBuf::from(SOCKET));
        Self { socket, directory: None, kubeconfig: None, deadline: Duration::from_secs(60) }
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

const IPV6: [(&str, Ipv6Setting); 4] = [
    ("auto", Ipv6Setting::Auto),
    ("redirect", Ipv6Setting::Redirect),
    ("leave", Ipv6Setting::Leave),
    ("reject", Ipv6Setting::Reject),
];

impl PluginConf {
    /// Reads the plugin's keys.
    ///
    /// # Errors
    /// Names every key with a wrong value, the value, and the expected values.
    pub fn read(members: &Map<String, Value>) -> Result<Self, ConfError> {
        let mut keys = ConfReader::new(members);
        let older = keys.nested("kubernetes", KubernetesKeys::read);
        let mut conf = Self {
            log_level: keys.choice("log_level", &LOG_LEVELS),
            backend: keys.choice("backend", &BackendSetting::ALL.map(|setting| (setting.as_str(), setting))),
            probed: keys.nested("probed", ProbeHint::read),
            exclude_namespaces: keys.strings("exclude_namespaces"),
            pod_namespace: keys.string("pod_namespace"),
            gates: keys.choice("gates", &GATES),
            inbound_default: keys.choice("inboundDefault", &INBOUND),
            ipv6: keys.choice("ipv6", &IPV6),
            max_intervals: keys.intervals("max_intervals").unwrap_or_default(),
            facts: keys.nested("facts", |facts| FactsConf::read(facts, &older)),
            ambient: keys.contains("ambient").then(|| keys.nested("ambient", AmbientConf::read)),
        };
        istio_keys::read(&mut keys, older, &mut conf);
        keys.finish(conf)
    }

    /// Returns the keys whose values differ and decide whether a pod is redirected, refused or left alone, and with which
    /// rules. A new key has to be classified here.
    #[must_use]
    pub fn deciding_differences(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            log_level: _,
            // The backend that is probed first.
            probed: _,
            backend,
            exclude_namespaces,
            pod_namespace,
            gates,
            inbound_default,
            ipv6,
            max_intervals,
            facts: FactsConf { socket, directory, kubeconfig, deadline },
            ambient,
        } = self;
        let keys = [
            ("backend", *backend == other.backend),
            ("exclude_namespaces", *exclude_namespaces == other.exclude_namespaces),
            ("pod_namespace", *pod_namespace == other.pod_namespace),
            ("gates", *gates == other.gates),
            ("inboundDefault", *inbound_default == other.inbound_default),
            ("ipv6", *ipv6 == other.ipv6),
            ("max_intervals", *max_intervals == other.max_intervals),
            ("facts.socket", *socket == other.facts.socket),
            ("facts.directory", *directory == other.facts.directory),
            ("facts.kubeconfig", *kubeconfig == other.facts.kubeconfig),
            // A pod is refused when no source knows it in time.
            ("facts.deadline_ms", *deadline == other.facts.deadline),
            ("ambient", *ambient == other.ambient),
        ];
        keys.into_iter().filter(|(_, is_equal)| !is_equal).map(|(key, _)| key).collect()
    }

    /// Returns all keys of the plugin, so that nothing depends on the defaults of the version that reads them. Omits
    /// `ambient` where it is off. Reading them returns an equal value.
    #[must_use]
    pub fn to_members(&self) -> Map<String, Value> {
        let texts: [(&str, &str); 6] = [
            ("log_level", name_of(&LOG_LEVELS, self.log_level)),
            ("backend", self.backend.as_str()),
            ("pod_namespace", &self.pod_namespace),
            ("gates", name_of(&GATES, self.gates)),
            ("inboundDefault", name_of(&INBOUND, self.inbound_default)),
            ("ipv6", name_of(&IPV6, self.ipv6)),
        ];
        let texts = texts.map(|(key, text)| (key.to_owned(), text.into()));
        let lists = [
            ("exclude_namespaces".to_owned(), json!(self.exclude_namespaces)),
            ("max_intervals".to_owned(), self.max_intervals.0.into()),
            ("facts".to_owned(), self.facts.to_json()),
        ];
        let probed = self.probed.to_json().map(|json| ("probed".to_owned(), json));
        let ambient = self.ambient.map(|ambient| ("ambient".to_owned(), ambient.to_json()));
        texts.into_iter().chain(lists).chain(probed).chain(ambient).collect()
    }
}

impl FactsConf {
    fn read(keys: &mut ConfReader<'_>, older: &KubernetesKeys) -> Self {
        let default = Self::default();
        let directory = keys.path("directory");
        let kubeconfig = match keys.contains("kubeconfig") {
            true => keys.path("kubeconfig"),
            false => older.kubeconfig.clone(),
        };
        // A configuration with a directory and without a cluster has no agent.
        let has_no_agent = directory.is_some() && kubeconfig.is_none();
        let socket = match keys.contains("socket") {
            true => keys.path("socket"),
            false => default.socket.filter(|_| !has_no_agent),
        };
        let deadline = keys.milliseconds("deadline_ms").unwrap_or(default.deadline);
        Self { socket, directory, kubeconfig, deadline }
    }

    /// Returns the node agent's socket for log lines, in the directory of the one for facts.
    pub fn log_socket(&self) -> Option<PathBuf> {
        self.socket.as_ref().map(|socket| socket.with_file_name(LOG_SOCKET))
    }

    /// Returns the value of `facts`. An unused source is an empty string: a missing key would be the default.
    fn to_json(&self) -> Value {
        let text =
            |path: &Option<PathBuf>| path.as_ref().map_or(String::new(), |it| it.display().to_string());
        let deadline = u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX);
        json!({
            "socket": text(&self.socket), "directory": text(&self.directory),
            "kubeconfig": text(&self.kubeconfig), "deadline_ms": deadline,
        })
    }
}

/// The backend that the node's probe chose when the installer wrote the keys. It is probed first when no
/// findings are kept, and decides nothing: a reboot changes the kernel, and the entry changes only once the
/// agent runs again, so a decision by it would fail every pod in between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProbeHint {
    /// None for a name that only a newer release knows.
    pub backend: Option<BackendKind>,
    /// `uname -r`.
    pub kernel: String,
}

impl ProbeHint {
    fn read(keys: &mut ConfReader<'_>) -> Self {
        let name = keys.string("backend");
        let backend = BackendKind::ALL.into_iter().find(|kind| kind.name() == name);
        Self { backend, kernel: keys.string("kernel") }
    }

    /// Returns the value of `probed`; none without a backend.
    fn to_json(&self) -> Option<Value> {
        let backend = self.backend?.name();
        Some(json!({ "backend": backend, "kernel": self.kernel }))
    }

    /// Returns the backend to probe first on this kernel.
    #[must_use]
    pub fn on(&self, kernel: &str) -> Option<BackendKind> {
        self.backend.filter(|_| !kernel.is_empty() && self.kernel == kernel)
    }
}

/// Returns the log level and the agent's log socket, read without the other keys, so that their errors can be logged.
pub fn logging(members: &Map<String, Value>) -> (LogLevel, Option<PathBuf>) {
    let mut keys = ConfReader::new(members);
    let level = match keys.contains("log_level") {
        true => keys.choice("log_level", &LOG_LEVELS),
        false => keys.choice("plugin_log_level", &LOG_LEVELS),
    };
    let older = keys.nested("kubernetes", KubernetesKeys::read);
    (level, keys.nested("facts", |facts| FactsConf::read(facts, &older)).log_socket())
}

fn name_of<T: Copy + PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests;
