//! A pod's manifest as Kubernetes writes it; everything the decision does not need is skipped.

use super::kept::{Annotations, Command, Variables, is_kept_label};
use super::{Container, Life, ManifestError, PROXY, PodFacts};
use serde::Deserialize;
use serde_json::error::Category;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A pod, or a pod template, as far as anybody here reads it: what else is written there is skipped
/// while it is read, and takes no memory.
#[derive(Deserialize)]
pub struct Manifest {
    metadata: Option<Metadata>,
    spec: Option<Spec>,
}

#[derive(Deserialize, Default)]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    #[serde(rename = "resourceVersion")]
    resource_version: Option<String>,
    annotations: Option<Annotations>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Spec {
    containers: Option<Vec<WrittenContainer>>,
    init_containers: Option<Vec<WrittenContainer>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenContainer {
    name: Option<String>,
    args: Option<Command>,
    env: Option<Variables>,
    ports: Option<Vec<DeclaredPort>>,
    security_context: Option<SecurityContext>,
    restart_policy: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeclaredPort {
    container_port: u16,
    protocol: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct SecurityContext {
    run_as_user: Option<i64>,
    run_as_group: Option<i64>,
}

pub(super) fn from_value(manifest: &Value) -> Result<PodFacts, ManifestError> {
    Manifest::deserialize(manifest).map_err(|fault| shape(&fault)).and_then(Manifest::facts)
}

pub(super) fn from_slice(bytes: &[u8]) -> Result<PodFacts, ManifestError> {
    serde_json::from_slice(bytes).map_err(|fault| shape(&fault)).and_then(Manifest::facts)
}

/// Where the fault is, not what stands there: serde's own text quotes the value, and a manifest may
/// hold a password.
fn shape(fault: &serde_json::Error) -> ManifestError {
    ManifestError::Shape { what: broken(fault), line: fault.line(), column: fault.column() }
}

/// What is wrong with bytes that should have been something else, without quoting them.
pub(crate) fn broken(fault: &serde_json::Error) -> &'static str {
    match fault.classify() {
        Category::Data => "has a member of the wrong type",
        Category::Eof => "ends too early",
        Category::Syntax | Category::Io => "is not JSON",
    }
}

impl Manifest {
    /// The version the API server gave it; empty where none did.
    pub fn resource_version(&self) -> &str {
        self.metadata.as_ref().and_then(|metadata| metadata.resource_version.as_deref()).unwrap_or_default()
    }

    /// What the decision needs of it.
    ///
    /// # Errors
    /// When nothing says what it runs.
    pub fn facts(self) -> Result<PodFacts, ManifestError> {
        let metadata = self.metadata.unwrap_or_default();
        let spec = self.spec.unwrap_or_default();
        let containers = spec.containers.ok_or(ManifestError::NoContainers)?;
        Ok(PodFacts {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default().0,
            labels: needed(metadata.labels),
            containers: containers.into_iter().map(WrittenContainer::facts).collect(),
            init_containers: spec
                .init_containers
                .into_iter()
                .flatten()
                .map(WrittenContainer::facts)
                .collect(),
        })
    }
}

fn needed(all: Option<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    all.into_iter().flatten().filter(|(key, value)| is_kept_label(key, value)).collect()
}

impl WrittenContainer {
    fn facts(self) -> Container {
        let who = self.security_context.unwrap_or_default();
        // What others are started with is none of our business, and may hold a password.
        let is_proxy = self.name.as_deref() == Some(PROXY);
        let (args, env) = if is_proxy { (self.args, self.env) } else { (None, None) };
        let tcp = |port: &DeclaredPort| port.protocol.as_deref().is_none_or(|name| name == "TCP");
        Container {
            name: self.name.unwrap_or_default(),
            args: args.unwrap_or_default().0,
            env: env.unwrap_or_default().0,
            tcp_ports: self.ports.into_iter().flatten().filter(tcp).map(|port| port.container_port).collect(),
            run_as_user: who.run_as_user,
            run_as_group: who.run_as_group,
            life: match self.restart_policy.as_deref() {
                Some("Always") => Life::Always,
                _ => Life::OfItsList,
            },
        }
    }
}

pub(super) fn written(facts: &PodFacts) -> Value {
    let containers = |list: &[Container]| list.iter().map(container).collect::<Vec<_>>();
    json!({
        "metadata": {
            "namespace": facts.namespace, "name": facts.name, "uid": facts.uid,
            "annotations": facts.annotations, "labels": facts.labels,
        },
        "spec": {
            "containers": containers(&facts.containers),
            "initContainers": containers(&facts.init_containers),
        },
    })
}

fn container(container: &Container) -> Value {
    let env: Vec<_> =
        container.env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    let ports: Vec<_> = container.tcp_ports.iter().map(|port| json!({ "containerPort": port })).collect();
    json!({
        "name": container.name, "args": container.args, "env": env, "ports": ports,
        "securityContext": { "runAsUser": container.run_as_user, "runAsGroup": container.run_as_group },
        "restartPolicy": if container.life == Life::Always { Some("Always") } else { None },
    })
}
