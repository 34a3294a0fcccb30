//! Pods' manifests as an API server would hand them out, and the directory the plugin reads them
//! from; not what the plugin makes of them.

use std::fs;

use serde_json::{Value, json};

use crate::{Sandbox, Stage, Trouble};

/// Where the plugin's entry says that manifests are, inside the stage.
pub const DIRECTORY: &str = "/run/gybe/pods";

/// What Istio's injector leaves in a pod beside its annotation: a proxy for both families.
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

/// The same pod in a namespace that no injector looks at.
pub fn plain(sandbox: &Sandbox) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(sandbox),
        "spec": { "containers": [application()] },
    })
}

/// Puts a manifest where the plugin looks for it.
pub fn publish(stage: &Stage, sandbox: &Sandbox, manifest: &Value) -> Result<(), Trouble> {
    let directory = stage.path(DIRECTORY).join(&sandbox.namespace);
    fs::create_dir_all(&directory).map_err(Trouble::file(&directory))?;
    let path = directory.join(format!("{}.json", sandbox.name));
    fs::write(&path, manifest.to_string()).map_err(Trouble::file(path))
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
