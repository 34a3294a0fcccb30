//! Requests that write: the creation of an event, merge patches of events, nodes, ConfigMaps and the status of pods,
//! and the deletion of a pod.

use crate::objects::{Key, Objects};
use crate::request::{ApiRequest, Resource};
use crate::response::StatusError;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What a client sends to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written<'a> {
    pub(crate) content_type: &'a str,
    pub(crate) body: &'a [u8],
}

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

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

/// Applies a merge patch (RFC 7386).
pub(crate) fn patch(
    objects: &Objects,
    resource: Resource,
    request: &ApiRequest,
    written: Written<'_>,
) -> Result<Arc<Value>, StatusError> {
    let patch = written.parse(MERGE_PATCH)?;
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
