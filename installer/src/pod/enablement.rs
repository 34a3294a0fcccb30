//! Which pods are ambient: by the enablement selectors, in istio-cni's syntax, over the labels of the pod and of its
//! namespace. `agent::ambient` knows the labels; namespaces that are excluded the plugin leaves alone itself.

use gybe_plugin::names::STATUS;
use gybe_plugin::pod::{PodFacts, Selectable};
use serde::Deserialize;
use serde_saphyr::Error;
use std::collections::BTreeMap;
use std::fmt;

/// The longest text of selectors in bytes.
const MAX_BYTES: usize = 64 << 10;

/// The label by which the default selectors decide.
const MODE: &str = "istio.io/dataplane-mode";

/// The label of ztunnel's pods in the namespace of Istio's components.
const ZTUNNEL: (&str, &str) = ("app", "ztunnel");

/// The annotation of an ambient pod, and its value when all of it is done: istio-cni's agent decides by it, and istiod.
pub(crate) const REDIRECTION: &str = "ambient.istio.io/redirection";
pub(crate) const REDIRECTED: &str = "enabled";

/// Reports whether a pod has the annotation by which other pods send it HBONE.
pub(crate) fn is_announced(pod: &PodFacts) -> bool {
    pod.annotation(REDIRECTION) == Some(REDIRECTED)
}

/// The labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A list of selectors; a pod is ambient if one of them selects it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnablementSelectors(Vec<EnablementSelector>);

/// A pod is selected if both parts select.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct EnablementSelector {
    pod_selector: LabelSelector,
    namespace_selector: LabelSelector,
}

/// Kubernetes' LabelSelector. An empty one selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct LabelSelector {
    match_labels: Labels,
    match_expressions: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    key: String,
    operator: Operator,
    #[serde(default)]
    values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// Why a text is not a list of selectors.
#[derive(Debug, thiserror::Error)]
pub enum SelectorError {
    #[error("it is longer than {MAX_BYTES} bytes")]
    TooLong,
    #[error(
        "it is not a list of podSelector and namespaceSelector, each with matchLabels and matchExpressions"
    )]
    Syntax(#[source] Box<Error>),
    #[error("{operator} of {key} must have {expected}")]
    Values { key: String, operator: &'static str, expected: &'static str },
}

/// Whether a pod is ambient, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enablement {
    /// The labels that selected it, and the number of the selector from 1.
    Yes {
        labels: Vec<String>,
        selector: usize,
    },
    No(NotAmbient),
}

/// Why a pod is not ambient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAmbient {
    #[error("it has the network of its node")]
    HostNetwork,
    #[error("it has a sidecar (annotation {STATUS})")]
    Sidecar,
    /// Its ADD would wait for the ztunnel that it is.
    #[error("it is ztunnel (label app=ztunnel in the namespace of Istio's components)")]
    Ztunnel,
    #[error("no enablement selector selects it")]
    NotSelected,
}

impl fmt::Display for Enablement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes { labels, selector } if labels.is_empty() => {
                write!(
                    f,
                    "enablement selector {selector} (no label of the pod or its namespace is named by it)"
                )
            }
            Self::Yes { labels, selector } => {
                write!(f, "{} (enablement selector {selector})", labels.join(", "))
            }
            Self::No(why) => why.fmt(f),
        }
    }
}

impl Default for EnablementSelectors {
    /// istio-cni's: the pod's label `ambient`, or its namespace's while the pod's is not `none`.
    fn default() -> Self {
        let ambient = || LabelSelector {
            match_labels: Labels::from([(MODE.to_owned(), "ambient".to_owned())]),
            ..LabelSelector::default()
        };
        let not_none =
            Requirement { key: MODE.to_owned(), operator: Operator::NotIn, values: vec!["none".to_owned()] };
        let pod_selector = LabelSelector { match_expressions: vec![not_none], ..LabelSelector::default() };
        Self(vec![
            EnablementSelector { pod_selector: ambient(), ..EnablementSelector::default() },
            EnablementSelector { pod_selector, namespace_selector: ambient() },
        ])
    }
}

impl EnablementSelectors {
    /// Parses a list in YAML or JSON.
    ///
    /// # Errors
    /// When it is not such a list.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_BYTES {
            return Err(SelectorError::TooLong);
        }
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! { max_depth: 16, max_nodes: 10_000, max_documents: 1 },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
            with_snippet: false,
        };
        let selectors: Vec<EnablementSelector> = serde_saphyr::from_str_with_options(text, options)
            .map_err(|why| SelectorError::Syntax(Box::new(why)))?;
        let parts = selectors.iter().flat_map(|one| [&one.pod_selector, &one.namespace_selector]);
        parts.flat_map(|part| &part.match_expressions).try_for_each(Requirement::check)?;
        Ok(Self(selectors))
    }

    /// Decides about a pod. The labels of its namespace count as they are now; they are not evaluated, and nothing waits
    /// for them, where they cannot change the decision. None while they are not known.
    ///
    /// `system_namespace` is that of Istio's components.
    pub fn decide(
        &self,
        pod: &PodFacts,
        selectable: &Selectable,
        system_namespace: &str,
        namespace: impl FnOnce() -> Option<Labels>,
    ) -> Option<Enablement> {
        if selectable.is_host_network {
            return Some(Enablement::No(NotAmbient::HostNetwork));
        }
        if pod.annotation(STATUS).is_some() {
            return Some(Enablement::No(NotAmbient::Sidecar));
        }
        let (key, value) = ZTUNNEL;
        let is_ztunnel = selectable.labels.get(key).is_some_and(|label| label == value);
        if is_ztunnel && pod.namespace == system_namespace {
            return Some(Enablement::No(NotAmbient::Ztunnel));
        }
        Some(self.select(&selectable.labels, &namespace()?))
    }

    fn select(&self, pod: &Labels, namespace: &Labels) -> Enablement {
        let selected = self
            .0
            .iter()
            .zip(1..)
            .find(|(one, _)| one.pod_selector.selects(pod) && one.namespace_selector.selects(namespace));
        let Some((by, selector)) = selected else { return Enablement::No(NotAmbient::NotSelected) };
        let of_pod = by.pod_selector.deciding(pod).map(|label| format!("pod label {label}"));
        let of_namespace =
            by.namespace_selector.deciding(namespace).map(|label| format!("namespace label {label}"));
        Enablement::Yes { labels: of_pod.chain(of_namespace).collect(), selector }
    }
}

impl LabelSelector {
    fn selects(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|one| one.is_met(labels))
    }

    /// The labels that this selector reads, as they are.
    fn deciding<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = String> + 'a {
        let keys = self.match_labels.keys().chain(self.match_expressions.iter().map(|one| &one.key));
        keys.filter_map(|key| labels.get(key).map(|value| format!("{key}={value}")))
    }
}

impl Requirement {
    fn check(&self) -> Result<(), SelectorError> {
        let (operator, expected, is_valid) = match self.operator {
            Operator::In => ("In", "values", !self.values.is_empty()),
            Operator::NotIn => ("NotIn", "values", !self.values.is_empty()),
            Operator::Exists => ("Exists", "no values", self.values.is_empty()),
            Operator::DoesNotExist => ("DoesNotExist", "no values", self.values.is_empty()),
        };
        match is_valid {
            true => Ok(()),
            false => Err(SelectorError::Values { key: self.key.clone(), operator, expected }),
        }
    }

    fn is_met(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            // An absent label is not one of the values (Kubernetes' labels.Requirement).
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYSTEM: &str = "istio-system";

    fn labels(text: &str) -> Labels {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn decided(selectors: &EnablementSelectors, pod: &str, namespace: &str) -> String {
        let selectable = Selectable { labels: labels(pod), ..Selectable::default() };
        let namespace = || Some(labels(namespace));
        selectors.decide(&PodFacts::default(), &selectable, SYSTEM, namespace).unwrap().to_string()
    }

    #[test]
    fn the_default_selectors_are_istio_cnis() {
        let (default, no) = (EnablementSelectors::default(), "no enablement selector selects it");
        let mode = |value: &str| format!("{MODE}={value}");
        for (pod, namespace, expected) in [
            (String::new(), String::new(), no.to_owned()),
            (mode("ambient"), String::new(), format!("pod label {MODE}=ambient (enablement selector 1)")),
            (
                String::new(),
                mode("ambient"),
                format!("namespace label {MODE}=ambient (enablement selector 2)"),
            ),
            (mode("none"), mode("ambient"), no.to_owned()),
            (mode("ambient"), mode("none"), format!("pod label {MODE}=ambient (enablement selector 1)")),
            (mode("other"), mode("other"), no.to_owned()),
        ] {
            assert_eq!(decided(&default, &pod, &namespace), expected, "{pod:?} {namespace:?}");
        }
    }

    #[test]
    fn selectors_in_yaml_and_json_have_the_meaning_of_kubernetes_label_selectors() {
        let json = r#"[{"podSelector": {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}}]"#;
        let yaml = "- podSelector:\n    matchLabels: { a: \"1\" }\n    matchExpressions: [{ key: b, operator: Exists }]\n";
        assert_eq!(EnablementSelectors::parse(json).unwrap(), EnablementSelectors::parse(yaml).unwrap());
        for (expression, pod, selects) in [
            ("{key: a, operator: In, values: [x, y]}", "a=y", true),
            ("{key: a, operator: In, values: [x, y]}", "a=z", false),
            ("{key: a, operator: In, values: [x, y]}", "", false),
            ("{key: a, operator: NotIn, values: [x]}", "", true),
            ("{key: a, operator: NotIn, values: [x]}", "a=x", false),
            ("{key: a, operator: Exists}", "a=", true),
            ("{key: a, operator: Exists}", "", false),
            ("{key: a, operator: DoesNotExist}", "", true),
            ("{key: a, operator: DoesNotExist}", "a=x", false),
        ] {
            for part in ["podSelector", "namespaceSelector"] {
                let text = format!("- {part}: {{ matchExpressions: [{expression}] }}");
                let selectors = EnablementSelectors::parse(&text).unwrap();
                let (of_pod, of_namespace) = if part == "podSelector" { (pod, "") } else { ("", pod) };
                let selected = decided(&selectors, of_pod, of_namespace);
                assert_eq!(selected.contains("enablement selector 1"), selects, "{text} {pod:?}: {selected}");
            }
        }
        let every = EnablementSelectors::parse("[{}]").unwrap();
        let named_none = "enablement selector 1 (no label of the pod or its namespace is named by it)";
        assert_eq!(decided(&every, "", ""), named_none);
        let none = EnablementSelectors::parse("[]").unwrap();
        assert_eq!(decided(&none, "a=b", "a=b"), "no enablement selector selects it");
    }

    #[test]
    fn a_text_that_is_no_list_of_selectors_is_refused() {
        for text in [
            "x",
            "{}",
            "- podselector: {}",
            "- podSelector: { matchLabels: [a] }",
            "- podSelector: { matchExpressions: [{ key: a, operator: Equals, values: [x] }] }",
            "- podSelector: { matchExpressions: [{ key: a, operator: In }] }",
            "- podSelector: { matchExpressions: [{ key: a, operator: Exists, values: [x] }] }",
            &"#".repeat(MAX_BYTES + 1),
        ] {
            assert!(EnablementSelectors::parse(text).is_err(), "{}", text.get(..80).unwrap_or(text));
        }
    }

    #[test]
    fn sidecars_the_nodes_network_and_ztunnel_are_never_ambient_and_wait_for_no_labels() {
        let every = EnablementSelectors::parse("[{}]").unwrap();
        let annotations = Labels::from([(STATUS.to_owned(), "{}".to_owned())]);
        let sidecar = PodFacts { annotations, ..PodFacts::default() };
        let of = |namespace: &str| PodFacts { namespace: namespace.to_owned(), ..PodFacts::default() };
        let host = || Selectable { is_host_network: true, ..Selectable::default() };
        let ztunnel = || Selectable { labels: labels("app=ztunnel"), ..Selectable::default() };
        for (facts, selectable, expected) in [
            (sidecar, Selectable::default(), Some(NotAmbient::Sidecar)),
            (of("shop"), host(), Some(NotAmbient::HostNetwork)),
            (of(SYSTEM), ztunnel(), Some(NotAmbient::Ztunnel)),
            // In a namespace of its own any user may set the label.
            (of("shop"), ztunnel(), None),
            (of(SYSTEM), Selectable::default(), None),
        ] {
            let decided = every.decide(&facts, &selectable, SYSTEM, || None);
            assert_eq!(decided, expected.map(Enablement::No), "{facts:?}");
        }
    }
}
