//! A running pod that should be redirected and is not: whether it may be deleted or labelled, and that request.

use super::access::Cluster;
use super::pod_requests;
use super::queries::{QueryError, send, write};
use crate::host::settings::PodLabel;
use gybe_plugin::args::PodRef;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Request as ApiRequest;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
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
    /// The exit codes with which its init containers ended, now and before their last restart, by their names.
    pub init_exits: Vec<(String, i32)>,
}

/// A change of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodChange<'a> {
    Delete,
    Label(&'a PodLabel),
}

#[derive(Deserialize)]
struct ListedPods {
    items: Vec<ListedPod>,
}

#[derive(Deserialize)]
struct ListedPod {
    metadata: ListedMetadata,
    #[serde(default)]
    status: ListedStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListedMetadata {
    uid: String,
    resource_version: String,
    labels: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct ListedStatus {
    phase: Option<String>,
    init_container_statuses: Option<Vec<InitStatus>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitStatus {
    name: String,
    state: Option<InitState>,
    last_state: Option<InitState>,
}

#[derive(Deserialize)]
struct InitState {
    terminated: Option<Terminated>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminated {
    exit_code: i32,
}

/// Returns a pod of this node, if further field and label selectors select it: the API server evaluates them. Needs
/// `list` on pods.
///
/// # Errors
/// As [`super::create_event`]; also when it cannot parse a selector.
pub fn broken_pod(
    cluster: &Cluster,
    node: &str,
    pod: &PodRef,
    [fields, labels]: [&str; 2],
    until: Instant,
) -> Result<Option<BrokenPod>, QueryError> {
    let request = pod_requests::one_if_selected(node, pod, fields, labels)?;
    let listed = send::<ListedPods>(cluster, request, until)?.items.into_iter().next();
    Ok(listed.map(|ListedPod { metadata, status }| BrokenPod {
        uid: metadata.uid,
        version: metadata.resource_version,
        has_ended: metadata.deletion_timestamp.is_some()
            || matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        labels: metadata.labels.unwrap_or_default().into_keys().collect(),
        init_exits: status.init_container_statuses.into_iter().flatten().flat_map(exits).collect(),
    }))
}

fn exits(InitStatus { name, state, last_state }: InitStatus) -> impl Iterator<Item = (String, i32)> {
    let states = [state, last_state].into_iter().flatten();
    states.filter_map(|state| state.terminated).map(move |ended| (name.clone(), ended.exit_code))
}

/// Deletes a pod, or adds a label to it, if it is still the observed one; reports whether it was changed. Needs
/// `delete` on pods, or `patch` on their status.
///
/// # Errors
/// As [`super::create_event`].
pub fn change_pod(
    cluster: &Cluster,
    pod: &PodRef,
    observed: &BrokenPod,
    change: &PodChange<'_>,
    until: Instant,
) -> Result<bool, QueryError> {
    let pods = ApiRequest::new(format!("/api/v1/namespaces/{}/pods", pod.namespace));
    let name = pod.name.as_str();
    let request = match change {
        PodChange::Delete => {
            let preconditions = Preconditions { uid: Some(observed.uid.clone()), resource_version: None };
            pods.delete(name, &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() })
        }
        PodChange::Label(PodLabel { key, value }) => {
            // The uid of an object cannot change, but the API server refuses such a patch as it does an invalid one;
            // the version makes the refusal a conflict.
            let BrokenPod { uid, version, .. } = observed;
            let metadata =
                json!({ "uid": uid, "resourceVersion": version, "labels": { key.as_str(): value } });
            let patch = json!({ "metadata": metadata });
            pods.patch_subresource("status", name, &PatchParams::default(), &Patch::Merge(patch))
        }
    };
    match write(cluster, request, until) {
        Ok(()) => Ok(true),
        Err(QueryError::Api(error)) if matches!(error.status(), Some(404 | 409)) => Ok(false),
        Err(error) => Err(error),
    }
}
