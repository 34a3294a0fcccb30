//! A running pod that should be redirected and is not: whether it may be deleted or labelled, and that request.

use super::objects::{ContainerStatus, Ignored, Object, ObjectList, PodStatus};
use super::own_node::ClusterNode;
use super::pod_requests::{self, invalid_name};
use super::queries::{QueryError, request_object, run};
use crate::host::settings::PodLabel;
use gybe_plugin::args::PodRef;
use gybe_plugin::names::INJECT;
use gybe_plugin::pod::PodFacts;
use hyper::Request;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Request as ApiRequest;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::time::Instant;

/// A pod, as far as it matters whether it is deleted or labelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenPod {
    pub uid: String,
    pub version: String,
    /// Whether it is being deleted, or all its containers have ended.
    pub has_ended: bool,
    /// The keys of its labels.
    pub labels: Vec<String>,
    /// Whether the label that asks for injection or forbids it may have been set after the pod was created.
    pub may_be_relabelled: bool,
    /// What decides whether it is redirected.
    pub facts: PodFacts,
    /// The exit codes with which its init containers ended, now and before their last restart, by their names.
    pub init_exits: Vec<(String, i32)>,
}

/// A change of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodChange<'a> {
    Delete,
    Label(&'a PodLabel),
}

/// Deletes a pod of this node, or adds a label to it, if it is still the one that `confirm` has seen. Further field and
/// label selectors, which the API server evaluates, have to select it. `confirm` returns until when the change may be
/// requested, or why the pod is left alone.
///
/// Returns why the pod was left alone; none if it was changed. Needs `list` on pods, and `delete` on pods or `patch` on
/// their status.
///
/// # Errors
/// As [`super::create_event`]; also when the API server cannot parse a selector.
pub fn change_pod(
    home: &ClusterNode,
    pod: &PodRef,
    [fields, labels]: [&str; 2],
    change: &PodChange<'_>,
    until: Instant,
    confirm: impl FnOnce(&BrokenPod) -> Result<Instant, String>,
) -> Result<Option<String>, QueryError> {
    let list = pod_requests::one_if_selected(&home.node, pod, fields, labels)?;
    run(async {
        let client = home.cluster.client().await?;
        let listed: ObjectList<Value> = request_object(&client, list, until).await?;
        let observed = listed.items.first().and_then(BrokenPod::parse);
        let Some(observed) = observed else { return Ok(Some(UNKNOWN.to_owned())) };
        let until = match confirm(&observed) {
            Ok(until) => until,
            Err(why) => return Ok(Some(why)),
        };
        match request_object::<IgnoredAny>(&client, request(pod, &observed, change)?, until).await {
            Ok(_) => Ok(None),
            Err(error) if matches!(error.status(), Some(404 | 409)) => Ok(Some(CHANGED.to_owned())),
            Err(error) => Err(error.into()),
        }
    })?
}

const UNKNOWN: &str = "the API server has no such pod on this node, or the selectors do not select it";
const CHANGED: &str = "it has changed, or another pod has its name now";

fn request(
    pod: &PodRef,
    observed: &BrokenPod,
    change: &PodChange<'_>,
) -> Result<Request<Vec<u8>>, QueryError> {
    let pods = ApiRequest::new(format!("/api/v1/namespaces/{}/pods", pod.namespace));
    let (name, BrokenPod { uid, version, .. }) = (pod.name.as_str(), observed);
    let request = match change {
        PodChange::Delete => {
            let preconditions =
                Preconditions { uid: Some(uid.clone()), resource_version: Some(version.clone()) };
            pods.delete(name, &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() })
        }
        PodChange::Label(PodLabel { key, value }) => {
            // The uid of an object cannot change, but the API server refuses such a patch as it does an invalid one;
            // the version makes the refusal a conflict.
            let metadata =
                json!({ "uid": uid, "resourceVersion": version, "labels": { key.as_str(): value } });
            let patch = json!({ "metadata": metadata });
            pods.patch_subresource("status", name, &PatchParams::default(), &Patch::Merge(patch))
        }
    };
    Ok(request.map_err(|_| invalid_name())?)
}

impl BrokenPod {
    /// None for what is not a pod with a uid and a version.
    fn parse(listed: &Value) -> Option<Self> {
        let facts = PodFacts::from_manifest(listed).ok()?;
        let Object { metadata, status, .. } = Object::<Ignored, PodStatus>::deserialize(listed).ok()?;
        if metadata.uid.is_empty() || metadata.resource_version.is_empty() {
            return None;
        }
        Some(Self {
            may_be_relabelled: may_be_relabelled(listed.get("metadata")?),
            uid: metadata.uid,
            version: metadata.resource_version,
            has_ended: metadata.deletion_timestamp.is_some()
                || matches!(status.phase.as_str(), "Succeeded" | "Failed"),
            labels: metadata.labels.into_keys().collect(),
            facts,
            init_exits: status.init_container_statuses.into_iter().flat_map(exits).collect(),
        })
    }
}

/// Reports whether the label may have been set after the pod was created: an entry of `managedFields` (meta/v1
/// ManagedFieldsEntry) that has it is newer than the pod, or no entry has it. Times are in UTC and of one length, so they
/// compare as texts.
fn may_be_relabelled(metadata: &Value) -> bool {
    if metadata.get("labels").and_then(|labels| labels.get(INJECT)).is_none() {
        return false;
    }
    let text = |object: &'_ Value, key| object.get(key).and_then(Value::as_str).map(str::to_owned);
    let created = text(metadata, "creationTimestamp").unwrap_or_default();
    let has_inject = |entry: &&Value| {
        let labels = ["fieldsV1", "f:metadata", "f:labels"].iter().try_fold(*entry, |it, key| it.get(key));
        labels.is_some_and(|labels| labels.get(format!("f:{INJECT}")).is_some())
    };
    let owners =
        metadata.get("managedFields").and_then(Value::as_array).into_iter().flatten().filter(has_inject);
    let times: Vec<_> = owners.map(|owner| text(owner, "time")).collect();
    times.is_empty() || times.iter().any(|time| time.as_ref().is_none_or(|time| *time > created))
}

fn exits(
    ContainerStatus { name, state, last_state }: ContainerStatus,
) -> impl Iterator<Item = (String, i32)> {
    let ended = [state, last_state].into_iter().filter_map(|state| state.terminated);
    ended.map(move |ended| (name.clone(), ended.exit_code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_inject_counts_only_if_its_owners_have_changed_nothing_since_the_pod_was_created() {
        let owner = |time: &str| json!({ "time": time, "fieldsV1": { "f:metadata": { "f:labels": { "f:sidecar.istio.io/inject": {} } } } });
        let (created, later) = ("2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z");
        let status = json!({ "time": later, "fieldsV1": { "f:status": {} } });
        for (label, owners, expected) in [
            (json!({ INJECT: "true" }), json!([owner(created), status]), false),
            (json!({ INJECT: "true" }), json!([owner(created), owner(later)]), true),
            (json!({ INJECT: "true" }), json!([{ "fieldsV1": owner(created)["fieldsV1"] }]), true),
            (json!({ INJECT: "true" }), json!([status]), true),
            (json!({ INJECT: "true" }), json!(null), true),
            (json!({ "app": "cart" }), json!(null), false),
            (json!(null), json!([status]), false),
        ] {
            let metadata = json!({
                "uid": "u", "resourceVersion": "1", "creationTimestamp": created, "labels": label,
                "managedFields": owners,
            });
            assert_eq!(may_be_relabelled(&metadata), expected, "{label} {owners}");
        }
    }
}
