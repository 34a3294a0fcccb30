//! The namespaces of the scenarios' pods: one that istiod injects and that requires mutual TLS, and one without.

use std::time::Duration;

use gybe_integration::failure::Failure;
use serde::Deserialize;
use serde_json::{Value, json};

use super::application::{self, INIT, MESHED, PLAIN, VALIDATION};
use super::with_cleanup;
use super::workstation::Workstation;
use crate::api::{Api, wait_for, wait_for_every};

/// More than the API server takes to delete a namespace whose pods end within seconds.
const DELETED: Duration = Duration::from_secs(240);
/// The time between two looks at a namespace that is being deleted.
const INTERVAL: Duration = Duration::from_secs(1);
/// More than istiod, and kube-proxy with its address, take to answer the API server.
const INJECTED: Duration = Duration::from_secs(120);

/// A namespace that exists, or did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Namespace {
    pub(super) name: &'static str,
    uid: String,
}

impl Namespace {
    fn new(name: &'static str, object: &Value) -> Namespace {
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        Namespace { name, uid: uid.to_owned() }
    }

    /// Deletes the namespace with all that is in it, unless that has begun. Reports whether it is gone.
    fn delete(&self, api: &Api) -> Result<bool, Failure> {
        let found = api.get(&path(self.name))?;
        let Some(found) = found.filter(|found| *self == Namespace::new(self.name, found)) else {
            return Ok(true);
        };
        if found.pointer("/metadata/deletionTimestamp").is_none() {
            api.delete_uid(&path(self.name), &self.uid)?;
        }
        Ok(false)
    }
}

/// Creates the namespaces, or none. `revision`: of the istiod that injects; by default that of the default revision.
pub(super) fn create(workstation: &Workstation, revision: Option<&str>) -> Result<Vec<Namespace>, Failure> {
    let injection = revision.map_or(("istio-injection", "enabled"), |revision| ("istio.io/rev", revision));
    let api = &workstation.api;
    let mut created = Vec::new();
    let mut create_all = || {
        for (name, label) in [(MESHED, injection), (PLAIN, ("istio-injection", "disabled"))] {
            created.push(create_one(api, name, label)?);
        }
        require_mutual_tls(api)
    };
    match create_all() {
        Ok(()) => Ok(created),
        Err(error) => with_cleanup(Err(error), delete(api, &created)),
    }
}

fn create_one(api: &Api, name: &'static str, (label, value): (&str, &str)) -> Result<Namespace, Failure> {
    // Sidecars of TPROXY have a capability that Pod Security refuses by default.
    let labels = json!({ label: value, "pod-security.kubernetes.io/enforce": "privileged" });
    let namespace = json!({ "metadata": { "name": name, "labels": labels } });
    Ok(Namespace::new(name, &api.create("/api/v1/namespaces", &namespace)?))
}

fn require_mutual_tls(api: &Api) -> Result<(), Failure> {
    let policies = format!("/apis/security.istio.io/v1/namespaces/{MESHED}/peerauthentications");
    let policy = json!({
        "apiVersion": "security.istio.io/v1",
        "kind": "PeerAuthentication",
        "metadata": { "name": "default" },
        "spec": { "mtls": { "mode": "STRICT" } },
    });
    api.create(&policies, &policy).map(drop)
}

/// Waits until pods of the mesh get a sidecar whose redirection is left to a CNI plugin.
pub(super) fn wait_until_injected(workstation: &Workstation) -> Result<(), Failure> {
    let what = format!(
        "a pod of namespace {MESHED} gets a sidecar with {VALIDATION}, and no {INIT}; see docs/INSTALL.md"
    );
    wait_for_init_containers(workstation, &what, |added| {
        let has = |name: &str| added.iter().any(|it| it.name == name);
        has(VALIDATION) && !has(INIT)
    })
}

/// An init container that a pod got.
#[derive(Debug, Deserialize)]
pub(super) struct InitContainer {
    pub(super) name: String,
    pub(super) image: String,
}

/// Waits until the init containers that a new pod of the mesh gets are the expected ones.
pub(super) fn wait_for_init_containers(
    workstation: &Workstation,
    what: &str,
    is_expected: impl Fn(&[InitContainer]) -> bool,
) -> Result<(), Failure> {
    let mut last = String::new();
    wait_for(INJECTED, what, || {
        // Refused until the namespace has its service account, and kube-proxy the address of istiod's pod.
        last = match injected_init_containers(workstation) {
            Ok(added) if is_expected(&added) => return Ok(Some(())),
            Ok(added) => format!("the pod got the init containers {added:?}"),
            Err(error) => format!("the pod was not created: {error:?}"),
        };
        Ok(None)
    })
    .map_err(|error| Failure::new(format!("{error:?}: {last}")))
}

/// Returns the init containers of a pod that is created now.
fn injected_init_containers(workstation: &Workstation) -> Result<Vec<InitContainer>, Failure> {
    let spec = json!({ "containers": [{ "name": "app", "image": workstation.application }] });
    let pod = json!({ "metadata": { "name": "dry-run" }, "spec": spec });
    let pod = workstation.api.create(&format!("/api/v1/namespaces/{MESHED}/pods?dryRun=All"), &pod)?;
    Ok(pod.pointer("/spec/initContainers").map_or(Ok(Vec::new()), Vec::deserialize)?)
}

/// Deletes the pods in the namespaces, and waits until they are gone.
pub(super) fn delete_pods(workstation: &Workstation) -> Result<(), Failure> {
    [MESHED, PLAIN].iter().try_for_each(|namespace| application::delete_all(workstation, namespace))
}

/// Returns those of the namespaces that exist.
pub(super) fn existing(api: &Api) -> Result<Vec<Namespace>, Failure> {
    let mut found = Vec::new();
    for name in [MESHED, PLAIN] {
        found.extend(api.get(&path(name))?.map(|object| Namespace::new(name, &object)));
    }
    Ok(found)
}

/// Deletes these namespaces with all that is in them, and waits until they are gone. Requests that fail are repeated.
pub(super) fn delete(api: &Api, namespaces: &[Namespace]) -> Result<(), Failure> {
    let mut left: Vec<(&str, Result<bool, Failure>)> = Vec::new();
    wait_for_every(INTERVAL, DELETED, "the namespaces are deleted", || {
        left = namespaces.iter().map(|namespace| (namespace.name, namespace.delete(api))).collect();
        left.retain(|(_, is_gone)| !matches!(is_gone, Ok(true)));
        Ok(left.is_empty().then_some(()))
    })
    .map_err(|error| {
        let names: Vec<_> = left.iter().map(|(name, _)| *name).collect();
        let causes = left
            .iter()
            .filter_map(|(name, is_gone)| Some(format!("\n{name}: {:?}", is_gone.as_ref().err()?)));
        let causes: String = causes.collect();
        Failure::new(format!("{error:?}; run {}{causes}", delete_command(&names)))
    })
}

/// Returns the command that deletes namespaces by hand.
pub(super) fn delete_command(names: &[&str]) -> String {
    format!("kubectl delete namespace {}", names.join(" "))
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/{name}")
}
