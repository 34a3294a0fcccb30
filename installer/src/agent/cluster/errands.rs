//! Single questions that are asked rarely: about the own node, and whether the own DaemonSet is still
//! there. Each on the thread that asks, with a deadline.

use super::access::{Cluster, ClusterError};
use super::error::ApiError;
use super::line;
use super::pods::unfit;
use hyper::Request;
use kube::api::GetParams;
use kube::core::Request as Question;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Instant;
use tokio::runtime;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ErrandError {
    /// There is no way to ask.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// It was asked, and told nothing.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// What has become of a DaemonSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is there.
    Present,
    /// It is on its way out.
    BeingDeleted,
    /// It is not there.
    Gone,
    /// The API server does not know us any more, or does not let us ask (401, 403): the namespace or
    /// the service account may be gone, or somebody changed a role. It proves nothing.
    Refused(String),
    /// Nobody answered.
    Unknown(String),
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    labels: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<String>,
}

/// The labels of a node. Needs `get` on nodes.
///
/// # Errors
/// When the cluster cannot be asked, or does not tell by then.
pub fn node_labels(
    cluster: &Cluster,
    node: &str,
    until: Instant,
) -> Result<BTreeMap<String, String>, ErrandError> {
    let request = Question::new("/api/v1/nodes").get(node, &GetParams::default()).map_err(|_| unfit());
    Ok(ask::<Object>(cluster, request?, until)?.metadata.labels.unwrap_or_default())
}

/// What has become of a DaemonSet. Needs `get` on it by its name.
pub fn daemonset_fate(cluster: &Cluster, namespace: &str, name: &str, until: Instant) -> Fate {
    // Without one it would be another question, and 404 its answer.
    if namespace.is_empty() {
        return Fate::Unknown("nobody said which namespace is ours".to_owned());
    }
    let sets = Question::new(format!("/apis/apps/v1/namespaces/{namespace}/daemonsets"));
    let request = sets.get(name, &GetParams::default()).map_err(|_| ErrandError::from(unfit()));
    match request.and_then(|request| ask::<Object>(cluster, request, until)) {
        Ok(Object { metadata }) if metadata.deletion_timestamp.is_some() => Fate::BeingDeleted,
        Ok(_) => Fate::Present,
        Err(ErrandError::Api(fault)) if fault.is_not_found() => Fate::Gone,
        Err(ErrandError::Api(fault)) if fault.is_forbidden() => Fate::Refused(fault.to_string()),
        Err(fault) => Fate::Unknown(fault.to_string()),
    }
}

/// One GET.
pub(super) fn ask<T: DeserializeOwned>(
    cluster: &Cluster,
    request: Request<Vec<u8>>,
    until: Instant,
) -> Result<T, ErrandError> {
    let began = Instant::now();
    let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(ClusterError::Thread)?;
    let asked = runtime.block_on(async {
        let client = cluster.client().await?;
        let answer = tokio::time::timeout_at(until.into(), line::object(&client, request)).await;
        Ok(answer.unwrap_or_else(|_| Err(ApiError::Late(began.elapsed())))?)
    });
    // A name that is being looked up keeps a thread of the runtime's; nobody waits for it.
    runtime.shutdown_background();
    asked
}
