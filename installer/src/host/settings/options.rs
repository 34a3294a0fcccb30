//! What an operator chose: all that a changed ConfigMap may change while the agent runs.

use super::environment::Environment;
use super::reader::{RawSetting, SettingsReader, list};
use super::{plugin_conf, template};
use crate::host::desired::{Confirmed, PutBack, Shape};
use crate::host::image::OTHER_NAMES;
use crate::host::observe::FileName;
use gybe_plugin::args::Namespace;
use gybe_plugin::conf::PluginConf;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// What an operator chose.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// In or out.
    pub mode: Mode,
    /// Where the entry goes.
    pub shape: Shape,
    /// The setting that names its file, where one does.
    pub pinned_by: &'static str,
    /// What the entry says.
    pub conf: PluginConf,
    /// What an operator's template has beside the plugin's keys: it goes into the entry as it is.
    pub further: Map<String, Value>,
    /// Where the plugin learns about pods.
    pub pod_source: PodSource,
    /// What to do while istio-cni's agent lives.
    pub take_over: TakeOverSetting,
    /// One more namespace in which istio-cni's agent may run.
    pub istio_cni_namespace: Option<Namespace>,
    /// Whether an istio-cni entry comes back when we leave.
    pub put_back: PutBack,
    /// What the operator says about the program directory.
    pub plugin_dir: Confirmed,
    /// Further names for `gybe` on the host.
    pub also_as: BTreeSet<FileName>,
    /// Whether to leave when the DaemonSet is gone.
    pub leave_when_daemonset_gone: bool,
}

/// In or out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// In the chain.
    #[default]
    Install,
    /// Out of it; the programs go when no sandbox needs them.
    Leave,
}

/// Where the plugin learns about pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodSource {
    /// From the agent's watch cache alone.
    #[default]
    Agent,
    /// Also from the API server, with a kubeconfig on the host.
    Api,
}

/// What to do while istio-cni's agent lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TakeOverSetting {
    /// Wait for it to go.
    #[default]
    Wait,
    /// Take its place at once.
    Now,
}

/// Multus calls a network by its name, and it is to sort behind every primary's file.
pub const STANDALONE: &str = "YYY-gybe-cni.conf";

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Form {
    #[default]
    Chained,
    Standalone,
    DropIn,
}

const FORMS: [(&str, Form); 3] =
    [("chained", Form::Chained), ("standalone", Form::Standalone), ("dropin", Form::DropIn)];
const MODES: [(&str, Mode); 2] = [("install", Mode::Install), ("leave", Mode::Leave)];
const POD_SOURCES: [(&str, PodSource); 2] = [("agent", PodSource::Agent), ("api", PodSource::Api)];
const PLUGIN_DIRS: [(&str, Confirmed); 2] = [("check", Confirmed::No), ("confirmed", Confirmed::Yes)];
const TAKE_OVERS: [(&str, TakeOverSetting); 2] =
    [("wait", TakeOverSetting::Wait), ("now", TakeOverSetting::Now)];

pub(super) fn read(reader: &mut SettingsReader<'_>, ground: &Environment) -> Options {
    let source = reader.key("pod_source");
    let pod_source = reader.word(source, &POD_SOURCES);
    let template = template::read(reader, ground);
    let kubeconfig = (pod_source == PodSource::Api).then(|| ground.kubeconfig());
    if kubeconfig.is_some() {
        reachable(reader, source, ground);
    }
    let conf = plugin_conf::read(reader, ground, kubeconfig, template.as_ref());
    let put_back = match reader.yes(reader.key("put_back_istio")) {
        true => PutBack::Istio,
        false => PutBack::Nothing,
    };
    Options {
        mode: reader.word(reader.key("mode"), &MODES),
        shape: shape(reader),
        pinned_by: conf_name(reader).map_or("conf_name", |said| said.name),
        conf,
        further: template.map(template::Template::further).unwrap_or_default(),
        pod_source,
        take_over: reader.word(reader.key("take_over"), &TAKE_OVERS),
        istio_cni_namespace: istio_cni_namespace(reader),
        put_back,
        plugin_dir: reader.word(reader.key("plugin_dir"), &PLUGIN_DIRS),
        also_as: also_as(reader),
        leave_when_daemonset_gone: reader.yes(reader.key("leave_when_daemonset_gone")),
    }
}

/// A kubeconfig without a server is none.
fn reachable(reader: &mut SettingsReader<'_>, source: Option<RawSetting<'_>>, ground: &Environment) {
    let Some(source) = source else { return };
    if ground.api.host.is_empty() || ground.api.port.is_empty() {
        reader.refuse(source, "a kubeconfig needs KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT");
    }
}

fn shape(reader: &mut SettingsReader<'_>) -> Shape {
    let form = match reader.key("shape") {
        Some(said) => reader.word(Some(said), &FORMS),
        None => match reader.yes_or_no(reader.variable("CHAINED_CNI_PLUGIN")) {
            Some(false) => Form::Standalone,
            _ => Form::Chained,
        },
    };
    let said = conf_name(reader);
    let name = said.and_then(|said| FileName::new(said.text).ok());
    match (said, &name, form) {
        (Some(said), None, _) => reader.refuse(said, "must be the name of a file, and no path"),
        (Some(said), _, Form::DropIn) => {
            reader.refuse(said, "a drop-in goes where the runtime's own choice is, and can name no file");
        }
        _ => {}
    }
    match form {
        Form::Chained => Shape::Chained { pinned: name },
        Form::DropIn => Shape::DropIn,
        Form::Standalone => match name.or_else(|| FileName::new(STANDALONE).ok()) {
            Some(file) => Shape::Standalone { file },
            None => Shape::DropIn,
        },
    }
}

fn conf_name<'a>(reader: &SettingsReader<'a>) -> Option<RawSetting<'a>> {
    reader.either("conf_name", "CNI_CONF_NAME")
}

fn istio_cni_namespace(reader: &mut SettingsReader<'_>) -> Option<Namespace> {
    let said = reader.key("istio_cni_namespace")?;
    let namespace = Namespace::parse(said.text).ok();
    if namespace.is_none() {
        reader.refuse(said, "must be the name of one namespace");
    }
    namespace
}

fn also_as(reader: &mut SettingsReader<'_>) -> BTreeSet<FileName> {
    let Some(said) = reader.key("also_as") else { return BTreeSet::new() };
    let strange: Vec<_> = list(said.text).filter(|name| !OTHER_NAMES.contains(name)).collect();
    if !strange.is_empty() {
        reader.refuse(said, format!("must be of {}", OTHER_NAMES.join(", ")));
    }
    list(said.text).filter_map(|name| FileName::new(name).ok()).collect()
}
