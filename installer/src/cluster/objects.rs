//! The parts of Kubernetes' objects that the agent and the command line read, named as the API names them. A member that
//! is absent is empty; so are a list and a map that are null, and every member of a condition: the API server sends a time
//! that was never set as null.

use super::error::ApiError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// A page of a list, or a whole list.
#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(crate) struct ObjectList<T> {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(default = "Vec::new", deserialize_with = "null_is_empty")]
    pub(crate) items: Vec<T>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    resource_version: String,
    r#continue: String,
}

impl<T> ObjectList<T> {
    /// Returns the token of the next page; none on the last one.
    pub(crate) fn next(&self) -> Option<&str> {
        Some(self.metadata.r#continue.as_str()).filter(|token| !token.is_empty())
    }

    /// Returns the resource version from which the list can be watched.
    pub(crate) fn version(&self) -> Result<String, ApiError> {
        let version = Some(self.metadata.resource_version.clone()).filter(|version| !version.is_empty());
        version.ok_or(ApiError::Unreadable("is a list without a version"))
    }
}

/// Any object; `S` and `T` are its spec and its status.
#[derive(Deserialize)]
#[serde(bound = "S: Deserialize<'de> + Default, T: Deserialize<'de> + Default")]
pub(crate) struct Object<S = Ignored, T = Ignored> {
    #[serde(default)]
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: S,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(crate) status: T,
}

/// A part of an object that is not read.
pub(crate) type Ignored = serde::de::IgnoredAny;

pub(crate) type Pod = Object<PodSpec, PodStatus>;
pub(crate) type DaemonSet = Object<DaemonSetSpec, DaemonSetStatus>;
pub(crate) type Node = Object<NodeSpec, NodeStatus>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    /// Empty until the pod is scheduled.
    pub(crate) node_name: String,
    pub(crate) containers: Vec<Container>,
    pub(crate) volumes: Vec<Volume>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) env: Vec<Variable>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) value: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Volume {
    pub(crate) name: String,
    /// The ConfigMap whose keys it shows.
    pub(crate) config_map: Option<Metadata>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    #[serde(rename = "hostIP")]
    pub(crate) host_ip: String,
    pub(crate) phase: String,
    pub(crate) reason: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) init_container_statuses: Vec<ContainerStatus>,
    pub(crate) container_statuses: Vec<ContainerStatus>,
    pub(crate) conditions: StatusConditions,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerStatus {
    pub(crate) name: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) state: ContainerState,
    /// Before its last restart.
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) last_state: ContainerState,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct ContainerState {
    pub(crate) waiting: Option<Waiting>,
    pub(crate) terminated: Option<Terminated>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Waiting {
    pub(crate) reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Terminated {
    pub(crate) exit_code: i32,
}

#[derive(Deserialize, Default)]
pub(crate) struct StatusConditions(#[serde(deserialize_with = "null_is_empty")] Vec<Condition>);

impl StatusConditions {
    /// Returns the condition of this type, such as `Ready`.
    pub(crate) fn get(&self, kind: &str) -> Option<&Condition> {
        self.0.iter().find(|condition| condition.r#type == kind)
    }

    /// Returns the condition `Ready` if it is `False` or `Unknown`.
    pub(crate) fn not_ready(&self) -> Option<&Condition> {
        self.get("Ready").filter(|condition| condition.status != "True")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Condition {
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) r#type: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) status: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) reason: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) message: String,
    pub(crate) last_transition_time: Option<String>,
}

/// What the agent reads of the status of its node's pods.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct AgentPodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: StatusConditions,
}

impl AgentPodStatus {
    /// Reports whether all of its containers have ended for good.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// Returns when the pod was assigned to its node, in whole seconds of the API server's clock; none once it has had
    /// a sandbox, whose address the status keeps.
    pub(crate) fn assigned(&self) -> Option<SystemTime> {
        let scheduled = self.conditions.get("PodScheduled").filter(|_| self.pod_ip.is_none())?;
        let time = serde_json::from_value::<Time>(scheduled.last_transition_time.clone().into()).ok()?;
        (scheduled.status == "True").then(|| time.0.into())
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct DaemonSetSpec {
    pub(crate) template: Object<PodSpec>,
}

impl Default for Object<PodSpec> {
    fn default() -> Self {
        Self { metadata: Metadata::default(), spec: PodSpec::default(), status: Ignored {} }
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DaemonSetStatus {
    pub(crate) desired_number_scheduled: usize,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct NodeSpec {
    #[serde(deserialize_with = "null_is_empty")]
    pub(crate) taints: Vec<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct NodeStatus {
    pub(crate) conditions: StatusConditions,
}

#[derive(Deserialize)]
pub(crate) struct ConfigMap {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub(crate) data: BTreeMap<String, String>,
}

fn null_is_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_token_of_the_next_and_the_version_to_watch_from() {
        let page = |text: &str| serde_json::from_str::<ObjectList<Ignored>>(text).unwrap();
        let last =
            page(r#"{"kind": "PodList", "metadata": {"resourceVersion": "7", "continue": ""}, "items": []}"#);
        assert_eq!((last.next(), last.version()), (None, Ok("7".to_owned())));
        let first = page(r#"{"metadata": {"continue": "x"}}"#);
        assert_eq!((first.next(), first.version().is_err()), (Some("x"), true));
    }

    #[test]
    fn a_pod_was_assigned_when_it_was_scheduled_until_it_has_an_address() {
        let status = |text: &str| serde_json::from_str::<AgentPodStatus>(text).unwrap();
        let scheduled = r#""conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"}]"#;
        let minute = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(60);
        for (text, assigned) in [
            (format!("{{{scheduled}}}"), Some(minute)),
            (format!(r#"{{{scheduled}, "podIP": "10.0.0.1"}}"#), None),
            (format!("{{{}}}", scheduled.replace("True", "False")), None),
            (format!("{{{}}}", scheduled.replace("1970-01-01T", "")), None),
            (format!("{{{}}}", scheduled.replace(r#""1970-01-01T00:01:00Z""#, "null")), None),
            (r#"{"phase": null, "conditions": null}"#.to_owned(), None),
        ] {
            assert_eq!(status(&text).assigned(), assigned, "{text}");
        }
    }

    #[test]
    fn absent_and_null_members_are_empty() {
        for text in [
            r#"{"items": null}"#,
            r#"{"items": [{}]}"#,
            r#"{"items": [{"metadata": {"labels": null}, "status": {"conditions": null}}]}"#,
        ] {
            let pods: ObjectList<Pod> = serde_json::from_str(text).unwrap();
            assert!(pods.items.iter().all(|pod| pod.metadata.labels.is_empty()), "{text}");
            assert!(pods.items.iter().all(|pod| pod.status.conditions.get("Ready").is_none()), "{text}");
        }
        // As the API server sends conditions whose times were never set.
        let condition = r#"{"type": "Ready", "status": "True", "lastProbeTime": null, "lastHeartbeatTime": null,
                            "lastTransitionTime": null, "reason": null, "message": null}"#;
        let text =
            format!(r#"{{"status": {{"conditions": [{{"type": null, "status": null}}, {condition}]}}}}"#);
        let expected =
            Condition { r#type: "Ready".to_owned(), status: "True".to_owned(), ..Condition::default() };
        let (pod, node): (Pod, Node) =
            (serde_json::from_str(&text).unwrap(), serde_json::from_str(&text).unwrap());
        let agents_pod: Object<Ignored, AgentPodStatus> = serde_json::from_str(&text).unwrap();
        let all = [pod.status.conditions, node.status.conditions, agents_pod.status.conditions];
        assert!(all.iter().all(|conditions| conditions.get("Ready") == Some(&expected)), "{text}");
        assert!(serde_json::from_str::<Node>(r#"{"status": null}"#).is_ok());
    }
}
