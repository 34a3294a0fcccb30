//! The pods and pod templates in a manifest file, of any kind of Kubernetes object. The plugin parses the pods
//! themselves.

use serde_json::{Map, Value};
use serde_saphyr::options::NonFiniteFloatPolicy;
use std::collections::BTreeMap;

/// The greatest length of a manifest in bytes. etcd limits a request to 1.5 MiB; a file may contain several objects.
pub const LONGEST: usize = 8 << 20;

/// A pod, or the pod that a controller creates from a template.
#[derive(Debug, Clone, PartialEq)]
pub struct PodTemplate {
    /// The outer object's kind and name, like `Deployment/shop`.
    pub origin: String,
    /// The pod as an object of the API: `metadata` and `spec`.
    pub pod: Value,
    /// The labels of its namespace; none if the manifest does not contain the namespace.
    pub namespace_labels: Option<Labels>,
}

/// An object's labels.
pub type Labels = BTreeMap<String, String>;

impl PodTemplate {
    /// Returns the name without the kind.
    pub fn name(&self) -> &str {
        self.origin.split_once('/').map_or("", |(_, name)| name)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ManifestFileError {
    #[error("the manifest is longer than {LONGEST} bytes")]
    TooLong,
    /// Neither YAML nor JSON, or above the limits of depth, nodes and aliases.
    #[error("the manifest is not valid YAML or JSON")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    #[error("the manifest has no pod and no pod template{}", only_kinds(.kinds))]
    NoPod { kinds: Vec<String> },
}

fn only_kinds(kinds: &[String]) -> String {
    if kinds.is_empty() { String::new() } else { format!(", only {}", kinds.join(", ")) }
}

/// Returns all pods of a manifest, in the order of the file.
///
/// # Errors
/// When the text is too long, is not valid, or contains no pod.
pub fn pods(text: &str) -> Result<Vec<PodTemplate>, ManifestFileError> {
    if text.len() > LONGEST {
        return Err(ManifestFileError::TooLong);
    }
    let mut found = FoundObjects::default();
    for document in documents(text)? {
        found.add(document);
    }
    if found.pods.is_empty() {
        return Err(ManifestFileError::NoPod { kinds: found.other_kinds });
    }
    for template in &mut found.pods {
        let namespace = template.pod.pointer("/metadata/namespace").and_then(Value::as_str);
        template.namespace_labels = found.namespaces.get(namespace.unwrap_or("default")).cloned();
    }
    Ok(found.pods)
}

/// Parses YAML or JSON. The limits bound the memory that nested aliases expand to.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>, ManifestFileError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: 64, max_nodes: 250_000, max_documents: 1_024 },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 250_000 },
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| ManifestFileError::Syntax(Box::new(error)))
}

#[derive(Default)]
struct FoundObjects {
    pods: Vec<PodTemplate>,
    namespaces: BTreeMap<String, Labels>,
    other_kinds: Vec<String>,
}

impl FoundObjects {
    fn add(&mut self, object: Value) {
        let Value::Object(mut object) = object else { return };
        if let Some(Value::Array(items)) = object.remove("items") {
            return items.into_iter().for_each(|item| self.add(item));
        }
        let kind = printable(string_at(&object, "kind").unwrap_or("unknown kind"));
        if kind == "Namespace" {
            self.namespaces.insert(name(&object).to_owned(), labels(&object));
        }
        match pod_in(&kind, &object) {
            Some(pod) => {
                let origin = format!("{kind}/{}", printable(name(&object)));
                self.pods.push(PodTemplate { origin, pod, namespace_labels: None });
            }
            None => self.other_kinds.push(kind),
        }
    }
}

fn pod_in(kind: &str, object: &Map<String, Value>) -> Option<Value> {
    if kind == "Pod" {
        return Some(Value::Object(object.clone()));
    }
    let spec = object.get("spec");
    let at = |path: &str| spec.and_then(|spec| spec.pointer(path));
    let template = [at("/jobTemplate/spec/template"), at("/template"), object.get("template")];
    let template = template.into_iter().flatten().find(|template| is_pod_template(template))?;
    Some(pod_of(template, object))
}

/// Other kinds have a `template` too (secrets, certificates); only a pod template has containers.
fn is_pod_template(template: &Value) -> bool {
    template.pointer("/spec/containers").is_some_and(Value::is_array)
}

/// Returns the template as a pod. A controller's pods have its namespace, and names that begin with its name.
fn pod_of(template: &Value, owner: &Map<String, Value>) -> Value {
    let mut metadata = template.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let owner = owner.get("metadata").and_then(Value::as_object);
    for key in ["name", "namespace"] {
        let inherited = owner.and_then(|owner| owner.get(key)).filter(|value| value.is_string());
        if let (Some(inherited), false) = (inherited, metadata.get(key).is_some_and(Value::is_string)) {
            metadata.insert(key.to_owned(), inherited.clone());
        }
    }
    let spec = template.get("spec").cloned().unwrap_or_default();
    serde_json::json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec })
}

fn name(object: &Map<String, Value>) -> &str {
    let metadata = object.get("metadata").and_then(Value::as_object);
    let field = |key| metadata.and_then(|metadata| string_at(metadata, key));
    field("name").or_else(|| field("generateName")).unwrap_or("unnamed")
}

fn labels(object: &Map<String, Value>) -> Labels {
    let labels =
        object.get("metadata").and_then(|metadata| metadata.get("labels")).and_then(Value::as_object);
    let string = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    labels.into_iter().flatten().filter_map(string).collect()
}

fn string_at<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str)
}

/// Escapes control characters and Unicode's line ends, which are line ends in YAML 1.1, too: text from a file must not
/// control the terminal, or end the comment or line that quotes it.
pub(crate) fn printable(text: &str) -> String {
    let escaped = |c: char| match c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(escaped).collect()
}
