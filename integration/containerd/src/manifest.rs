//! Pods' manifests, and the directory from which the plugin reads them.

use std::fs;

use serde_json::{Value, json};

use crate::{HarnessError, Sandbox, SimulatedHost};

/// The directory of manifests on the test node.
pub const DIRECTORY: &str = "/run/gybe/pods";

/// The manifest of a pod with an injected proxy for both address families.
pub fn injected(sandbox: &Sandbox) -> Value {
    let proxy = json!({
        "name": "istio-proxy",
        "args": ["proxy", "sidecar"],
        "env": [{ "name": "ISTIO_DUAL_STACK", "value": "true" }],
        "securityContext": { "runAsUser": 1337, "runAsGroup": 1337 },
    });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(sandbox),
        "spec": { "containers": [application(), proxy] },
    })
}

/// The manifest of a pod without a proxy.
pub fn plain(sandbox: &Sandbox) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(sandbox),
        "spec": { "containers": [application()] },
    })
}

/// Writes a manifest to [`DIRECTORY`].
pub fn publish(host: &SimulatedHost, sandbox: &Sandbox, manifest: &Value) -> Result<(), HarnessError> {
    let directory = host.path(DIRECTORY).join(&sandbox.namespace);
    fs::create_dir_all(&directory).map_err(HarnessError::file(&directory))?;
    let path = directory.join(format!("{}.json", sandbox.name));
    fs::write(&path, manifest.to_string()).map_err(HarnessError::file(path))
}

fn metadata(sandbox: &Sandbox) -> Value {
    json!({
        "name": sandbox.name,
        "namespace": sandbox.namespace,
        "uid": sandbox.uid(),
        "annotations": sandbox.annotations,
    })
}

fn application() -> Value {
    json!({ "name": "app", "ports": [{ "containerPort": 8080 }] })
}
