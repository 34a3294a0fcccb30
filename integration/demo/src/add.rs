//! The ADD that the demo sends to the plugin: recorded from containerd, for a pod that Istio's injector changed
//! (`examples/`). Only the namespace and the directory of manifests are replaced.

use super::traced::{TraceError, TracedRun, run_traced};
use gybe_netfilter::model::policy::RedirectPolicy;
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

/// A recorded call of the plugin, and its pod's manifest.
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

#[derive(Debug, thiserror::Error)]
pub enum AddError {
    #[error("the demo cannot use {file}")]
    Example { file: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the pod of examples/pod.json would not be redirected: {0}")]
    NotRedirected(String),
    #[error("cannot write {}", .path.display())]
    Manifest { path: PathBuf, source: io::Error },
    #[error("cannot run the plugin")]
    Trace(#[from] TraceError),
}

/// The paths that replace those of the recording.
#[derive(Debug, Clone, Copy)]
pub struct AddPaths<'a> {
    pub netns: &'a Path,
    /// The directory in which one for the manifest is created.
    pub scratch: &'a Path,
}

impl RecordedAdd {
    /// Reads the recording.
    pub fn recorded() -> Result<Self, AddError> {
        let example =
            |file| move |source: serde_json::Error| AddError::Example { file, source: source.into() };
        let call = serde_json::from_str(ADD).map_err(example("examples/add.json"))?;
        let manifest = serde_json::from_str(POD).map_err(example("examples/pod.json"))?;
        Ok(Self { call, manifest })
    }

    /// Returns the policy that the plugin will derive for a namespace with these addresses.
    pub fn policy(&self, addresses: &[IpAddr]) -> Result<RedirectPolicy, AddError> {
        let conf = |source: ConfError| AddError::Example { file: "examples/add.json", source: source.into() };
        let pod =
            |source: ManifestError| AddError::Example { file: "examples/pod.json", source: source.into() };
        let conf = PluginConf::read(&self.call.stdin).map_err(conf)?;
        let facts = PodFacts::from_manifest(&self.manifest).map_err(pod)?;
        match decide(&conf, &facts, addresses, InitContainer::Counts) {
            Decision::Redirect(policy) => Ok(policy),
            Decision::LeaveAlone(reason) => Err(AddError::NotRedirected(reason.to_string())),
            Decision::Refuse(cause) => Err(AddError::NotRedirected(cause.to_string())),
        }
    }

    /// Calls the plugin. `plugin` is a command that executes it once it is traced.
    pub fn call(&self, mut plugin: Command, paths: AddPaths<'_>) -> Result<TracedRun, AddError> {
        let manifests = Manifests::with(&self.manifest, paths.scratch)?;
        let mut env = self.call.env.clone();
        let recorded = env.insert("CNI_NETNS".into(), paths.netns.display().to_string()).unwrap_or_default();
        let mut stdin = Value::Object(self.call.stdin.clone());
        replace(&mut stdin, &recorded, &paths.netns.display().to_string());
        replace(&mut stdin, "/etc/gybe/pods", &manifests.path.display().to_string());
        plugin.env_clear().envs(env);
        Ok(run_traced(plugin, &stdin.to_string())?)
    }
}

/// Replaces every string `old` by `new`.
fn replace(value: &mut Value, old: &str, new: &str) {
    match value {
        Value::String(text) if text == old => new.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, old, new)),
        Value::Object(members) => members.values_mut().for_each(|member| replace(member, old, new)),
        _ => {}
    }
}

/// A directory of manifests with one pod, removed on drop.
struct Manifests {
    path: PathBuf,
}

impl Manifests {
    fn with(manifest: &Value, scratch: &Path) -> Result<Self, AddError> {
        let path = scratch.join(format!("gybe-demo-{}", std::process::id()));
        let failed = |source| AddError::Manifest { path: path.clone(), source };
        // An existing directory belongs to another process, so it is an error.
        fs::create_dir(&path).map_err(failed)?;
        let created = Self { path: path.clone() };
        let name = |key: &str| manifest.pointer(key).and_then(Value::as_str).unwrap_or_default();
        let namespace = path.join(name("/metadata/namespace"));
        fs::create_dir(&namespace).map_err(failed)?;
        let file = namespace.join(format!("{}.json", name("/metadata/name")));
        fs::write(file, manifest.to_string()).map_err(failed)?;
        Ok(created)
    }
}

impl Drop for Manifests {
    fn drop(&mut self) {
        // Best effort: nothing depends on it.
        let _removed = fs::remove_dir_all(&self.path);
    }
}
