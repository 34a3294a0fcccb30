//! Responses to list requests, complete or in pages.

use crate::objects::{Key, Objects, SelectedObjects, key};
use crate::request::{ApiRequest, Resource, Selector};
use crate::response::{ApiResponse, ConnectionCut, StatusError, stream};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// apiserver's `pkg/storage/etcd3/errors.go`, `inconsistentContinue`.
const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. \
    You can start a new list without the continue parameter, or use the continue token in this response to \
    retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - \
    objects that were created, modified, or deleted between the time the first chunk was returned and now may \
    show up in the list.";

type Items = Box<dyn Iterator<Item = Arc<Value>> + Send>;

/// Where a page begins: behind the last object of the page before, at the version of all pages.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    version: Option<u64>,
    after: Option<Key>,
}

pub(crate) fn list(
    objects: &Objects,
    resource: Resource,
    request: &ApiRequest,
) -> Result<ApiResponse, StatusError> {
    let selector = selector(request)?;
    let page = Page::requested(request, objects)?;
    let version = page.version.unwrap_or_else(|| objects.newest());
    let items = SelectedObjects::new(objects, resource, version, &selector, page.after.as_ref());
    let mut metadata = Map::from_iter([("resourceVersion".to_owned(), version.to_string().into())]);
    let mut items: Items = Box::new(items);
    if let Some(limit) = limit(request) {
        let page: Vec<Arc<Value>> = items.by_ref().take(limit).collect();
        let left = items.size_hint().1.unwrap_or(0);
        if let Some(last) = page.last().filter(|_| left > 0) {
            let next = Page { version: Some(version), after: Some(key(last)) };
            metadata.insert("continue".into(), next.token().into());
            if selector.is_empty() {
                metadata.insert("remainingItemCount".into(), left.into());
            }
        }
        items = Box::new(page.into_iter());
    }
    let (sender, body) = Channel::new(16);
    tokio::spawn(send(sender, resource, metadata.into(), items));
    Ok(stream("list-200", body))
}

pub(crate) fn selector(request: &ApiRequest) -> Result<Selector, StatusError> {
    let (fields, labels) = (request.parameter("fieldSelector"), request.parameter("labelSelector"));
    Selector::parse(request.namespace.clone(), fields, labels)
        .map_err(|message| StatusError::new(400, "BadRequest", &message))
}

/// Returns the number of objects in a page. A list of any version (version 0) is complete, whatever its limit.
fn limit(request: &ApiRequest) -> Option<usize> {
    if request.parameter("resourceVersion") == "0" {
        return None;
    }
    request.parameter("limit").parse().ok().filter(|limit| *limit > 0)
}

async fn send(mut body: Sender<Bytes, ConnectionCut>, resource: Resource, metadata: Value, items: Items) {
    let kind = resource.kind();
    let api = resource.api_version();
    let head = format!(r#"{{"kind":"{kind}List","apiVersion":"{api}","metadata":{metadata},"items":["#);
    let mut between = head;
    for item in items {
        let mut item = Value::clone(&item);
        if let Some(members) = item.as_object_mut() {
            members.remove("kind");
            members.remove("apiVersion");
        }
        // An error means that the client closed the connection.
        if body.send_data(format!("{between}{item}").into()).await.is_err() {
            return;
        }
        between = ",".to_owned();
    }
    let open = if between == "," { String::new() } else { between };
    let _client_gone = body.send_data(format!("{open}]}}\n").into()).await;
}

impl Page {
    fn requested(request: &ApiRequest, objects: &Objects) -> Result<Self, StatusError> {
        let newest = objects.newest();
        let token = request.parameter("continue");
        if token.is_empty() {
            return requested_version(request, newest).map(|version| Self { version, after: None });
        }
        let Some(mut page) = Self::read(token) else {
            return Err(StatusError::new(400, "BadRequest", "continue key is not valid"));
        };
        if page.version.is_some_and(|version| objects.is_compacted(version)) {
            page.version = None;
            return Err(StatusError::expired(CONTINUE_EXPIRED, Some(page.token())));
        }
        Ok(page)
    }

    /// Encodes the page as etcd3's storage does; version -1 means the newest.
    fn token(&self) -> String {
        let (namespace, name) = self.after.clone().unwrap_or_default();
        let version = self.version.and_then(|version| i64::try_from(version).ok()).unwrap_or(-1);
        let token = json!({ "v": "meta.k8s.io/v1", "rv": version, "start": format!("{namespace}/{name}\0") });
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn read(token: &str) -> Option<Self> {
        let token: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let start = token.get("start")?.as_str()?.strip_suffix('\0')?;
        let (namespace, name) = start.split_once('/')?;
        let version = u64::try_from(token.get("rv")?.as_i64()?).ok();
        Some(Self { version, after: Some((namespace.to_owned(), name.to_owned())) })
    }
}

/// Returns the version of a list that requests one exactly.
fn requested_version(request: &ApiRequest, newest: u64) -> Result<Option<u64>, StatusError> {
    let text = request.parameter("resourceVersion");
    let Some(requested) = Some(text).filter(|text| !text.is_empty()) else { return Ok(None) };
    let Ok(requested) = requested.parse::<u64>() else {
        return Err(StatusError::new(400, "BadRequest", &format!("invalid resource version \"{text}\"")));
    };
    if requested > newest {
        let message = format!("Too large resource version: {requested}, current: {newest}");
        let cause = json!({ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" });
        let details = json!({ "causes": [cause], "retryAfterSeconds": 1 });
        return Err(StatusError::new(504, "Timeout", &message).with_details(details));
    }
    Ok(Some(requested).filter(|_| request.parameter("resourceVersionMatch") == "Exact"))
}
