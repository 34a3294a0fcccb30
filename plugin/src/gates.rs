//! Gates: whether a pod is left alone, and the reason.
//!
//! Pure. The order is Istio's (docs/ISTIO.md, section 3): the first closed gate gives the reason. What is
//! redirected, and how, is in `decide`.

use crate::annotations::{self, AnnotationError, Interception};
use crate::conf::{Gates, PluginConf};
use crate::network_conf::RuntimeAnnotations;
use crate::pod::{Container, PodFacts, parse_bool};
use serde_json::{Map, Value};

/// Why a pod is left alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaveAloneReason {
    /// The runtime names no pod.
    #[error("the caller is not Kubernetes")]
    NotKubernetes,
    /// The pod of a node agent, of Gybe or of istio-cni.
    #[error("it is the node agent's own pod")]
    OwnPod,
    /// `exclude_namespaces` has the pod's namespace.
    #[error("its namespace is excluded")]
    ExcludedNamespace,
    /// The pod redirects itself.
    #[error("its init container istio-init redirects it")]
    IstioInit,
    /// The proxy is switched off.
    #[error("DISABLE_ENVOY is set on its proxy")]
    EnvoyDisabled,
    /// There is no proxy to redirect to.
    #[error("it has no container istio-proxy")]
    NoProxy,
    /// The proxy is a gateway or a waypoint.
    #[error("its proxy is a {0}, not a sidecar")]
    NotASidecar(String),
    /// The pod opts out.
    #[error("sidecar.istio.io/inject is false")]
    InjectionRefused,
    /// The injector has not changed the pod.
    #[error("it has no annotation sidecar.istio.io/status")]
    NotInjected,
    /// The pod asks for no interception.
    #[error("sidecar.istio.io/interceptionMode is NONE")]
    ModeNone,
    /// Strict gates: there is no container beside the proxy.
    #[error("it has fewer than two containers, and gates are strict")]
    ProxyAlone,
    /// Strict gates: the value is not a boolean.
    #[error("sidecar.istio.io/inject is neither absent nor true, and gates are strict")]
    InjectionUnclear,
}

/// Whether an init container `istio-init` closes a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitContainer {
    /// It does: the pod redirects itself.
    Counts,
    /// It does not: the decision is the one without that container.
    Ignored,
}

/// The prefixes of the node agents' pods: Gybe's, and the incumbent's, which must start while an operator
/// moves from one to the other.
const AGENTS: [&str; 2] = ["gybe-node-", "istio-cni-node-"];

/// The annotation that the injector adds to a pod.
pub const STATUS: &str = "sidecar.istio.io/status";

/// The label, and the annotation, that asks for injection or forbids it.
pub(crate) const INJECT: &str = "sidecar.istio.io/inject";

/// The variable that switches the proxy off.
pub(crate) const DISABLE_ENVOY: &str = "DISABLE_ENVOY";

/// Checks the gates that need no facts, so that these pods never wait for a source of facts.
///
/// A node agent's own pod is recognized by its annotations, where the runtime hands them over: it is not in
/// the mesh. Only without them its name decides, which any pod of that namespace may have (A06).
pub fn check_without_facts(
    conf: &PluginConf,
    namespace: &str,
    name: &str,
    annotations: RuntimeAnnotations<'_>,
) -> Option<LeaveAloneReason> {
    let is_agent = || {
        let is_home = !conf.pod_namespace.is_empty() && conf.pod_namespace == namespace;
        is_home && AGENTS.iter().any(|prefix| name.starts_with(prefix))
    };
    let is_excluded = conf.exclude_namespaces.contains(namespace);
    match annotations {
        RuntimeAnnotations::NotProvided if is_agent() => Some(LeaveAloneReason::OwnPod),
        _ if is_excluded => Some(LeaveAloneReason::ExcludedNamespace),
        RuntimeAnnotations::NotProvided => None,
        RuntimeAnnotations::Empty => Some(LeaveAloneReason::NotInjected),
        RuntimeAnnotations::Present(annotations) => annotation_gates(annotations),
    }
}

/// Checks the gates that annotations alone decide. Without the injector's annotation a pod is not in the mesh, and
/// with mode NONE it is left alone, whatever its manifest holds.
///
/// The annotation `inject` decides nothing alone: a label, which no runtime hands over, overrides it, and an
/// injected pod with `inject: "false"` has such a label and must not start without redirection.
fn annotation_gates(annotations: &Map<String, Value>) -> Option<LeaveAloneReason> {
    if !annotations.contains_key(STATUS) {
        return Some(LeaveAloneReason::NotInjected);
    }
    let is_none = annotations.get(annotations::MODE).and_then(Value::as_str) == Some("NONE");
    is_none.then_some(LeaveAloneReason::ModeNone)
}

/// Reports whether the runtime's annotations contradict a reason that follows from the facts, so that the facts are
/// another pod's. An injected pod has the injector's annotation and a proxy, and its mode is not NONE:
/// [`check_without_facts`] would have left it alone.
pub fn contradicts(annotations: RuntimeAnnotations<'_>, reason: &LeaveAloneReason) -> bool {
    let is_injected =
        matches!(annotations, RuntimeAnnotations::Present(annotations) if annotations.contains_key(STATUS));
    is_injected
        && matches!(
            reason,
            LeaveAloneReason::NoProxy | LeaveAloneReason::NotInjected | LeaveAloneReason::ModeNone
        )
}

/// Checks all gates in order; none means that the pod is redirected.
///
/// # Errors
/// When the pod's mode is unknown, so that it may have meant to opt out.
pub fn check(
    conf: &PluginConf,
    pod: &PodFacts,
    init: InitContainer,
) -> Result<Option<LeaveAloneReason>, AnnotationError> {
    let is_excluded = conf.exclude_namespaces.contains(&pod.namespace);
    let reason = is_excluded
        .then_some(LeaveAloneReason::ExcludedNamespace)
        .or_else(|| container_gates(pod, init))
        .or_else(|| injection_gates(pod))
        .or_else(|| if conf.gates == Gates::Strict { strict_gates(pod) } else { None });
    if reason.is_some() {
        return Ok(reason);
    }
    Ok((annotations::interception(pod)? == Interception::None).then_some(LeaveAloneReason::ModeNone))
}

fn container_gates(pod: &PodFacts, init: InitContainer) -> Option<LeaveAloneReason> {
    let mut all = pod.containers.iter().chain(&pod.init_containers);
    if init == InitContainer::Counts && all.any(|container| container.name == "istio-init") {
        return Some(LeaveAloneReason::IstioInit);
    }
    let Some(proxy) = pod.proxy() else { return Some(LeaveAloneReason::NoProxy) };
    if proxy.bool_env(DISABLE_ENVOY) == Some(true) {
        return Some(LeaveAloneReason::EnvoyDisabled);
    }
    other_proxy_type(proxy).map(LeaveAloneReason::NotASidecar)
}

/// Returns the proxy's type if it is not a sidecar: `proxy router …`, `proxy waypoint …`. The default is a sidecar.
fn other_proxy_type(proxy: &Container) -> Option<String> {
    let [command, kind, ..] = proxy.args.as_slice() else { return None };
    (command == "proxy" && !kind.is_empty() && kind != "sidecar").then(|| kind.chars().take(32).collect())
}

/// Returns the value of `inject`. The label overrides the annotation, even if it is not a boolean.
fn inject(pod: &PodFacts) -> Option<&str> {
    pod.labels.get(INJECT).map(String::as_str).or_else(|| pod.annotation(INJECT))
}

fn injection_gates(pod: &PodFacts) -> Option<LeaveAloneReason> {
    if inject(pod).and_then(parse_bool) == Some(false) {
        return Some(LeaveAloneReason::InjectionRefused);
    }
    pod.annotation(STATUS).is_none().then_some(LeaveAloneReason::NotInjected)
}

fn strict_gates(pod: &PodFacts) -> Option<LeaveAloneReason> {
    if inject(pod).is_some_and(|value| parse_bool(value) != Some(true)) {
        return Some(LeaveAloneReason::InjectionUnclear);
    }
    (pod.long_lived().count() < 2).then_some(LeaveAloneReason::ProxyAlone)
}

#[cfg(test)]
mod tests;
