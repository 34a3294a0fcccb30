//! The namespaces of the scenarios' pods: one that istiod injects and that requires mutual TLS, and one without.

use std::time::Duration;

use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::application::{self, MESHED, PLAIN, VALIDATION};
use super::workstation::Workstation;
use crate::api::{Api, wait_at_most};

/// More than the API server takes to delete a namespace whose pods end within seconds.
const DELETED: Duration = Duration::from_secs(240);
/// More than istiod, and kube-proxy with its address, take to answer the API server.
const INJECTED: Duration = Duration::from_secs(120);

/// Creates the namespaces. `revision`: of the istiod that injects; by default that of the default revision.
pub(super) fn create(workstation: &Workstation, revision: Option<&str>) -> Result<(), Failure> {
    let injection = revision.map_or(("istio-injection", "enabled"), |revision| ("istio.io/rev", revision));
    for (name, (label, value)) in [(MESHED, injection), (PLAIN, ("istio-injection", "disabled"))] {
        // Sidecars of TPROXY have a capability that Pod Security refuses by default.
        let labels = json!({ label: value, "pod-security.kubernetes.io/enforce": "privileged" });
        let namespace = json!({ "metadata": { "name": name, "labels": labels } });
        workstation.api.create("/api/v1/namespaces", &namespace)?;
    }
    let policies = format!("/apis/security.istio.io/v1/namespaces/{MESHED}/peerauthentications");
    let policy = json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "PeerAuthentication",
        "metadata": { "name": "default" },
        "spec": { "mtls": { "mode": "STRICT" } },
    });
    workstation.api.create(&policies, &policy)?;
    Ok(())
}

/// Waits until pods of the mesh get a sidecar whose redirection is left to a CNI plugin.
pub(super) fn wait_until_injected(workstation: &Workstation) -> Result<(), Failure> {
    let what = format!(
        "istiod adds a sidecar with {VALIDATION}, and no istio-init, to a pod of namespace {MESHED}; see docs/INSTALL.md"
    );
    wait_at_most(INJECTED, &what, || {
        let injected = injected_init_containers(workstation);
        let has = |name: &str| injected.iter().any(|it| it.get("name").and_then(Value::as_str) == Some(name));
        Ok(has(VALIDATION) && !has("istio-init"))
    })
}

/// Returns the init containers of a pod that is created now; none while it gets no sidecar.
pub(super) fn injected_init_containers(workstation: &Workstation) -> Vec<Value> {
    let spec = json!({ "containers": [{ "name": "app", "image": workstation.application }] });
    let pod = json!({ "metadata": { "name": "dry-run" }, "spec": spec });
    // Refused until the namespace has its service account, and kube-proxy the address of istiod's pod.
    let created = workstation.api.create(&format!("/api/v1/namespaces/{MESHED}/pods?dryRun=All"), &pod);
    let pod = created.unwrap_or_default();
    pod.pointer("/spec/initContainers").and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Deletes the pods in the namespaces, and waits until they are gone.
pub(super) fn delete_pods(workstation: &Workstation) -> Result<(), Failure> {
    [MESHED, PLAIN].iter().try_for_each(|namespace| application::delete_all(workstation, namespace))
}

/// Returns which of the namespaces exist.
pub(super) fn existing(api: &Api) -> Result<Vec<&'static str>, Failure> {
    let mut found = Vec::new();
    for name in [MESHED, PLAIN] {
        if api.get(&path(name))?.is_some() {
            found.push(name);
        }
    }
    Ok(found)
}

/// Deletes the namespaces with all that is in them, and waits until they are gone.
pub(super) fn delete(api: &Api) -> Result<(), Failure> {
    for name in existing(api)? {
        api.delete(&path(name))?;
    }
    let command = format!("namespaces are deleted (kubectl delete namespace {MESHED} {PLAIN})");
    wait_at_most(DELETED, &command, || Ok(existing(api)?.is_empty()))
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/{name}")
}
