//! The facts of a pod: what the decision needs of its manifest.
//!
//! `pod/manifest.rs` parses manifests, `pod/trim.rs` bounds what is kept of them; `gates`, `annotations` and
//! `decide` evaluate the facts; `facts` gets manifests from their sources.

mod manifest;
mod trim;

pub(crate) use manifest::describe_json_error;
pub use manifest::{Manifest, Selectable};
pub use trim::ISTIO_COMPONENTS;

use std::collections::BTreeMap;

/// The facts on which a pod's redirection depends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Its namespace; empty in a template that names none.
    pub namespace: String,
    /// Its name; empty in a template.
    pub name: String,
    /// Its uid; empty in a manifest that was never in a cluster.
    pub uid: String,
    /// Istio's annotations, and those that mark the mirror of a static pod.
    pub annotations: BTreeMap<String, String>,
    /// Istio's labels, and those in [`ISTIO_COMPONENTS`].
    pub labels: BTreeMap<String, String>,
    /// Containers, in the manifest's order.
    pub containers: Vec<Container>,
    /// Init containers, in the manifest's order.
    pub init_containers: Vec<Container>,
    /// Whether the pod is ambient.
    pub ambient: Ambient,
}

/// Whether a pod is ambient: the node's ztunnel takes its traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Ambient {
    /// The source of the facts does not know: only a node agent with ambient mode does.
    #[default]
    Unknown,
    /// The node agent has not decided yet, by these parts of the manifest.
    Undecided(Box<Selectable>),
    No {
        /// The reason, for `gybe explain`.
        why: String,
    },
    Yes {
        /// The pod's service account, by which ztunnel knows its identity.
        service_account: String,
        /// The labels and the selector, for `gybe explain`.
        why: String,
    },
}

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// The first two arguments, of the proxy alone.
    pub args: Vec<String>,
    /// The variables that a decision reads, of the proxy alone and literal values only: one with
    /// `valueFrom` counts as empty.
    pub env: BTreeMap<String, String>,
    /// The TCP ports that it declares.
    pub tcp_ports: Vec<u16>,
    /// `securityContext.runAsUser`, as written.
    pub run_as_user: Option<i64>,
    /// `securityContext.runAsGroup`, as written.
    pub run_as_group: Option<i64>,
    /// How long it runs.
    pub lifetime: Lifetime,
}

/// How long a container runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// A container of the pod as long as the pod, an init container until it has ended.
    #[default]
    Default,
    /// An init container as long as the pod (`restartPolicy: Always`, a native sidecar).
    Pod,
}

/// Why a document is not a pod's manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// A member has the wrong type.
    #[error("not a pod's manifest: it {what}, line {line} column {column}")]
    Shape {
        /// The fault, without the value, which may be a secret.
        what: &'static str,
        /// The line, from 1; 0 where the document was not parsed from text.
        line: usize,
        /// The column, from 1; 0 likewise.
        column: usize,
    },
    /// It has no containers.
    #[error("not a pod's manifest: it has no spec.containers")]
    NoContainers,
}

/// The name of Istio's proxy container, which makes a pod part of the mesh.
pub const PROXY: &str = "istio-proxy";

impl PodFacts {
    /// Returns Istio's proxy, as a container or as a native sidecar.
    pub fn proxy(&self) -> Option<&Container> {
        self.containers.iter().chain(&self.init_containers).find(|container| container.name == PROXY)
    }

    /// Returns the containers that run as long as the pod.
    pub fn long_lived(&self) -> impl Iterator<Item = &Container> {
        let sidecars = self.init_containers.iter().filter(|container| container.lifetime == Lifetime::Pod);
        self.containers.iter().chain(sidecars)
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }
}

impl Container {
    /// Returns the value of a boolean variable; none when it is absent or not a boolean.
    pub fn bool_env(&self, variable: &str) -> Option<bool> {
        self.env.get(variable).and_then(|value| parse_bool(value))
    }
}

/// Parses a boolean as Istio does (Go's `strconv.ParseBool`).
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
