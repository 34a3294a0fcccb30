//! The parts of Kubernetes' objects that the agent and the command line read, named as the API names them. A member that
//! is absent is empty; so is a list or a map that is null.

use super::error::ApiError;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// A page of a list, or a whole list.
#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(super) struct List<T> {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(default = "Vec::new", deserialize_with = "null_is_empty")]
    pub(super) items: Vec<T>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    resource_version: String,
    r#continue: String,
}

impl<T> List<T> {
    /// Returns the token of the next page; none on the last one.
    pub(super) fn next(&self) -> Option<&str> {
        Some(self.metadata.r#continue.as_str()).filter(|token| !token.is_empty())
    }

    /// Returns the resource version from which the list can be watched.
    pub(super) fn version(&self) -> Result<String, ApiError> {
        let version = Some(self.metadata.resource_version.clone()).filter(|version| !version.is_empty());
        version.ok_or(ApiError::Unreadable("is a list without a version"))
    }
}

/// Any object; `S` and `T` are its spec and its status.
#[derive(Deserialize)]
#[serde(bound = "S: Deserialize<'de> + Default, T: Deserialize<'de> + Default")]
pub(super) struct Object<S = Ignored, T = Ignored> {
    #[serde(default)]
    pub(super) metadata: Metadata,
    #[serde(default)]
    pub(super) spec: S,
    #[serde(default)]
    pub(super) status: T,
}

/// A part of an object that is not read.
pub(super) type Ignored = serde::de::IgnoredAny;

pub(super) type Pod = Object<PodSpec, PodStatus>;
pub(super) type DaemonSet = Object<DaemonSetSpec, DaemonSetStatus>;
pub(super) type Node = Object<NodeSpec>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) resource_version: String,
    pub(super) deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    /// Empty until the pod is scheduled.
    pub(super) node_name: String,
    pub(super) containers: Vec<Container>,
    pub(super) volumes: Vec<Volume>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) env: Vec<Variable>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Volume {
    pub(super) name: String,
    /// The ConfigMap whose keys it shows.
    pub(super) config_map: Option<Metadata>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodStatus {
    #[serde(rename = "hostIP")]
    pub(super) host_ip: String,
    pub(super) phase: String,
    pub(super) reason: String,
    pub(super) init_container_statuses: Vec<ContainerStatus>,
    pub(super) container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(super) conditions: Vec<Condition>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ContainerStatus {
    pub(super) name: String,
    pub(super) state: ContainerState,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ContainerState {
    pub(super) waiting: Option<Waiting>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Waiting {
    pub(super) reason: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Condition {
    pub(super) r#type: String,
    pub(super) status: String,
    pub(super) message: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct DaemonSetSpec {
    pub(super) template: Object<PodSpec>,
}

impl Default for Object<PodSpec> {
    fn default() -> Self {
        Self { metadata: Metadata::default(), spec: PodSpec::default(), status: Ignored {} }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DaemonSetStatus {
    pub(super) desired_number_scheduled: usize,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct NodeSpec {
    #[serde(deserialize_with = "null_is_empty")]
    pub(super) taints: Vec<Value>,
}

#[derive(Deserialize)]
pub(super) struct ConfigMap {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(super) data: BTreeMap<String, String>,
}

fn null_is_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl PodStatus {
    /// Returns the pod's condition of this type, such as `Ready`.
    pub(super) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.r#type == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_token_of_the_next_and_the_version_to_watch_from() {
        let page = |text: &str| serde_json::from_str::<List<Ignored>>(text).unwrap();
        let last =
            page(r#"{"kind": "PodList", "metadata": {"resourceVersion": "7", "continue": ""}, "items": []}"#);
        assert_eq!((last.next(), last.version()), (None, Ok("7".to_owned())));
        let first = page(r#"{"metadata": {"continue": "x"}}"#);
        assert_eq!((first.next(), first.version().is_err()), (Some("x"), true));
    }

    #[test]
    fn absent_and_null_members_are_empty() {
        for text in [
            r#"{"items": null}"#,
            r#"{"items": [{}]}"#,
            r#"{"items": [{"metadata": {"labels": null}, "status": {"conditions": null}}]}"#,
        ] {
            let pods: List<Pod> = serde_json::from_str(text).unwrap();
            assert!(pods.items.iter().all(|pod| pod.metadata.labels.is_empty()), "{text}");
            assert!(pods.items.iter().all(|pod| pod.status.condition("Ready").is_none()), "{text}");
        }
    }
}
