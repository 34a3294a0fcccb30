//! An operator's options: the settings that a changed ConfigMap may change while the agent runs.

use super::environment::Environment;
use super::reader::{RawSetting, SettingsReader, is_qualified_name, list};
use super::repair::{self, RepairMode, RepairOptions};
use super::{plugin_conf, template};
use crate::error::chain;
use crate::host::desired::{Confirmed, PutBack, Shape, ShapeSetting};
use crate::host::image::OTHER_NAMES;
use crate::host::observe::FileName;
use crate::pod::enablement::EnablementSelectors;
use gybe_plugin::args::Namespace;
use gybe_plugin::conf::PluginConf;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;

/// An operator's options.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub mode: NodeMode,
    pub shape: ShapeSetting,
    /// The setting that names the conf file.
    pub pinned_by: &'static str,
    /// The entry's keys.
    pub conf: PluginConf,
    /// Keys of an operator's template that the plugin does not read: they are copied into the entry.
    pub unknown_members: Map<String, Value>,
    pub pod_source: PodSource,
    pub take_over: TakeOverSetting,
    /// One more namespace in which istio-cni's agent may run.
    pub istio_cni_namespace: Option<Namespace>,
    /// Whether uninstall restores an istio-cni entry.
    pub put_back: PutBack,
    /// Whether the operator confirmed the program directory.
    pub plugin_dir: Confirmed,
    /// Further names for `gybe` on the host.
    pub also_as: BTreeSet<FileName>,
    /// What happens to running pods that should be redirected and are not.
    pub repair: RepairOptions,
    /// Whether the agent uninstalls Gybe when the DaemonSet is deleted.
    pub leave_when_daemonset_gone: bool,
    /// The taints that the agent removes from its node when it is ready, and sets again.
    pub node_taints: Vec<NodeTaint>,
    /// Whether the agent writes the condition `GybeReady` of its node.
    pub node_condition: bool,
    /// Whether the agent writes Kubernetes events.
    pub events: bool,
    /// Which pods are ambient; none where ambient mode is off.
    pub ambient: Option<EnablementSelectors>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeMode {
    /// The entry is in the chain.
    #[default]
    Install,
    /// The entry is removed, and then the programs, when no sandbox needs them.
    Leave,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodSource {
    /// From the agent's pod cache alone.
    #[default]
    Agent,
    /// Also from the API server, with a kubeconfig on the host.
    Api,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TakeOverSetting {
    /// Wait until it has ended.
    #[default]
    Wait,
    /// Replace its entry at once.
    Now,
}

/// Multus selects a network by name; the file has to sort after every primary's.
pub const STANDALONE: &str = "YYY-gybe-cni.conf";

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Form {
    #[default]
    Auto,
    Chained,
    Standalone,
    DropIn,
}

const FORMS: [(&str, Form); 4] = [
    ("auto", Form::Auto),
    ("chained", Form::Chained),
    ("standalone", Form::Standalone),
    ("dropin", Form::DropIn),
];
const MODES: [(&str, NodeMode); 2] = [("install", NodeMode::Install), ("leave", NodeMode::Leave)];
const POD_SOURCES: [(&str, PodSource); 2] = [("agent", PodSource::Agent), ("api", PodSource::Api)];
const PLUGIN_DIRS: [(&str, Confirmed); 2] = [("check", Confirmed::No), ("confirmed", Confirmed::Yes)];
const TAKE_OVERS: [(&str, TakeOverSetting); 2] =
    [("wait", TakeOverSetting::Wait), ("now", TakeOverSetting::Now)];

pub(super) fn read(reader: &mut SettingsReader<'_>, environment: &Environment) -> Options {
    let source = reader.key("pod_source");
    let pod_source = reader.word(source, &POD_SOURCES);
    let level = plugin_conf::log_level(reader);
    let template = template::read(reader, environment, level);
    let kubeconfig = (pod_source == PodSource::Api).then(|| environment.kubeconfig());
    if kubeconfig.is_some() {
        reachable(reader, source, environment);
    }
    let conf = plugin_conf::read(reader, environment, level, kubeconfig, template.as_ref());
    let put_back = match reader.yes(reader.key("put_back_istio")) {
        true => PutBack::Istio,
        false => PutBack::Nothing,
    };
    let repair = repair::read(reader);
    Options {
        mode: reader.word(reader.key("mode"), &MODES),
        shape: shape(reader, repair.mode),
        pinned_by: conf_name(reader).map_or("conf_name", |setting| setting.name),
        conf,
        unknown_members: template.map(template::Template::into_unknown_members).unwrap_or_default(),
        pod_source,
        take_over: reader.word(reader.key("take_over"), &TAKE_OVERS),
        istio_cni_namespace: istio_cni_namespace(reader),
        put_back,
        plugin_dir: reader.word(reader.key("plugin_dir"), &PLUGIN_DIRS),
        also_as: also_as(reader),
        repair,
        leave_when_daemonset_gone: reader.yes(reader.key("leave_when_daemonset_gone")),
        node_taints: node_taints(reader),
        node_condition: reader.yes(reader.key("node_condition")),
        events: reader.yes_or_no(reader.key("events")).unwrap_or(true),
        ambient: environment.ambient.as_ref().and_then(|_| selectors(reader)),
    }
}

/// A kubeconfig needs a server.
fn reachable(reader: &mut SettingsReader<'_>, source: Option<RawSetting<'_>>, environment: &Environment) {
    let Some(source) = source else { return };
    if environment.api.host.is_empty() || environment.api.port.is_empty() {
        reader.refuse(source, "a kubeconfig needs KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT");
    }
}

fn shape(reader: &mut SettingsReader<'_>, repair: RepairMode) -> ShapeSetting {
    let form = match reader.key("shape") {
        // True is istio-cni's default, and no operator's choice of a chain.
        None if reader.yes_or_no(reader.variable("CHAINED_CNI_PLUGIN")) == Some(false) => Form::Standalone,
        setting => reader.word(setting, &FORMS),
    };
    let setting = conf_name(reader);
    let name = setting.and_then(|setting| FileName::new(setting.text).ok());
    match (setting, &name, form) {
        (Some(setting), None, _) => reader.refuse(setting, "must be a file name, not a path"),
        (Some(setting), _, Form::DropIn) => {
            reader.refuse(
                setting,
                "shape: dropin follows the runtime's choice, so conf_name cannot be set with it",
            );
        }
        _ => {}
    }
    let fixed = match (form, repair) {
        // The operator named the file for the entry.
        (Form::Auto, _) if name.is_some() => Shape::Chained { pinned: name },
        // libcni caches the entry of a chain with each pod, and none of a drop-in. Without it a pod that its ADD left alone
        // by earlier settings counts as one that started before Gybe, and would be deleted or labelled.
        (Form::Auto, RepairMode::Delete | RepairMode::Label) => {
            if reader.key("shape").is_some() {
                reader.notes.push("shape: auto is chained with repair: delete and label".to_owned());
            }
            Shape::Chained { pinned: None }
        }
        (Form::Auto, RepairMode::Repair | RepairMode::Off) => return ShapeSetting::Auto,
        (Form::Chained, _) => Shape::Chained { pinned: name },
        (Form::DropIn, _) => Shape::DropIn,
        (Form::Standalone, _) => match name.or_else(|| FileName::new(STANDALONE).ok()) {
            Some(file) => Shape::Standalone { file },
            None => Shape::DropIn,
        },
    };
    ShapeSetting::Fixed(fixed)
}

fn conf_name<'a>(reader: &SettingsReader<'a>) -> Option<RawSetting<'a>> {
    reader.either("conf_name", "CNI_CONF_NAME")
}

/// None if they are invalid.
fn selectors(reader: &mut SettingsReader<'_>) -> Option<EnablementSelectors> {
    let setting = reader.either("ambient_enablement_selectors", "AMBIENT_ENABLEMENT_SELECTOR");
    let Some(setting) = setting else { return Some(EnablementSelectors::default()) };
    let parsed = EnablementSelectors::parse(setting.text);
    parsed.map_err(|why| reader.refuse(setting, chain(&why))).ok()
}

fn istio_cni_namespace(reader: &mut SettingsReader<'_>) -> Option<Namespace> {
    let setting = reader.key("istio_cni_namespace")?;
    let namespace = Namespace::parse(setting.text).ok();
    if namespace.is_none() {
        reader.refuse(setting, "must be the name of one namespace");
    }
    namespace
}

fn also_as(reader: &mut SettingsReader<'_>) -> BTreeSet<FileName> {
    let Some(setting) = reader.key("also_as") else { return BTreeSet::new() };
    let strange: Vec<_> = list(setting.text).filter(|name| !OTHER_NAMES.contains(name)).collect();
    if !strange.is_empty() {
        reader.refuse(setting, format!("must be of {}", OTHER_NAMES.join(", ")));
    }
    list(setting.text).filter_map(|name| FileName::new(name).ok()).collect()
}

/// The key of a taint that keeps pods off a node whose agent is not ready. The effect is always `NoSchedule`: `NoExecute`
/// would evict running pods, whose rules stay while the agent is not ready.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeTaint {
    key: String,
}

impl NodeTaint {
    /// The effect of these taints.
    pub const EFFECT: &str = "NoSchedule";

    /// Parses `KEY` or `KEY:NoSchedule`; none if it is neither.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let key = match text.split_once(':') {
            Some((key, Self::EFFECT)) => key,
            Some(_) => return None,
            None => text,
        };
        is_qualified_name(key).then(|| Self { key: key.to_owned() })
    }

    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl fmt::Display for NodeTaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.key, Self::EFFECT)
    }
}

fn node_taints(reader: &mut SettingsReader<'_>) -> Vec<NodeTaint> {
    let Some(setting) = reader.key("node_taints") else { return Vec::new() };
    let taints: Option<BTreeSet<_>> = list(setting.text).map(NodeTaint::parse).collect();
    if taints.is_none() {
        reader
            .refuse(setting, "must be a comma-separated list of taint keys, each alone or with :NoSchedule");
    }
    taints.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taint_is_a_key_with_the_effect_no_schedule_or_without_one() {
        for (text, key) in [
            ("cni.istio.io/not-ready", Some("cni.istio.io/not-ready")),
            ("NodeReadiness:NoSchedule", Some("NodeReadiness")),
            ("cni.istio.io/not-ready:NoExecute", None),
            ("a=b:NoSchedule", None),
            ("", None),
            ("/x", None),
            ("Not.A.Domain/x", None),
            ("-x", None),
            ("a/b/c", None),
        ] {
            assert_eq!(NodeTaint::parse(text).as_ref().map(NodeTaint::key), key, "{text}");
        }
    }
}
