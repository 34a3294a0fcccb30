//! What the decision needs to know of a pod, trimmed from its manifest.
//!
//! How a manifest is written is in `pod/manifest.rs`, how much of it is kept in `pod/kept.rs`; what the facts mean is in `gates`,
//! `annotations` and `decide`; where a manifest comes from is in `facts`.

mod kept;
mod manifest;

pub use kept::PARTS;
pub use manifest::Manifest;
pub(crate) use manifest::broken;

use serde_json::Value;
use std::collections::BTreeMap;

/// A pod, as far as its redirection depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Its namespace; empty in a template that names none.
    pub namespace: String,
    /// Its name; empty in a template.
    pub name: String,
    /// Its uid; empty in what was never in a cluster.
    pub uid: String,
    /// Annotations of Istio, and those that mark a mirror of a static pod.
    pub annotations: BTreeMap<String, String>,
    /// Labels of Istio, and those in [`PARTS`].
    pub labels: BTreeMap<String, String>,
    /// Containers, in the manifest's order.
    pub containers: Vec<Container>,
    /// Init containers, in the manifest's order.
    pub init_containers: Vec<Container>,
}

/// One container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// The first two arguments, of the proxy alone.
    pub args: Vec<String>,
    /// The variables that a decision reads, of the proxy alone and literal values only: one with
    /// `valueFrom` counts as empty.
    pub env: BTreeMap<String, String>,
    /// TCP ports it declares.
    pub tcp_ports: Vec<u16>,
    /// `securityContext.runAsUser`, as written.
    pub run_as_user: Option<i64>,
    /// `securityContext.runAsGroup`, as written.
    pub run_as_group: Option<i64>,
    /// Whether it lives as long as the pod.
    pub life: Life,
}

/// How long a container lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Life {
    /// As its list says: containers for the pod's life, init containers until they are done.
    #[default]
    OfItsList,
    /// For the pod's life, although an init container (`restartPolicy: Always`, a native sidecar).
    Always,
}

/// Why a document is no pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Something in it is of another type than in a pod.
    #[error("not a pod's manifest: it {what}, line {line} column {column}")]
    Shape {
        /// What is wrong; never what stands there, which may be a secret.
        what: &'static str,
        /// Where, counted from 1; 0 where the document was not read from text.
        line: usize,
        /// Likewise.
        column: usize,
    },
    /// Nothing says what it runs.
    #[error("not a pod's manifest: it has no spec.containers")]
    NoContainers,
}

/// The name of Istio's proxy container, which makes a pod part of the mesh.
pub const PROXY: &str = "istio-proxy";

impl PodFacts {
    /// Reads a Pod, or a pod template (what stands under `template:`), from JSON.
    ///
    /// # Errors
    /// When it is of another shape.
    pub fn from_manifest(manifest: &Value) -> Result<Self, ManifestError> {
        manifest::from_value(manifest)
    }

    /// The same from bytes, without keeping what is not needed.
    ///
    /// # Errors
    /// When they are no JSON, or of another shape.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ManifestError> {
        manifest::from_slice(bytes)
    }

    /// Writes these facts as the manifest they would be read from again.
    pub fn to_manifest(&self) -> Value {
        manifest::written(self)
    }

    /// Istio's proxy: a container of that name, native sidecar or not.
    pub fn proxy(&self) -> Option<&Container> {
        self.containers.iter().chain(&self.init_containers).find(|container| container.name == PROXY)
    }

    /// Every container that lives as long as the pod.
    pub fn long_lived(&self) -> impl Iterator<Item = &Container> {
        let sidecars = self.init_containers.iter().filter(|container| container.life == Life::Always);
        self.containers.iter().chain(sidecars)
    }

    /// An annotation's value.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }
}

impl Container {
    /// What a variable says about yes or no; nothing when it is absent or says neither.
    pub fn says(&self, variable: &str) -> Option<bool> {
        self.env.get(variable).and_then(|value| yes_or_no(value))
    }
}

/// The words Istio takes for yes and no (Go's `strconv.ParseBool`).
pub fn yes_or_no(word: &str) -> Option<bool> {
    match word {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
