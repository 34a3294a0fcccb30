//! Builds the requests about this node's pods (list, watch, single pods) and about a node (get, watch), and converts a
//! pod in a response to the plugin's facts. Pure.

use super::error::ApiError;
use super::objects::AgentPodStatus;
use gybe_plugin::args::{Namespace, PodRef};
use gybe_plugin::facts::wire::FactsResponse;
use gybe_plugin::pod::{Manifest, ManifestError, PodFacts};
use hyper::{Request, Uri};
use kube::api::{GetParams, ListParams};
use kube::core::Request as ApiRequest;

const PODS: &str = "/api/v1/pods";
const NODES: &str = "/api/v1/nodes";
const NAMESPACES: &str = "/api/v1/namespaces";

/// The largest response with one object, in bytes. etcd limits a request to 1.5 MiB, the API server to 3 MiB.
pub(crate) const MAX_OBJECT: usize = 4 << 20;

/// The pods in a page, unless the server returns the whole list in one. Pages are parsed one by one.
const PAGE_SIZE: u32 = 100;

/// Selects pods of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSelector {
    pub namespace: Namespace,
    /// A label selector, which the API server parses.
    pub labels: String,
}

/// Requests a page of a node's pods.
///
/// With `may_lag` it has `resourceVersion=0`, "from the server's cache". Without it the server may read all of the
/// cluster's pods from etcd for every agent; the kubelet lists in the same way. The watch or a lookup delivers a pod that
/// this list lacks. kube omits the version from a request with a limit, so it is added here; the continue token of later
/// pages has it.
pub(crate) fn list(
    node: &str,
    continue_token: Option<&str>,
    may_lag: bool,
) -> Result<Request<Vec<u8>>, ApiError> {
    let mut params = ListParams::default().fields(&of_node(node)).limit(PAGE_SIZE);
    params.continue_token = continue_token.map(str::to_owned);
    let mut request = ApiRequest::new(PODS).list(&params).map_err(|_| invalid_name())?;
    if continue_token.is_none() && may_lag {
        let uri: Uri = format!("{}&resourceVersion=0", request.uri()).parse().map_err(|_| invalid_name())?;
        *request.uri_mut() = uri;
    }
    Ok(request)
}

/// Requests the watch events of a node's pods after a resource version, for `seconds`.
pub(crate) fn watch(node: &str, version: &str, seconds: u32) -> Result<Request<Vec<u8>>, ApiError> {
    watch_fields(PODS, &of_node(node), version, seconds)
}

/// Requests a node.
pub(crate) fn node(name: &str) -> Result<Request<Vec<u8>>, ApiError> {
    ApiRequest::new(NODES).get(name, &GetParams::default()).map_err(|_| invalid_name())
}

/// Requests the watch events of a node after a resource version, for `seconds`.
pub(crate) fn watch_node(node: &str, version: &str, seconds: u32) -> Result<Request<Vec<u8>>, ApiError> {
    watch_fields(NODES, &format!("metadata.name={node}"), version, seconds)
}

/// Requests the watch events of all namespaces after a resource version, for `seconds`.
pub(crate) fn watch_namespaces(version: &str, seconds: u32) -> Result<Request<Vec<u8>>, ApiError> {
    watch_fields(NAMESPACES, "", version, seconds)
}

/// Requests the watch events of the objects at `path` that `fields` select; of all with an empty text.
fn watch_fields(path: &str, fields: &str, version: &str, seconds: u32) -> Result<Request<Vec<u8>>, ApiError> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("watch", "true");
    if !fields.is_empty() {
        query.append_pair("fieldSelector", fields);
    }
    let query = query
        .append_pair("resourceVersion", version)
        .append_pair("allowWatchBookmarks", "true")
        .append_pair("timeoutSeconds", &seconds.to_string())
        .finish();
    Request::get(format!("{path}?{query}")).body(Vec::new()).map_err(|_| invalid_name())
}

/// Requests a pod.
pub(crate) fn one(pod: &PodRef) -> Result<Request<Vec<u8>>, ApiError> {
    let pods = format!("/api/v1/namespaces/{}/pods", pod.namespace);
    ApiRequest::new(pods).get(pod.name.as_str(), &GetParams::default()).map_err(|_| invalid_name())
}

/// Requests a list with this pod; the list is empty if the pod is on another node, or `fields` or `labels` (empty for
/// none) do not select it.
pub(crate) fn one_if_selected(
    node: &str,
    pod: &PodRef,
    fields: &str,
    labels: &str,
) -> Result<Request<Vec<u8>>, ApiError> {
    let fields = match fields {
        "" => format!("metadata.name={},{}", pod.name, of_node(node)),
        more => format!("metadata.name={},{},{more}", pod.name, of_node(node)),
    };
    let pods = format!("/api/v1/namespaces/{}/pods", pod.namespace);
    let params = ListParams::default().fields(&fields);
    let params = if labels.is_empty() { params } else { params.labels(labels) };
    ApiRequest::new(pods).list(&params).map_err(|_| invalid_name())
}

/// Requests the selected pods of a node, from the server's cache.
pub(crate) fn selected(node: &str, selector: &PodSelector) -> Result<Request<Vec<u8>>, ApiError> {
    let params = ListParams::default().fields(&of_node(node)).labels(&selector.labels).match_any();
    let pods = ApiRequest::new(format!("/api/v1/namespaces/{}/pods", selector.namespace));
    pods.list(&params).map_err(|_| invalid_name())
}

pub(crate) type PodManifest = Manifest<AgentPodStatus>;

fn of_node(node: &str) -> String {
    format!("spec.nodeName={node}")
}

pub(crate) fn invalid_name() -> ApiError {
    ApiError::Unreadable("cannot be requested: a name in the request is invalid")
}

/// Converts the facts in the API server's response to a response to the plugin; `preface` precedes the text of an error.
pub(crate) fn facts_response(
    response: Result<Result<PodFacts, ManifestError>, ApiError>,
    preface: &str,
) -> FactsResponse {
    match response {
        Ok(Ok(facts)) => FactsResponse::Pod(Box::new(facts)),
        Ok(Err(fault)) => FactsResponse::Error(format!("{preface}the API server's answer is {fault}")),
        Err(fault) if fault.is_missing() => FactsResponse::Unknown,
        Err(fault) => FactsResponse::Error(format!("{preface}{fault}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_requested_from_the_servers_cache_and_in_pages() {
        let first = list("node-1", None, true).unwrap();
        let uri = "/api/v1/pods?&fieldSelector=spec.nodeName%3Dnode-1&limit=100";
        assert_eq!(first.uri().to_string(), format!("{uri}&resourceVersion=0"));
        assert_eq!(list("node-1", None, false).unwrap().uri().to_string(), uri);
        let second = list("node-1", Some("a+b="), true).unwrap();
        assert_eq!(second.uri().to_string(), format!("{uri}&continue=a%2Bb%3D"));
    }

    #[test]
    fn a_watch_has_bookmarks_and_an_end() {
        let query = "resourceVersion=77&allowWatchBookmarks=true&timeoutSeconds=2400";
        let uri = watch("node-1", "77", 2_400).unwrap().uri().to_string();
        assert_eq!(uri, format!("/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dnode-1&{query}"));
        let uri = watch_node("a&b", "77", 2_400).unwrap().uri().to_string();
        assert_eq!(uri, format!("/api/v1/nodes?watch=true&fieldSelector=metadata.name%3Da%26b&{query}"));
    }
}
