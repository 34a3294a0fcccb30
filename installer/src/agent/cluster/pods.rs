//! What is asked about pods: this node's list, its watch, and one alone. Pure: requests, and what comes
//! back as types that keep only what is needed.

use super::error::ApiError;
use gybe_plugin::args::PodRef;
use gybe_plugin::pod::Manifest;
use hyper::{Request, Uri};
use kube::api::{GetParams, ListParams, WatchParams};
use kube::core::Request as Question;
use serde::Deserialize;

const PODS: &str = "/api/v1/pods";

/// No object is longer: etcd ends at 1.5 MiB, and the API server at 3.
pub(super) const LONGEST_OBJECT: usize = 4 << 20;

/// So many of a list at once, where the server cuts it: one page is parsed and forgotten.
const PAGE: u32 = 100;

/// A list without its items.
#[derive(Deserialize)]
pub(super) struct Page {
    #[serde(default)]
    metadata: PageMetadata,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    resource_version: Option<String>,
    r#continue: Option<String>,
}

impl Page {
    /// The way to the next page.
    pub(super) fn next(&self) -> Option<&str> {
        self.metadata.r#continue.as_deref().filter(|token| !token.is_empty())
    }

    /// From which version on the list may be watched.
    pub(super) fn version(&self) -> Result<String, ApiError> {
        let version = self.metadata.resource_version.clone().filter(|version| !version.is_empty());
        version.ok_or(ApiError::Nonsense("is a list without a version"))
    }
}

/// A page of the pods of a node.
///
/// Version 0 means "as you have it in memory". Without it every agent's list would be read from etcd,
/// all of the cluster's pods, to find those of one node; the kubelet asks in the same way. What such a
/// list does not have yet comes by the watch, or is asked for alone. kube leaves the version out of a
/// question with a limit, so it is put in here; from the second page on the token has it.
pub(super) fn list(node: &str, next: Option<&str>) -> Result<Request<Vec<u8>>, ApiError> {
    let mut params = ListParams::default().fields(&on(node)).limit(PAGE);
    params.continue_token = next.map(str::to_owned);
    let mut request = Question::new(PODS).list(&params).map_err(|_| unfit())?;
    if next.is_none() {
        let any: Uri = format!("{}&resourceVersion=0", request.uri()).parse().map_err(|_| unfit())?;
        *request.uri_mut() = any;
    }
    Ok(request)
}

/// What happens to the pods of a node from a version on, for so many seconds.
pub(super) fn watch(node: &str, version: &str, seconds: u32) -> Result<Request<Vec<u8>>, ApiError> {
    let params = WatchParams::default().fields(&on(node)).timeout(seconds);
    Question::new(PODS).watch(&params, version).map_err(|_| unfit())
}

/// One pod.
pub(super) fn one(pod: &PodRef) -> Result<Request<Vec<u8>>, ApiError> {
    let pods = format!("/api/v1/namespaces/{}/pods", pod.namespace);
    Question::new(pods).get(pod.name.as_str(), &GetParams::default()).map_err(|_| unfit())
}

/// A pod, as it is asked for and as it is watched.
pub(super) type Pod = Manifest;

fn on(node: &str) -> String {
    format!("spec.nodeName={node}")
}

pub(super) fn unfit() -> ApiError {
    ApiError::Nonsense("cannot even be asked for: a name in the question is none")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_asked_for_from_memory_and_in_pages() {
        let first = list("node-1", None).unwrap();
        let asked = "/api/v1/pods?&fieldSelector=spec.nodeName%3Dnode-1&limit=100";
        assert_eq!(first.uri().to_string(), format!("{asked}&resourceVersion=0"));
        let second = list("node-1", Some("a+b=")).unwrap();
        assert_eq!(second.uri().to_string(), format!("{asked}&continue=a%2Bb%3D"));
    }

    #[test]
    fn a_watch_has_bookmarks_and_an_end() {
        let asked = watch("node-1", "77", 240).unwrap().uri().to_string();
        for part in ["watch=true", "allowWatchBookmarks=true", "timeoutSeconds=240", "resourceVersion=77"] {
            assert!(asked.contains(part), "{asked}");
        }
    }

    #[test]
    fn a_page_knows_the_next_and_where_to_watch_from() {
        let page = |text: &str| serde_json::from_str::<Page>(text).unwrap();
        let last =
            page(r#"{"kind": "PodList", "metadata": {"resourceVersion": "7", "continue": ""}, "items": []}"#);
        assert_eq!((last.next(), last.version()), (None, Ok("7".to_owned())));
        let first = page(r#"{"metadata": {"continue": "x"}}"#);
        assert_eq!((first.next(), first.version().is_err()), (Some("x"), true));
    }
}
