//! Why a pod has no sidecar: the namespace's labels, the pod's label and annotation, and the injector's default.
//!
//! The rules are those of Istio's injector and of its webhooks, whose selectors decide which pods the API server sends
//! to it: <https://istio.io/latest/docs/ops/common-problems/injection/>.

use super::{Subject, quoted};
use gybe_plugin::gates::inject;
use gybe_plugin::names::{INJECT, STATUS};
use gybe_plugin::pod::parse_bool;
use serde_json::{Value, json};

/// The namespace's label that enables or disables injection.
const INJECTION: &str = "istio-injection";
/// The namespace's or the pod's label that names a revision of istiod.
const REVISION: &str = "istio.io/rev";
/// Namespaces whose pods the injector leaves alone.
const IGNORED: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "local-path-storage"];

/// The factors of injection, and the one that kept a pod out.
#[derive(Debug)]
pub struct Injection {
    namespace: String,
    default: &'static str,
    pod: String,
    cause: String,
}

impl Injection {
    pub(super) fn of(subject: &Subject<'_>) -> Self {
        let pod = subject.facts;
        let revision = pod.labels.get(REVISION);
        let own = match (inject(pod), revision) {
            (Some(inject), _) => {
                format!(
                    "{} {INJECT} is {}",
                    if inject.is_label { "label" } else { "annotation" },
                    quoted(inject.value)
                )
            }
            (None, Some(revision)) => format!("label {REVISION} is {}", quoted(revision)),
            (None, None) => format!("neither {INJECT} nor {REVISION}"),
        };
        Self {
            namespace: namespace(subject),
            default: "without labels, pods are not injected unless istiod has enableNamespacesByDefault",
            pod: own,
            cause: cause(subject),
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        vec![
            format!("namespace  {}", self.namespace),
            format!("default    {}", self.default),
            format!("pod        {}", self.pod),
            format!("cause      {}", self.cause),
        ]
    }

    pub(super) fn json(&self) -> Value {
        json!({ "namespace": self.namespace, "default": self.default, "pod": self.pod, "cause": self.cause })
    }
}

fn namespace(subject: &Subject<'_>) -> String {
    let Some(labels) = subject.namespace_labels else {
        return "its labels are not known; add the Namespace object to the file".to_owned();
    };
    match (labels.get(INJECTION), labels.get(REVISION)) {
        (Some(injection), _) => format!("label {INJECTION} is {}", quoted(injection)),
        (None, Some(revision)) => format!("label {REVISION} is {}", quoted(revision)),
        (None, None) => format!("neither {INJECTION} nor {REVISION}"),
    }
}

/// The first factor that keeps the pod out, in the order in which the API server and the injector check them.
fn cause(subject: &Subject<'_>) -> String {
    let pod = subject.facts;
    match (pod.proxy(), pod.annotation(STATUS)) {
        (Some(_), _) => {
            return format!(
                "it has istio-proxy, but not the annotation that the injector adds: istio-proxy is not from the \
                 injector, or the annotation {STATUS} is not in the pod's template"
            );
        }
        (None, Some(_)) => {
            return "the injector changed the pod with a template that has no istio-proxy".to_owned();
        }
        (None, None) => {}
    }
    let refused =
        inject(pod).filter(|inject| !inject.value.is_empty() && parse_bool(inject.value) != Some(true));
    if let Some(refused) = refused {
        let what = if refused.is_label { "label" } else { "annotation" };
        let why = parse_bool(refused.value).map_or(", which is neither true nor false", |_| "");
        return format!("the pod's {what} {INJECT} is {}{why}", quoted(refused.value));
    }
    if subject.is_host_network() {
        return "hostNetwork is true: the injector leaves such pods alone".to_owned();
    }
    if IGNORED.contains(&pod.namespace.as_str()) {
        return format!("the injector ignores namespace {}", pod.namespace);
    }
    let label = pod.labels.get(INJECT);
    let is_requested =
        label.is_some_and(|value| parse_bool(value) == Some(true)) || pod.labels.contains_key(REVISION);
    let Some(labels) = subject.namespace_labels else {
        return match is_requested {
            true => not_called(&format!(
                "the pod requests injection; if its namespace is not {INJECTION}=disabled"
            )),
            false => format!(
                "the namespace is probably without {INJECTION}=enabled and without {REVISION}, or was labelled after \
                 the pod was created"
            ),
        };
    };
    match (labels.get(INJECTION).map(String::as_str), labels.get(REVISION)) {
        (Some("enabled"), _) => not_called(&format!("the namespace is {INJECTION}=enabled")),
        (Some(other), _) => {
            let remedy = if other == "disabled" { "" } else { "; it has to be enabled" };
            format!(
                "the namespace's label {INJECTION} is {}, which no label of a pod overrides{remedy}",
                quoted(other)
            )
        }
        (None, Some(revision)) => not_called(&format!("the namespace is {REVISION}={revision}")),
        (None, None) if is_requested => not_called("the pod requests injection"),
        (None, None) if inject(pod).is_some_and(|inject| !inject.is_label) => format!(
            "the namespace has no label, and the annotation {INJECT} does not bring a pod to the injector; make it \
             a label"
        ),
        (None, None) => format!(
            "neither the namespace nor the pod requests injection; label the namespace {INJECTION}=enabled"
        ),
    }
}

fn not_called(requested: &str) -> String {
    format!(
        "{requested}, so the manifest was not yet injected, the pod is older than the label, or istiod of that \
         revision was not called; delete the pod of a controller, then run istioctl experimental check-inject"
    )
}
