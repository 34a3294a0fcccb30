//! A pod's manifest as Kubernetes writes it. Members that the decision does not need are skipped.

use super::trim::{FirstArguments, KeptAnnotations, ReadVariables, is_kept_label};
use super::{Ambient, Container, Lifetime, ManifestError, PROXY, PodFacts};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A pod, or a pod template; `S` is what is read of the status. Other members are skipped while parsing, and take no
/// memory.
#[derive(Deserialize)]
pub struct Manifest<S = IgnoredAny> {
    metadata: Option<ManifestMetadata>,
    spec: Option<Spec>,
    status: Option<S>,
}

/// The parts of a manifest by which a node agent decides whether the pod is ambient.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selectable {
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// Whether it has the network of its node.
    pub is_host_network: bool,
    /// Whether all of its containers have ended for good.
    pub has_ended: bool,
    pub service_account: String,
}

#[derive(Deserialize, Default)]
struct ManifestMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    #[serde(rename = "resourceVersion")]
    resource_version: Option<String>,
    annotations: Option<KeptAnnotations>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Spec {
    host_network: Option<bool>,
    service_account_name: Option<String>,
    containers: Option<Vec<ManifestContainer>>,
    init_containers: Option<Vec<ManifestContainer>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestContainer {
    name: Option<String>,
    args: Option<FirstArguments>,
    env: Option<ReadVariables>,
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

impl PodFacts {
    /// Parses a Pod, or a pod template (the value of `template:`), from JSON.
    ///
    /// # Errors
    /// When it is not a pod.
    pub fn from_manifest(manifest: &Value) -> Result<Self, ManifestError> {
        <Manifest>::deserialize(manifest).map_err(|error| shape(&error)).and_then(Manifest::facts)
    }

    /// Parses the same from bytes, and skips what is not needed.
    ///
    /// # Errors
    /// When they are not JSON, or not a pod.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ManifestError> {
        serde_json::from_slice::<Manifest>(bytes).map_err(|error| shape(&error)).and_then(Manifest::facts)
    }

    /// Returns a manifest from which the same facts are parsed.
    pub fn to_manifest(&self) -> Value {
        let containers = |list: &[Container]| list.iter().map(container).collect::<Vec<_>>();
        json!({
            "metadata": {
                "namespace": self.namespace, "name": self.name, "uid": self.uid,
                "annotations": self.annotations, "labels": self.labels,
            },
            "spec": {
                "containers": containers(&self.containers),
                "initContainers": containers(&self.init_containers),
            },
        })
    }
}

/// Returns the position of the error, without serde's text, which quotes the value: a manifest may hold a password.
fn shape(error: &serde_json::Error) -> ManifestError {
    ManifestError::Shape { what: describe_json_error(error), line: error.line(), column: error.column() }
}

/// Describes why a document cannot be parsed, without quoting it.
pub(crate) fn describe_json_error(error: &serde_json::Error) -> &'static str {
    match error.classify() {
        Category::Data => "has a member of the wrong type",
        Category::Eof => "ends too early",
        Category::Syntax | Category::Io => "is not JSON",
    }
}

impl<S> Manifest<S> {
    /// Returns `metadata.resourceVersion`, or an empty text.
    pub fn resource_version(&self) -> &str {
        self.metadata.as_ref().and_then(|metadata| metadata.resource_version.as_deref()).unwrap_or_default()
    }

    /// Returns the status, if the pod has one.
    pub fn status(&self) -> Option<&S> {
        self.status.as_ref()
    }

    /// Returns the parts by which a node agent decides whether the pod is ambient; the status shows whether it has
    /// ended.
    pub fn selectable(&self, has_ended: bool) -> Selectable {
        let labels = self.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
        let spec = self.spec.as_ref();
        let account = spec.and_then(|spec| spec.service_account_name.as_deref()).filter(|it| !it.is_empty());
        Selectable {
            labels: labels.unwrap_or_default(),
            has_ended,
            is_host_network: spec.and_then(|spec| spec.host_network).unwrap_or(false),
            // The API server sets it in every pod.
            service_account: account.unwrap_or("default").to_owned(),
        }
    }

    /// Returns what the decision needs of it.
    ///
    /// # Errors
    /// When it has no containers.
    pub fn facts(self) -> Result<PodFacts, ManifestError> {
        let metadata = self.metadata.unwrap_or_default();
        let spec = self.spec.unwrap_or_default();
        let containers = spec.containers.ok_or(ManifestError::NoContainers)?;
        Ok(PodFacts {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default().0,
            labels: kept_labels(metadata.labels),
            containers: containers.into_iter().map(ManifestContainer::facts).collect(),
            init_containers: spec
                .init_containers
                .into_iter()
                .flatten()
                .map(ManifestContainer::facts)
                .collect(),
            ambient: Ambient::Unknown,
        })
    }
}

fn kept_labels(all: Option<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    all.into_iter().flatten().filter(|(key, value)| is_kept_label(key, value)).collect()
}

impl ManifestContainer {
    fn facts(self) -> Container {
        let ids = self.security_context.unwrap_or_default();
        // Other containers' arguments and variables are not needed, and may hold a password.
        let is_proxy = self.name.as_deref() == Some(PROXY);
        let (args, env) = if is_proxy { (self.args, self.env) } else { (None, None) };
        let tcp = |port: &DeclaredPort| port.protocol.as_deref().is_none_or(|name| name == "TCP");
        Container {
            name: self.name.unwrap_or_default(),
            args: args.unwrap_or_default().0,
            env: env.unwrap_or_default().0,
            tcp_ports: self.ports.into_iter().flatten().filter(tcp).map(|port| port.container_port).collect(),
            run_as_user: ids.run_as_user,
            run_as_group: ids.run_as_group,
            lifetime: match self.restart_policy.as_deref() {
                Some("Always") => Lifetime::Pod,
                _ => Lifetime::Default,
            },
        }
    }
}

fn container(container: &Container) -> Value {
    let env: Vec<_> =
        container.env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    let ports: Vec<_> = container.tcp_ports.iter().map(|port| json!({ "containerPort": port })).collect();
    json!({
        "name": container.name, "args": container.args, "env": env, "ports": ports,
        "securityContext": { "runAsUser": container.run_as_user, "runAsGroup": container.run_as_group },
        "restartPolicy": if container.lifetime == Lifetime::Pod { Some("Always") } else { None },
    })
}
