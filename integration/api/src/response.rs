//! HTTP responses: headers and bodies made from the recorded responses of real API servers, a `Status` object for
//! every refusal, and lists, complete or in pages.

use crate::objects::{Key, Objects, SelectedObjects, key};
use crate::request::{ApiRequest, Resource, Selector};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body_util::channel::{Channel, Sender};
use http_body_util::{Either, Full};
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

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

/// A connection is closed before its response is complete.
#[derive(Debug, thiserror::Error)]
#[error("a fault that the test set closes the connection")]
pub(crate) struct ConnectionCut;

/// A complete body, or one sent in chunks.
pub(crate) type Body = Either<Full<Bytes>, Channel<Bytes, ConnectionCut>>;

pub(crate) type ApiResponse = Response<Body>;

/// How JSON is laid out: indented for `curl`, compact for other clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonLayout {
    Compact,
    Pretty,
}

impl JsonLayout {
    /// Decides as kube-apiserver does: `isPrettyPrint` in apiserver's
    /// `pkg/endpoints/handlers/responsewriters/writers.go`.
    pub(crate) fn of(user_agent: Option<&HeaderValue>) -> Self {
        let agent = user_agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let pretty = ["curl", "Wget", "Mozilla/5.0"].iter().any(|prefix| agent.starts_with(prefix));
        if pretty { Self::Pretty } else { Self::Compact }
    }

    fn text(self, value: &Value) -> String {
        match self {
            Self::Compact => format!("{value}\n"),
            Self::Pretty => serde_json::to_string_pretty(value).unwrap_or_default(),
        }
    }
}

/// A refused request, as the `Status` object that reports it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StatusError {
    code: u16,
    recording: &'static str,
    status: Value,
}

impl StatusError {
    /// 401: the token is not accepted.
    pub(crate) fn unauthorized() -> Self {
        Self { code: 401, recording: "pod-401", status: from_recording("pod-401", json!({})) }
    }

    /// 403: RBAC grants the user no such right.
    pub(crate) fn forbidden(request: &ApiRequest, user: &str) -> Self {
        let scope = request.namespace.as_ref().map_or("at the cluster scope".to_owned(), |namespace| {
            format!("in the namespace \"{namespace}\"")
        });
        let message = format!(
            "{} is forbidden: User \"{user}\" cannot {} resource \"{}\" in API group \"{}\" {scope}",
            request.qualified_name(),
            request.verb.name(),
            request.resource,
            request.group
        );
        let status = json!({ "message": message, "details": request.details() });
        Self { code: 403, recording: "secrets-403", status: from_recording("secrets-403", status) }
    }

    pub(crate) fn not_found(request: &ApiRequest) -> Self {
        let message = format!("{} not found", request.qualified_name());
        let status = json!({ "message": message, "details": request.details() });
        Self { code: 404, recording: "pod-404", status: from_recording("pod-404", status) }
    }

    /// 410: the version is compacted. `continue_token` leads to the rest of a list at the newest version.
    pub(crate) fn expired(message: &str, continue_token: Option<String>) -> Self {
        let metadata = continue_token.map_or(json!({}), |token| json!({ "continue": token }));
        let status = json!({ "metadata": metadata, "message": message, "reason": "Expired", "code": 410 });
        Self {
            code: 410,
            recording: "pod-404",
            status: from_recording("watch-410", json!({ "object": status })),
        }
    }

    /// A refusal with any other code.
    pub(crate) fn new(code: u16, reason: &str, message: &str) -> Self {
        let status = json!({ "message": message, "reason": reason, "code": code, "details": null });
        Self { code, recording: "pod-404", status: from_recording("pod-404", status) }
    }

    pub(crate) fn with_details(mut self, details: Value) -> Self {
        if let Some(status) = self.status.as_object_mut() {
            status.insert("details".into(), details);
        }
        self
    }

    pub(crate) fn response(&self, layout: JsonLayout) -> ApiResponse {
        response(self.code, self.recording, layout.text(&self.status))
    }

    /// The refusal as an event of a watch.
    pub(crate) fn event(&self) -> Value {
        json!({ "type": "ERROR", "object": self.status })
    }
}

/// Returns a recorded body with members replaced by those of `other`; a null member is removed.
fn from_recording(recording: &str, other: Value) -> Value {
    let mut body = recorded(recording).map(|it| it.body.clone()).unwrap_or_default();
    let mut other = other;
    if let Some(object) = body.get_mut("object").map(Value::take) {
        (body, other) = (object, other.get_mut("object").map(Value::take).unwrap_or_default());
    }
    if let (Some(body), Value::Object(other)) = (body.as_object_mut(), other) {
        body.extend(other);
        body.retain(|_, value| !value.is_null());
    }
    body
}

pub(crate) fn object(object: &Value, layout: JsonLayout) -> ApiResponse {
    response(200, "pod-200", layout.text(object))
}

pub(crate) fn created(object: &Value, layout: JsonLayout) -> ApiResponse {
    response(201, "pod-200", layout.text(object))
}

/// A chunked response with the headers of that recording.
pub(crate) fn stream(recording: &str, body: Channel<Bytes, ConnectionCut>) -> ApiResponse {
    with_headers(200, recording, Either::Right(body))
}

/// The response of an overloaded server: `tooManyRequests` in apiserver's `pkg/server/filters/maxinflight.go`.
pub(crate) fn too_many_requests(retry_after: u64) -> ApiResponse {
    let mut response = plain(429, "Too many requests, please try again later.\n");
    response.headers_mut().insert(RETRY_AFTER, retry_after.into());
    response
}

/// A plain-text response as Go's `http.Error` writes it.
pub(crate) fn plain(code: u16, text: &str) -> ApiResponse {
    let mut response = with_headers(code, "", Either::Left(Full::from(text.to_owned())));
    for (name, value) in
        [("content-type", "text/plain; charset=utf-8"), ("x-content-type-options", "nosniff")]
    {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn response(code: u16, recording: &str, text: String) -> ApiResponse {
    with_headers(code, recording, Either::Left(Full::from(text)))
}

fn with_headers(code: u16, recording: &str, body: Body) -> ApiResponse {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = recorded(recording).map(|Recorded { headers, .. }| headers.clone());
    response.headers_mut().extend(headers.unwrap_or_default());
    response
}

/// Responses of Kubernetes 1.20.2, the oldest supported version. A request that was not recorded with it was
/// recorded with 1.36.2.
const OLDER: &str = include_str!("../../vectors/runtime/kube-api/1.20.2.json");
const NEWER: &str = include_str!("../../vectors/runtime/kube-api/1.36.2.json");

/// Headers that differ in every response; hyper or the test server sets them.
const VOLATILE_HEADERS: [&str; 4] = ["audit-id", "date", "transfer-encoding", "content-length"];

/// One recorded response.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Without [`VOLATILE_HEADERS`].
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Value,
}

static ALL: LazyLock<BTreeMap<String, Recorded>> = LazyLock::new(|| {
    let mut all = BTreeMap::new();
    for text in [NEWER, OLDER] {
        let parts: BTreeMap<String, String> = serde_json::from_str(text).unwrap_or_default();
        for (name, head) in
            parts.iter().filter_map(|(name, head)| Some((name.strip_suffix(".headers")?, head)))
        {
            // A watch has one object per line, of which the first is a template for events.
            let first = parts.get(&format!("{name}.json")).map(String::as_str).unwrap_or_default();
            let body = serde_json::Deserializer::from_str(first).into_iter().next();
            let body = body.and_then(Result::ok).unwrap_or_default();
            all.insert(name.to_owned(), Recorded { headers: headers(head), body });
        }
    }
    all
});

/// Returns the response recorded under that name; the one of the older server where both have it.
pub(crate) fn recorded(name: &str) -> Option<&'static Recorded> {
    ALL.get(name)
}

fn headers(head: &str) -> Vec<(HeaderName, HeaderValue)> {
    let pairs = head.lines().skip(1).filter_map(|line| line.split_once(": "));
    let pairs = pairs.filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)));
    pairs.filter(|(name, _): &(HeaderName, _)| !VOLATILE_HEADERS.contains(&name.as_str())).collect()
}
