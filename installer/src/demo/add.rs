//! The ADD the demo gives the plugin: as containerd sends it, for a pod as the injector writes it.
//! Both stand in `examples/`; only the namespace and the directory of manifests are put in here.

use super::traced::{TraceError, TracedRun, watch};
use gybe_netfilter::policy::RedirectPolicy;
use gybe_plugin::conf::{ConfError, PluginConf};
use gybe_plugin::decide::{Decision, decide};
use gybe_plugin::gates::InitContainer;
use gybe_plugin::pod::{ManifestError, PodFacts};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

const ADD: &str = include_str!("../../../examples/add.json");
const POD: &str = include_str!("../../../examples/pod.json");

/// A call of the plugin, and the pod it is for.
#[derive(Debug, Clone)]
pub struct RecordedAdd {
    call: Recorded,
    manifest: Value,
}

#[derive(Debug, Clone, serde::Deserialize)]
struct Recorded {
    env: BTreeMap<String, String>,
    stdin: Map<String, Value>,
}

/// Why the ADD could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The examples were changed into something else.
    #[error("{file} is not what the demo can use")]
    Example {
        /// Which one.
        file: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The example pod would not be redirected.
    #[error("the pod of examples/pod.json would not be redirected: {0}")]
    NotOurs(String),
    /// The manifest cannot be put where the plugin looks for it.
    #[error("cannot write {}", .path.display())]
    Directory {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The plugin could not be run.
    #[error("cannot run the plugin")]
    Watch(#[from] TraceError),
}

/// What the ADD needs from outside.
#[derive(Debug, Clone, Copy)]
pub struct AddPaths<'a> {
    /// The pod's namespace.
    pub netns: &'a Path,
    /// Where a directory for its manifest may be made.
    pub scratch: &'a Path,
}

impl RecordedAdd {
    /// The recorded one.
    ///
    /// # Errors
    /// When the examples are no call and no pod.
    pub fn recorded() -> Result<Self, AddError> {
        let example =
            |file| move |source: serde_json::Error| AddError::Example { file, source: source.into() };
        let call = serde_json::from_str(ADD).map_err(example("examples/add.json"))?;
        let manifest = serde_json::from_str(POD).map_err(example("examples/pod.json"))?;
        Ok(Self { call, manifest })
    }

    /// What the plugin will decide for a namespace with these addresses.
    ///
    /// # Errors
    /// When it would decide to leave the pod alone, or to refuse it.
    pub fn policy(&self, addresses: &[IpAddr]) -> Result<RedirectPolicy, AddError> {
        let conf = |source: ConfError| AddError::Example { file: "examples/add.json", source: source.into() };
        let pod =
            |source: ManifestError| AddError::Example { file: "examples/pod.json", source: source.into() };
        let conf = PluginConf::read(&self.call.stdin).map_err(conf)?;
        let facts = PodFacts::from_manifest(&self.manifest).map_err(pod)?;
        match decide(&conf, &facts, addresses, InitContainer::Counts) {
            Decision::Redirect(policy) => Ok(policy),
            Decision::LeaveAlone(reason) => Err(AddError::NotOurs(reason.to_string())),
            Decision::Refuse(cause) => Err(AddError::NotOurs(cause.to_string())),
        }
    }

    /// Makes the call: `plugin` is a command that becomes the plugin, watched.
    ///
    /// # Errors
    /// When the manifest cannot be written or the plugin not be run.
    pub fn call(&self, mut plugin: Command, place: AddPaths<'_>) -> Result<TracedRun, AddError> {
        let manifests = Manifests::holding(&self.manifest, place.scratch)?;
        let mut env = self.call.env.clone();
        let recorded = env.insert("CNI_NETNS".into(), place.netns.display().to_string()).unwrap_or_default();
        let mut stdin = Value::Object(self.call.stdin.clone());
        put(&mut stdin, &recorded, &place.netns.display().to_string());
        put(&mut stdin, "/etc/gybe/pods", &manifests.path.display().to_string());
        plugin.env_clear().envs(env);
        Ok(watch(plugin, &stdin.to_string())?)
    }
}

/// Puts `new` wherever `old` stands.
fn put(value: &mut Value, old: &str, new: &str) {
    match value {
        Value::String(text) if text == old => new.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(|item| put(item, old, new)),
        Value::Object(members) => members.values_mut().for_each(|member| put(member, old, new)),
        _ => {}
    }
}

/// A directory of manifests with one pod in it; gone with this value.
struct Manifests {
    path: PathBuf,
}

impl Manifests {
    fn holding(manifest: &Value, scratch: &Path) -> Result<Self, AddError> {
        let path = scratch.join(format!("gybe-demo-{}", std::process::id()));
        let failed = |source| AddError::Directory { path: path.clone(), source };
        // Fails when it is there already: then it is somebody else's.
        fs::create_dir(&path).map_err(failed)?;
        let made = Self { path: path.clone() };
        let name = |key: &str| manifest.pointer(key).and_then(Value::as_str).unwrap_or_default();
        let namespace = path.join(name("/metadata/namespace"));
        fs::create_dir(&namespace).map_err(failed)?;
        let file = namespace.join(format!("{}.json", name("/metadata/name")));
        fs::write(file, manifest.to_string()).map_err(failed)?;
        Ok(made)
    }
}

impl Drop for Manifests {
    fn drop(&mut self) {
        // Best effort: nothing else can be done about it, and nobody depends on it.
        let _gone = fs::remove_dir_all(&self.path);
    }
}
