//! Is this pod ours to redirect? Each gate that says no has a name.
//!
//! Pure, and the order is Istio's (docs/ISTIO.md, section 3): the
//! first gate that says no is the reason told. What is redirected, and how, is in `decide`.

use crate::annotations::{self, AnnotationError, Interception};
use crate::conf::{Gates, PluginConf};
use crate::network::Handed;
use crate::pod::{Container, PodFacts, yes_or_no};
use serde_json::{Map, Value};

/// Why a pod is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The runtime named no pod.
    #[error("the caller is not Kubernetes")]
    NotKubernetes,
    /// It is a node agent itself, ours or the incumbent's.
    #[error("it is the node agent's own pod")]
    OwnPod,
    /// The operator excluded its namespace.
    #[error("its namespace is excluded")]
    ExcludedNamespace,
    /// The pod redirects itself.
    #[error("its init container istio-init redirects it")]
    IstioInit,
    /// Its owner switched the proxy off.
    #[error("DISABLE_ENVOY is set on its proxy")]
    EnvoyDisabled,
    /// There is no proxy to redirect to.
    #[error("it has no container istio-proxy")]
    NoProxy,
    /// Its proxy is a gateway.
    #[error("its proxy is a {0}, not a sidecar")]
    NotASidecar(String),
    /// Its owner opted out.
    #[error("sidecar.istio.io/inject says no")]
    InjectionRefused,
    /// The injector was never there.
    #[error("it has no annotation sidecar.istio.io/status")]
    NotInjected,
    /// Its owner wants no interception.
    #[error("sidecar.istio.io/interceptionMode is NONE")]
    ModeNone,
    /// Strict gates: nothing beside the proxy.
    #[error("it has fewer than two containers, and gates are strict")]
    ProxyAlone,
    /// Strict gates: neither yes nor nothing.
    #[error("sidecar.istio.io/inject is neither absent nor true, and gates are strict")]
    InjectionUnclear,
}

/// What an init container `istio-init` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitContainer {
    /// It will redirect the pod: leave it alone.
    Counts,
    /// Ask what we would do without it.
    Ignored,
}

/// The node agents' DaemonSets: ours, and the incumbent's, whose agent must start for an operator
/// to move from one to the other.
const AGENTS: [&str; 2] = ["gybe-node-", "istio-cni-node-"];

/// The annotation by which the injector says that it was there.
pub const STATUS: &str = "sidecar.istio.io/status";

/// The label, and the annotation, by which a pod's owner asks for the injector or forbids it.
pub(crate) const INJECT: &str = "sidecar.istio.io/inject";

/// The variable by which a proxy's owner switches it off.
pub(crate) const DISABLE_ENVOY: &str = "DISABLE_ENVOY";

/// The gates that need nobody to be asked: these pods never wait for anybody.
///
/// The agent's own pod is known by its annotations where the runtime hands them over: it is in no
/// mesh. Only without them its name has to do, which any pod of that namespace can bear (A06).
pub fn at_once(conf: &PluginConf, namespace: &str, name: &str, handed: Handed<'_>) -> Option<Reason> {
    let home = !conf.pod_namespace.is_empty() && conf.pod_namespace == namespace;
    let excluded = || conf.exclude_namespaces.contains(namespace).then_some(Reason::ExcludedNamespace);
    match handed {
        Handed::Unsaid if home && AGENTS.iter().any(|prefix| name.starts_with(prefix)) => {
            Some(Reason::OwnPod)
        }
        Handed::Unsaid => excluded(),
        Handed::Nothing => excluded().or(Some(Reason::NotInjected)),
        Handed::These(annotations) => excluded().or_else(|| by_annotations(annotations)),
    }
}

/// What annotations alone can say. No annotation of the injector: not in the mesh, whatever else
/// there is. Mode NONE: left alone, whatever else there is. An annotation `inject` says nothing
/// alone, because a label, which no runtime hands over, beats it: a pod that the injector has been
/// at in spite of `inject: "false"` has such a label, and must not start unmeshed.
fn by_annotations(annotations: &Map<String, Value>) -> Option<Reason> {
    if !annotations.contains_key(STATUS) {
        return Some(Reason::NotInjected);
    }
    let none = annotations.get(annotations::MODE).and_then(Value::as_str) == Some("NONE");
    none.then_some(Reason::ModeNone)
}

/// Whether the annotations that the runtime hands over say that this reason is another pod's: the injector
/// has been at a pod with its annotation, and adds a proxy; and a mode NONE among them ends it before.
pub fn contradicts(handed: Handed<'_>, reason: &Reason) -> bool {
    let is_injected = matches!(handed, Handed::These(annotations) if annotations.contains_key(STATUS));
    is_injected && matches!(reason, Reason::NoProxy | Reason::NotInjected | Reason::ModeNone)
}

/// All gates in order; `None` means the pod is ours.
///
/// # Errors
/// When the pod's mode is no mode, so that nobody can know whether it opted out by it.
pub fn closed(
    conf: &PluginConf,
    pod: &PodFacts,
    init: InitContainer,
) -> Result<Option<Reason>, AnnotationError> {
    let excluded = conf.exclude_namespaces.contains(&pod.namespace);
    let reason = excluded
        .then_some(Reason::ExcludedNamespace)
        .or_else(|| by_containers(pod, init))
        .or_else(|| by_injection(pod))
        .or_else(|| if conf.gates == Gates::Strict { by_strictness(pod) } else { None });
    if reason.is_some() {
        return Ok(reason);
    }
    Ok((annotations::interception(pod)? == Interception::None).then_some(Reason::ModeNone))
}

fn by_containers(pod: &PodFacts, init: InitContainer) -> Option<Reason> {
    let mut all = pod.containers.iter().chain(&pod.init_containers);
    if init == InitContainer::Counts && all.any(|container| container.name == "istio-init") {
        return Some(Reason::IstioInit);
    }
    let Some(proxy) = pod.proxy() else { return Some(Reason::NoProxy) };
    if proxy.says(DISABLE_ENVOY) == Some(true) {
        return Some(Reason::EnvoyDisabled);
    }
    other_than_sidecar(proxy).map(Reason::NotASidecar)
}

/// `proxy router …`, `proxy waypoint …`; a proxy that does not say is a sidecar.
fn other_than_sidecar(proxy: &Container) -> Option<String> {
    let [command, kind, ..] = proxy.args.as_slice() else { return None };
    (command == "proxy" && !kind.is_empty() && kind != "sidecar").then(|| kind.chars().take(32).collect())
}

/// The label beats the annotation, also where it says neither yes nor no.
fn inject(pod: &PodFacts) -> Option<&str> {
    pod.labels.get(INJECT).map(String::as_str).or_else(|| pod.annotation(INJECT))
}

fn by_injection(pod: &PodFacts) -> Option<Reason> {
    if inject(pod).and_then(yes_or_no) == Some(false) {
        return Some(Reason::InjectionRefused);
    }
    pod.annotation(STATUS).is_none().then_some(Reason::NotInjected)
}

fn by_strictness(pod: &PodFacts) -> Option<Reason> {
    if inject(pod).is_some_and(|word| yes_or_no(word) != Some(true)) {
        return Some(Reason::InjectionUnclear);
    }
    (pod.long_lived().count() < 2).then_some(Reason::ProxyAlone)
}

#[cfg(test)]
mod tests;
