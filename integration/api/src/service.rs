//! Answers a request in the order of a real server: authentication, authorization, then the resource; and the
//! requests that write.

use crate::credentials::{Authentication, Bearer, SERVICE_ACCOUNT, Tokens};
use crate::network::{FaultKind, Faults};
use crate::objects::{Key, Objects};
use crate::request::{ApiRequest, PROXY, Request, RequestLog, Resource, Verb};
use crate::response::{ApiResponse, ConnectionCut, JsonLayout, StatusError, created, list, object, plain};
use crate::watch::{WatchCommand, watch};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use hyper::http::request::Parts;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::broadcast;

/// The state of the server that requests use.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) objects: Arc<Objects>,
    pub(crate) tokens: Tokens,
    pub(crate) faults: Faults,
    pub(crate) log: RequestLog,
    pub(crate) watch_commands: broadcast::Sender<WatchCommand>,
    /// Pages of pods by `NAME:PORT`.
    pub(crate) pages: Mutex<BTreeMap<String, String>>,
    rights: Mutex<BTreeSet<(Verb, &'static str)>>,
}

/// The rights in the agent's ClusterRole.
const RIGHTS: [(Verb, &str); 7] = [
    (Verb::Get, "pods"),
    (Verb::List, "pods"),
    (Verb::Watch, "pods"),
    (Verb::Watch, "nodes"),
    (Verb::Get, "daemonsets"),
    (Verb::Create, "events"),
    (Verb::Patch, "events"),
];

impl Service {
    pub(crate) fn new() -> Self {
        Self {
            objects: Arc::new(Objects::new()),
            tokens: Tokens::default(),
            faults: Faults::default(),
            log: RequestLog::default(),
            watch_commands: broadcast::Sender::new(64),
            pages: Mutex::default(),
            rights: Mutex::new(BTreeSet::from(RIGHTS)),
        }
    }

    pub(crate) fn permit(&self, verb: Verb, resource: &'static str) {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner).insert((verb, resource));
    }

    pub(crate) fn forbid(&self, verb: Verb, resource: &'static str) {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner).remove(&(verb, resource));
    }

    /// Answers or closes the connection. `reused_connection`: an earlier request came on it.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Parts,
        body: &[u8],
        reused_connection: bool,
    ) -> Result<ApiResponse, ConnectionCut> {
        let Parts { method, uri, headers, .. } = request;
        let query = uri.query().unwrap_or_default();
        let request = ApiRequest::parse(&method, uri.path(), query);
        let authentication = self.authenticate(&headers);
        let index = self.log.record(Request {
            received: Instant::now(),
            method: method.to_string(),
            path: uri.path().to_owned(),
            query: query.to_owned(),
            body: String::from_utf8_lossy(body).into_owned(),
            bearer: authentication.bearer,
            code: None,
        });
        let layout = JsonLayout::of(headers.get(USER_AGENT));
        let response = match self.faults.next(request.as_ref().map(|request| request.verb), reused_connection)
        {
            Some(FaultKind::Disconnects) => return Err(ConnectionCut),
            Some(FaultKind::Silent) => std::future::pending().await,
            Some(FaultKind::Slow(delay)) => {
                tokio::time::sleep(delay).await;
                None
            }
            Some(fault) => fault.response(layout),
            None => None,
        };
        let content_type =
            headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let written = Written { content_type, body };
        let respond = || self.respond(request.as_ref(), authentication, layout, written);
        let response = response.unwrap_or_else(respond);
        self.log.set_code(index, response.status().as_u16());
        Ok(response)
    }

    fn authenticate(&self, headers: &HeaderMap) -> Authentication {
        let Some(header) = headers.get(AUTHORIZATION) else {
            return Authentication { bearer: Bearer::Anonymous, accepted: true };
        };
        let token = header.to_str().ok().and_then(|header| header.strip_prefix("Bearer "));
        self.tokens.authenticate(token.unwrap_or_default().trim())
    }

    fn respond(
        &self,
        request: Option<&ApiRequest>,
        Authentication { bearer, accepted }: Authentication,
        layout: JsonLayout,
        written: Written<'_>,
    ) -> ApiResponse {
        if !accepted {
            return StatusError::unauthorized().response(layout);
        }
        let Some(request) = request else { return plain(404, "404 page not found\n") };
        let user = match bearer {
            Bearer::Token(_) => format!("system:serviceaccount:{}:{}", SERVICE_ACCOUNT.0, SERVICE_ACCOUNT.1),
            Bearer::Anonymous | Bearer::Unknown => "system:anonymous".to_owned(),
        };
        if !self.is_authorized(bearer, request) {
            return StatusError::forbidden(request, &user).response(layout);
        }
        if request.resource == PROXY {
            return self.serve_page(request, layout);
        }
        self.serve_resource(request, layout, written).unwrap_or_else(|refusal| refusal.response(layout))
    }

    fn is_authorized(&self, bearer: Bearer, request: &ApiRequest) -> bool {
        let rights = self.rights.lock().unwrap_or_else(PoisonError::into_inner);
        let resource = request.rbac_resource();
        let granted = |(verb, name): &(Verb, &str)| *verb == request.verb && *name == resource;
        matches!(bearer, Bearer::Token(_)) && rights.iter().any(granted)
    }

    /// Returns the page of a pod, or what a real server returns when the pod does not answer.
    fn serve_page(&self, request: &ApiRequest, layout: JsonLayout) -> ApiResponse {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        match request.name.as_ref().and_then(|name| pages.get(name)) {
            Some(page) => plain(200, page),
            None => {
                let message =
                    "error trying to reach service: dial tcp 10.0.0.1:15014: connect: connection refused";
                StatusError::new(503, "ServiceUnavailable", message).response(layout)
            }
        }
    }

    fn serve_resource(
        &self,
        request: &ApiRequest,
        layout: JsonLayout,
        written: Written<'_>,
    ) -> Result<ApiResponse, StatusError> {
        let resource = request.known_resource().ok_or_else(|| StatusError::not_found(request))?;
        match (request.verb, &request.name) {
            (Verb::Get, Some(name)) => {
                let key = (request.namespace.clone().unwrap_or_default(), name.clone());
                let found =
                    self.objects.get(resource, &key).ok_or_else(|| StatusError::not_found(request))?;
                Ok(object(&found, layout))
            }
            (Verb::List, None) => list(&self.objects, resource, request),
            (Verb::Watch, None) => watch(&self.objects, resource, request, self.watch_commands.subscribe()),
            (Verb::Create, None) if resource == Resource::Events => {
                let event = create(&self.objects, resource, request, written)?;
                Ok(created(&event, layout))
            }
            (Verb::Delete, Some(_)) if resource == Resource::Pods && request.subresource.is_none() => {
                let deleted = delete(&self.objects, resource, request, written)?;
                Ok(object(&deleted, layout))
            }
            (Verb::Patch, Some(_)) if is_patched(resource, request.subresource.as_deref()) => {
                let patched = patch(&self.objects, resource, request, written)?;
                Ok(object(&patched, layout))
            }
            // Clients cannot write other objects to this server.
            _ => Err(StatusError::new(405, "MethodNotAllowed", "the server does not allow this method")),
        }
    }
}

/// Reports whether clients can patch the resource or its subresource.
fn is_patched(resource: Resource, subresource: Option<&str>) -> bool {
    match subresource {
        None => matches!(resource, Resource::Events | Resource::Nodes | Resource::ConfigMaps),
        Some(subresource) => matches!((resource, subresource), (Resource::Pods | Resource::Nodes, "status")),
    }
}

/// What a client sends to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written<'a> {
    pub(crate) content_type: &'a str,
    pub(crate) body: &'a [u8],
}

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";

impl Written<'_> {
    fn parse(self, content_type: &str) -> Result<Value, StatusError> {
        if self.content_type != content_type {
            return Err(StatusError::new(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format",
            ));
        }
        let parsed = serde_json::from_slice(self.body).ok().filter(Value::is_object);
        parsed.ok_or_else(|| StatusError::new(400, "BadRequest", "the object provided is unrecognized"))
    }
}

/// Creates an event.
pub(crate) fn create(
    objects: &Objects,
    resource: Resource,
    request: &ApiRequest,
    written: Written<'_>,
) -> Result<Arc<Value>, StatusError> {
    let event = written.parse(JSON)?;
    validate(&event, request)?;
    let key = key_of(request, text(&event, "/metadata/name"));
    if objects.get(resource, &key).is_some() {
        let message = format!("{} \"{}\" already exists", request.qualified_name(), key.1);
        return Err(StatusError::new(409, "AlreadyExists", &message));
    }
    objects.put(resource, event);
    objects.get(resource, &key).ok_or_else(|| StatusError::not_found(request))
}

/// Applies a merge patch (RFC 7386), or to the status of a node a strategic one.
pub(crate) fn patch(
    objects: &Objects,
    resource: Resource,
    request: &ApiRequest,
    written: Written<'_>,
) -> Result<Arc<Value>, StatusError> {
    let is_strategic = resource == Resource::Nodes && request.subresource.is_some();
    let mut patch = written.parse(if is_strategic { STRATEGIC_MERGE_PATCH } else { MERGE_PATCH })?;
    let key = key_of(request, request.name.as_deref().unwrap_or_default());
    let before = objects.get(resource, &key).ok_or_else(|| StatusError::not_found(request))?;
    let version = patch.pointer("/metadata/resourceVersion");
    if version.is_some_and(|version| Some(version) != before.pointer("/metadata/resourceVersion")) {
        let message =
            "the object has been modified; please apply your changes to the latest version and try again";
        return Err(StatusError::new(409, "Conflict", message));
    }
    let uid = patch.pointer("/metadata/uid");
    if uid.is_some_and(|uid| Some(uid) != before.pointer("/metadata/uid")) {
        return Err(StatusError::new(422, "Invalid", "metadata.uid: Invalid value: field is immutable"));
    }
    if is_strategic {
        merge_conditions(&before, &mut patch);
    }
    let mut after = Value::clone(&before);
    merge(&mut after, patch);
    if resource == Resource::Events {
        validate(&after, request)?;
        for field in ["regarding", "reason", "note", "type", "action", "eventTime", "reportingController"] {
            if before.get(field) != after.get(field) {
                return Err(invalid(&format!("{field}: field is immutable")));
            }
        }
    }
    objects.put(resource, after);
    objects.get(resource, &key).ok_or_else(|| StatusError::not_found(request))
}

/// Deletes an object at once, if it meets the preconditions of the request.
pub(crate) fn delete(
    objects: &Objects,
    resource: Resource,
    request: &ApiRequest,
    written: Written<'_>,
) -> Result<Arc<Value>, StatusError> {
    let options = written.parse(JSON)?;
    let key = key_of(request, request.name.as_deref().unwrap_or_default());
    let before = objects.get(resource, &key).ok_or_else(|| StatusError::not_found(request))?;
    for (precondition, name) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let required = options.pointer(&format!("/preconditions/{precondition}"));
        if required.is_some_and(|it| Some(it) != before.pointer(&format!("/metadata/{precondition}"))) {
            let message =
                format!("Precondition failed: {name} in precondition does not match {name} in object meta");
            return Err(StatusError::new(409, "Conflict", &message));
        }
    }
    objects.delete(resource, &key);
    Ok(before)
}

fn key_of(request: &ApiRequest, name: &str) -> Key {
    (request.namespace.clone().unwrap_or_default(), name.to_owned())
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn invalid(why: &str) -> StatusError {
    StatusError::new(422, "Invalid", &format!("Event.events.k8s.io is invalid: {why}"))
}

/// Validates as Kubernetes' `pkg/apis/core/validation/events.go` does for events.k8s.io/v1.
fn validate(event: &Value, request: &ApiRequest) -> Result<(), StatusError> {
    let namespace = request.namespace.as_deref().unwrap_or_default();
    if text(event, "/metadata/namespace") != namespace {
        return Err(StatusError::new(
            400,
            "BadRequest",
            "the namespace of the object does not match the request",
        ));
    }
    let regarding = Some(text(event, "/regarding/namespace")).filter(|namespace| !namespace.is_empty());
    for (field, most) in [
        ("/metadata/name", 253),
        ("/eventTime", 64),
        ("/reportingController", 253),
        ("/reportingInstance", 128),
        ("/action", 128),
        ("/reason", 128),
        ("/note", 1024),
    ] {
        if !(1..=most).contains(&text(event, field).len()) {
            return Err(invalid(&format!("{field} must have 1 to {most} bytes")));
        }
    }
    let series = event.get("series").filter(|series| !series.is_null());
    let count = series.map(|series| series.get("count").and_then(Value::as_u64).unwrap_or_default());
    if namespace != regarding.unwrap_or("default") {
        Err(invalid("regarding.namespace: does not match event.namespace"))
    } else if !matches!(text(event, "/type"), "Normal" | "Warning") {
        Err(invalid("type: has invalid value"))
    } else if count.is_some_and(|count| count < 2) {
        Err(invalid("series.count: should be at least 2"))
    } else {
        Ok(())
    }
}

/// Replaces the conditions in a patch by those of the object, with the patch's merged into them by their types, as a
/// strategic merge patch does.
fn merge_conditions(before: &Value, patch: &mut Value) {
    let Some(patched) = patch.pointer_mut("/status/conditions") else { return };
    let mut conditions =
        before.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    for condition in patched.as_array().cloned().unwrap_or_default() {
        match conditions.iter_mut().find(|there| there.get("type") == condition.get("type")) {
            Some(there) => merge(there, condition),
            None => conditions.push(condition),
        }
    }
    *patched = conditions.into();
}

fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(members) = target.as_object_mut() else { return };
    merge_members(members, patch);
}

fn merge_members(members: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, value) in patch {
        match value {
            Value::Null => drop(members.remove(&name)),
            value => merge(members.entry(name).or_insert(Value::Null), value),
        }
    }
}
