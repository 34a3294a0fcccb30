//! Gates: whether a pod is left alone, and the reason.
//!
//! Pure. The order is Istio's (docs/ISTIO.md, section 3): the first closed gate gives the reason. What is
//! redirected, and how, is in `decide`.

use crate::annotations::{self, AnnotationError, Interception};
use crate::conf::{Gates, PluginConf};
use crate::names::{DISABLE_ENVOY, INJECT, MODE, STATUS};
use crate::network_conf::RuntimeAnnotations;
use crate::pod::{Container, PodFacts, parse_bool};
use serde_json::{Map, Value};

/// Why a pod is left alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaveAloneReason {
    /// The runtime names no pod.
    #[error("the caller is not Kubernetes")]
    NotKubernetes,
    /// The pod has its node's network: no plugin is called for it, so no gate of the plugin finds it.
    #[error("hostNetwork is true, and the runtime calls no plugin for it")]
    HostNetwork,
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

/// Checks the gates that need no facts, so that these pods never wait for a source of facts.
///
/// A node agent's own pod is recognized by its annotations, where the runtime hands them over: it is not in
/// the mesh. Only without them, and in ambient mode, its name decides, which any pod of that namespace may have (A06).
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
    let may_be_ambient = may_be_ambient(conf, annotations);
    let is_undecided = may_be_ambient || matches!(annotations, RuntimeAnnotations::NotProvided);
    match annotations {
        _ if is_undecided && is_agent() => Some(LeaveAloneReason::OwnPod),
        _ if is_excluded => Some(LeaveAloneReason::ExcludedNamespace),
        _ if may_be_ambient => None,
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
    let is_none = annotations.get(MODE).and_then(Value::as_str) == Some("NONE");
    is_none.then_some(LeaveAloneReason::ModeNone)
}

/// Reports whether a pod may be ambient as far as the runtime's annotations show: it has no sidecar by them. Its labels
/// decide, which no runtime hands over.
pub(crate) fn may_be_ambient(conf: &PluginConf, annotations: RuntimeAnnotations<'_>) -> bool {
    conf.ambient.is_some() && !is_injected(annotations)
}

fn is_injected(annotations: RuntimeAnnotations<'_>) -> bool {
    matches!(annotations, RuntimeAnnotations::Present(annotations) if annotations.contains_key(STATUS))
}

/// Reports whether the runtime's annotations contradict a reason that follows from the facts, so that the facts are
/// another pod's. An injected pod has the injector's annotation and a proxy, and its mode is not NONE:
/// [`check_without_facts`] would have left it alone.
pub fn contradicts(annotations: RuntimeAnnotations<'_>, reason: &LeaveAloneReason) -> bool {
    is_injected(annotations)
        && matches!(
            reason,
            LeaveAloneReason::NoProxy | LeaveAloneReason::NotInjected | LeaveAloneReason::ModeNone
        )
}

/// A condition under which a pod is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// The configuration excludes the pod's namespace.
    Namespace,
    /// The pod has an init container `istio-init`.
    IstioInit,
    /// The pod has no proxy.
    Proxy,
    /// The proxy is switched off.
    Envoy,
    /// The proxy is a gateway or a waypoint.
    ProxyType,
    /// The pod opts out.
    Inject,
    /// The injector has not changed the pod.
    Status,
    /// Strict gates: `inject` is neither absent nor true.
    StrictInject,
    /// Strict gates: there is no container beside the proxy.
    StrictContainers,
    /// The pod asks for no interception. Its annotation may be invalid.
    Mode,
}

impl Gate {
    /// All gates, in Istio's order.
    pub const ALL: [Self; 10] = [
        Self::Namespace,
        Self::IstioInit,
        Self::Proxy,
        Self::Envoy,
        Self::ProxyType,
        Self::Inject,
        Self::Status,
        Self::StrictInject,
        Self::StrictContainers,
        Self::Mode,
    ];

    /// Reports whether the configuration has this gate.
    pub fn applies(self, conf: &PluginConf) -> bool {
        !matches!(self, Self::StrictInject | Self::StrictContainers) || conf.gates == Gates::Strict
    }

    /// Returns the reason if this gate is closed.
    ///
    /// # Errors
    /// When the pod's mode is unknown, so that it may have meant to opt out.
    pub fn closed(
        self,
        conf: &PluginConf,
        pod: &PodFacts,
        init: InitContainer,
    ) -> Result<Option<LeaveAloneReason>, AnnotationError> {
        let (is_closed, reason) = match self {
            Self::Namespace => {
                (conf.exclude_namespaces.contains(&pod.namespace), LeaveAloneReason::ExcludedNamespace)
            }
            Self::IstioInit => {
                let mut all = pod.containers.iter().chain(&pod.init_containers);
                let is_there = all.any(|container| container.name == "istio-init");
                (init == InitContainer::Counts && is_there, LeaveAloneReason::IstioInit)
            }
            Self::Proxy => (pod.proxy().is_none(), LeaveAloneReason::NoProxy),
            Self::Envoy => {
                let is_disabled = pod.proxy().and_then(|proxy| proxy.bool_env(DISABLE_ENVOY)) == Some(true);
                (is_disabled, LeaveAloneReason::EnvoyDisabled)
            }
            Self::ProxyType => {
                return Ok(pod.proxy().and_then(other_proxy_type).map(LeaveAloneReason::NotASidecar));
            }
            Self::Inject => {
                let is_refused = inject(pod).and_then(|inject| parse_bool(inject.value)) == Some(false);
                (is_refused, LeaveAloneReason::InjectionRefused)
            }
            Self::Status => (pod.annotation(STATUS).is_none(), LeaveAloneReason::NotInjected),
            Self::StrictInject => {
                let is_unclear = inject(pod).is_some_and(|inject| parse_bool(inject.value) != Some(true));
                (is_unclear, LeaveAloneReason::InjectionUnclear)
            }
            Self::StrictContainers => (pod.long_lived().count() < 2, LeaveAloneReason::ProxyAlone),
            Self::Mode => (annotations::interception(pod)? == Interception::None, LeaveAloneReason::ModeNone),
        };
        Ok(is_closed.then_some(reason))
    }
}

/// Checks all gates in order; none means that the pod is redirected.
///
/// # Errors
/// As [`Gate::closed`].
pub fn check(
    conf: &PluginConf,
    pod: &PodFacts,
    init: InitContainer,
) -> Result<Option<LeaveAloneReason>, AnnotationError> {
    for gate in Gate::ALL {
        if gate.applies(conf)
            && let Some(reason) = gate.closed(conf, pod, init)?
        {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

/// Returns the proxy's type if it is not a sidecar: `proxy router …`, `proxy waypoint …`. The default is a sidecar.
fn other_proxy_type(proxy: &Container) -> Option<String> {
    let [command, kind, ..] = proxy.args.as_slice() else { return None };
    (command == "proxy" && !kind.is_empty() && kind != "sidecar").then(|| kind.chars().take(32).collect())
}

/// The value of `inject`, and whether the pod's label or its annotation has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inject<'p> {
    /// The label has it.
    pub is_label: bool,
    /// The value, which may not be a boolean.
    pub value: &'p str,
}

/// Returns the value of `inject`. The label overrides the annotation, even if it is not a boolean.
pub fn inject(pod: &PodFacts) -> Option<Inject<'_>> {
    let label = pod.labels.get(INJECT).map(|value| Inject { is_label: true, value });
    label.or_else(|| pod.annotation(INJECT).map(|value| Inject { is_label: false, value }))
}

#[cfg(test)]
mod tests;
