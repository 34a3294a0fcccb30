//! Rare single requests: our own DaemonSet, a ConfigMap, a node's pods, a pod for the plugin, events, our node's taints
//! and condition, and annotations of pods. Each runs on the calling thread, with a deadline.

use super::access::{Cluster, ClusterError, ClusterNames};
use super::client;
use super::error::ApiError;
use super::objects::{ConfigMap, Object, ObjectList, Pod};
use super::own_node::{ClusterNode, ConditionStatus, NodeCondition, ObservedNode};
use super::pod_requests::{self, PodManifest, PodSelector, invalid_name};
use crate::error::chain;
use crate::host::settings::NodeTaint;
use gybe_netfilter::model::Hint;
use gybe_plugin::args::Namespace;
use gybe_plugin::facts::ambient::AmbientPod;
use gybe_plugin::facts::wire::{self, FactsResponse, WireError};
use gybe_plugin::timestamp;
use hyper::Request;
use kube::Client;
use kube::api::{GetParams, Patch, PatchParams, PostParams};
use kube::core::Request as ApiRequest;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime;

/// Why a query has no usable response: none arrived, its status is an error (403), or it cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl QueryError {
    /// Returns the HTTP status of an error response.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Cluster(_) => None,
            Self::Api(fault) => fault.status(),
        }
    }
}

impl Hint for QueryError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let hint = match self {
            Self::Cluster(why) => return why.hint(),
            Self::Api(fault) => match fault.status() {
                Some(401) => {
                    "renew the credentials in the kubeconfig, or name another context with --context"
                }
                Some(403) => "grant the user of the kubeconfig the rights that --help names",
                _ => return None,
            },
        };
        Some(hint.into())
    }
}

/// Whether a DaemonSet exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DaemonSetState {
    Present,
    BeingDeleted,
    Absent,
    /// The API server refuses us (401, 403): the namespace or the service account may be gone, or a role was changed.
    /// This does not prove that the DaemonSet is gone.
    Refused(String),
    /// No response, or one that shows none of these states.
    Unknown(String),
}

/// Returns the names of the cluster in its kubeconfig; none for the cluster in which the program runs as a pod. Sends
/// no request.
///
/// # Errors
/// When the kubeconfig cannot be used.
pub fn names(cluster: &Cluster) -> Result<Option<ClusterNames>, ClusterError> {
    run(cluster.names())?
}

/// Returns the state of a DaemonSet. Needs `get` on it by its name.
pub fn daemonset_state(cluster: &Cluster, namespace: &str, name: &str, until: Instant) -> DaemonSetState {
    // With an empty namespace it is another path, and the response is 404.
    if namespace.is_empty() {
        return DaemonSetState::Unknown("the agent's namespace is not configured".to_owned());
    }
    let daemonsets = ApiRequest::new(format!("/apis/apps/v1/namespaces/{namespace}/daemonsets"));
    let request = daemonsets.get(name, &GetParams::default()).map_err(|_| QueryError::from(invalid_name()));
    match request.and_then(|request| send::<Object>(cluster, request, until)) {
        Ok(Object { metadata, .. }) if metadata.deletion_timestamp.is_some() => DaemonSetState::BeingDeleted,
        Ok(_) => DaemonSetState::Present,
        Err(QueryError::Api(fault)) if fault.is_not_found() => DaemonSetState::Absent,
        Err(QueryError::Api(fault)) if fault.is_forbidden() => DaemonSetState::Refused(fault.to_string()),
        Err(fault) => DaemonSetState::Unknown(fault.to_string()),
    }
}

/// Returns the texts in a ConfigMap, by key. Needs `get` on it.
///
/// # Errors
/// As [`create_event`].
pub fn config_map(
    cluster: &Cluster,
    namespace: &Namespace,
    name: &str,
    until: Instant,
) -> Result<BTreeMap<String, String>, QueryError> {
    let maps = ApiRequest::new(format!("/api/v1/namespaces/{namespace}/configmaps"));
    let request = maps.get(name, &GetParams::default()).map_err(|_| invalid_name())?;
    Ok(send::<ConfigMap>(cluster, request, until)?.data)
}

/// Reports whether any of the node's pods that `selected` selects is ready. Needs `list` on pods.
///
/// # Errors
/// As [`create_event`]; also when the selector is invalid.
pub fn has_ready_pod(
    cluster: &Cluster,
    node: &str,
    selected: &PodSelector,
    until: Instant,
) -> Result<bool, QueryError> {
    let pods: ObjectList<Pod> = send(cluster, pod_requests::selected(node, selected)?, until)?;
    let is_ready =
        |pod: &Pod| pod.status.conditions.get("Ready").is_some_and(|condition| condition.status == "True");
    Ok(pods.items.iter().any(is_ready))
}

/// Whether a node has taints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaintState {
    Present,
    Absent,
}

/// Replaces the observed taints of a node by `changed`. Needs `patch` on nodes.
///
/// # Errors
/// As [`create_event`]; also when the node has changed since it was observed (409).
pub fn set_taints(
    own: &ClusterNode,
    observed: &ObservedNode,
    changed: &[Value],
    until: Instant,
) -> Result<(), QueryError> {
    // A merge patch replaces the whole list, so the API server must refuse it if another client has changed the node.
    let patch = json!({ "metadata": { "resourceVersion": observed.version }, "spec": { "taints": changed } });
    let nodes = ApiRequest::new("/api/v1/nodes");
    write(&own.cluster, nodes.patch(&own.node, &PatchParams::default(), &Patch::Merge(patch)), until)
}

/// Sets an annotation of a pod, or removes it. Needs `patch` on the status of pods.
///
/// # Errors
/// As [`create_event`]; also when another pod has its name now (422).
pub fn annotate_pod(
    cluster: &Cluster,
    pod: &AmbientPod,
    key: &str,
    value: Option<&str>,
    until: Instant,
) -> Result<(), QueryError> {
    // Without a version: a merge patch of one annotation does not conflict with other writers of the status.
    let patch = json!({ "metadata": { "uid": pod.uid.as_str(), "annotations": { key: value } } });
    let pods = ApiRequest::new(format!("/api/v1/namespaces/{}/pods", pod.namespace));
    let patch = Patch::Merge(patch);
    let request = pods.patch_subresource("status", pod.name.as_str(), &PatchParams::default(), &patch);
    write(cluster, request, until)
}

/// Sets the agent's condition of a node; `before` is its status, none while the node does not have it. Needs `patch` on
/// the status of nodes.
///
/// # Errors
/// As [`create_event`].
pub fn set_condition(
    own: &ClusterNode,
    condition: &NodeCondition,
    message: &str,
    before: Option<ConditionStatus>,
    until: Instant,
) -> Result<(), QueryError> {
    let NodeCondition { status, reason } = condition;
    let now = timestamp(SystemTime::now());
    let mut entry = json!({
        "type": NodeCondition::TYPE, "status": status.name(), "reason": reason, "message": message,
        "lastHeartbeatTime": now,
    });
    // Null would remove it.
    if let (true, Some(entry)) = (before != Some(*status), entry.as_object_mut()) {
        entry.insert("lastTransitionTime".to_owned(), now.into());
    }
    // A strategic merge patch changes the entry of this type, and leaves those of the kubelet as they are.
    let patch = Patch::Strategic(json!({ "status": { "conditions": [entry] } }));
    let nodes = ApiRequest::new("/api/v1/nodes");
    write(&own.cluster, nodes.patch_subresource("status", &own.node, &PatchParams::default(), &patch), until)
}

/// Returns the node's taints with `taints` added or removed; none when that changes nothing.
pub fn changed_taints(before: &[Value], taints: &[NodeTaint], state: TaintState) -> Option<Vec<Value>> {
    let text = |taint: &Value, name: &str| taint.get(name).and_then(Value::as_str).map(str::to_owned);
    let is = |taint: &Value, named: &NodeTaint| {
        text(taint, "key").as_deref() == Some(named.key())
            && text(taint, "effect").as_deref() == Some(NodeTaint::EFFECT)
    };
    let after: Vec<Value> = match state {
        TaintState::Absent => {
            let stays = |taint: &&Value| !taints.iter().any(|named| is(taint, named));
            before.iter().filter(stays).cloned().collect()
        }
        TaintState::Present => {
            let missing = taints.iter().filter(|named| !before.iter().any(|taint| is(taint, named)));
            let missing = missing.map(|named| json!({ "key": named.key(), "effect": NodeTaint::EFFECT }));
            before.iter().cloned().chain(missing).collect()
        }
    };
    (after.len() != before.len()).then_some(after)
}

/// Creates an event. Needs `create` on events of the group events.k8s.io.
///
/// # Errors
/// When the cluster cannot be reached, refuses, or does not respond in time.
pub fn create_event(
    cluster: &Cluster,
    namespace: &str,
    event: &Value,
    until: Instant,
) -> Result<(), QueryError> {
    let request = events(namespace).create(&PostParams::default(), event.to_string().into_bytes());
    write(cluster, request, until)
}

/// Changes an event by a merge patch. Needs `patch` on events of the group events.k8s.io.
///
/// # Errors
/// As [`create_event`].
pub fn patch_event(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    patch: &Value,
    until: Instant,
) -> Result<(), QueryError> {
    write(cluster, events(namespace).patch(name, &PatchParams::default(), &Patch::Merge(patch)), until)
}

fn events(namespace: &str) -> ApiRequest {
    ApiRequest::new(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))
}

pub(crate) fn write(
    cluster: &Cluster,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    until: Instant,
) -> Result<(), QueryError> {
    let request = request.map_err(|_| invalid_name())?;
    send::<IgnoredAny>(cluster, request, until).map(drop)
}

/// Answers a query of the plugin, in the protocol of the facts socket, with one request to the API server.
///
/// # Errors
/// When the query is malformed. Any other failure becomes an error response.
pub fn pod_facts(cluster: &Cluster, query: &[u8], until: Instant) -> Result<String, WireError> {
    let pod = wire::decode_request(query)?.pod;
    let request = pod_requests::one(&pod).map_err(QueryError::from);
    let response = match request.and_then(|request| send::<PodManifest>(cluster, request, until)) {
        Ok(manifest) => pod_requests::facts_response(Ok(manifest.facts()), ""),
        Err(QueryError::Api(fault)) => pod_requests::facts_response(Err(fault), ""),
        Err(QueryError::Cluster(fault)) => FactsResponse::Error(chain(&fault)),
    };
    Ok(wire::encode_response(&response))
}

pub(crate) fn send<T: DeserializeOwned>(
    cluster: &Cluster,
    request: Request<Vec<u8>>,
    until: Instant,
) -> Result<T, QueryError> {
    run(async {
        let client = cluster.client().await?;
        Ok(request_object(&client, request, until).await?)
    })?
}

/// Requests one object; `until` is the deadline.
pub(crate) async fn request_object<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
    until: Instant,
) -> Result<T, ApiError> {
    // Whole seconds, rounded up, so that a repeated error has the same text, and is logged once.
    let limit = until.saturating_duration_since(Instant::now());
    let limit = Duration::from_secs(limit.as_secs() + u64::from(limit.subsec_nanos() > 0));
    let object = tokio::time::timeout_at(until.into(), client::object(client, request)).await;
    object.unwrap_or(Err(ApiError::Late(limit)))
}

/// Runs requests on the calling thread.
pub(crate) fn run<T>(requests: impl Future<Output = T>) -> Result<T, ClusterError> {
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(ClusterError::Thread)?;
    let result = runtime.block_on(requests);
    // Does not wait for a blocking thread of the runtime that is still in a DNS lookup.
    runtime.shutdown_background();
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_taints_with_their_effect_are_changed() {
        let named: Vec<_> = ["a", "b"].into_iter().filter_map(NodeTaint::parse).collect();
        let taint = |key: &str, effect: &str| json!({ "key": key, "effect": effect });
        let (a, b) = (taint("a", "NoSchedule"), taint("b", "NoSchedule"));
        let others = [
            json!({ "key": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z" }),
            json!({ "key": "c", "value": "x", "effect": "NoSchedule" }),
        ];
        let with = |taints: &[&Value]| -> Vec<Value> {
            others.iter().chain(taints.iter().copied()).cloned().collect()
        };
        for (before, state, after) in [
            (with(&[&a, &b]), TaintState::Absent, Some(with(&[]))),
            (with(&[]), TaintState::Absent, None),
            (with(&[]), TaintState::Present, Some(with(&[&a, &b]))),
            (with(&[&b]), TaintState::Present, Some(with(&[&b, &a]))),
            (with(&[&a, &b]), TaintState::Present, None),
        ] {
            assert_eq!(changed_taints(&before, &named, state), after, "{before:?} {state:?}");
        }
    }
}
