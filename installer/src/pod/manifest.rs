//! The pods a manifest file would make: every pod and pod template in it, whatever wraps them.
//!
//! Knows the shape of Kubernetes' kinds, and nothing of what a mesh reads in a pod.

use serde_json::{Map, Value};
use serde_saphyr::options::NonFiniteFloatPolicy;

/// The longest manifest we read. An object in etcd ends at 1.5 MiB; this is a long list of them.
pub const LONGEST: usize = 8 << 20;

/// A pod, or the pod that a template would make.
#[derive(Debug, Clone, PartialEq)]
pub struct PodTemplate {
    /// Where it comes from: the outer object's kind and name, like `Deployment/shop`.
    pub origin: String,
    /// The pod as the API server would keep it: `metadata` and `spec`.
    pub pod: Value,
}

impl PodTemplate {
    /// The name without the kind.
    pub fn name(&self) -> &str {
        self.origin.split_once('/').map_or("", |(_, name)| name)
    }
}

/// Why a text gives no pods.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// More than [`LONGEST`].
    #[error("the manifest is longer than {LONGEST} bytes")]
    TooLong,
    /// Neither YAML nor JSON, or more of it than any manifest needs (depth, nodes, aliases).
    #[error("the manifest is not YAML we can read")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    /// Fine, but about other things.
    #[error("the manifest has no pod and no pod template{}", among(.kinds))]
    NoPod {
        /// The kinds it has instead.
        kinds: Vec<String>,
    },
}

fn among(kinds: &[String]) -> String {
    if kinds.is_empty() { String::new() } else { format!(", only {}", kinds.join(", ")) }
}

/// All pods in a manifest, in the order they stand there.
///
/// # Errors
/// When the text is too long, cannot be read, or holds no pod at all.
pub fn pods(text: &str) -> Result<Vec<PodTemplate>, ManifestError> {
    if text.len() > LONGEST {
        return Err(ManifestError::TooLong);
    }
    let mut found = Found::default();
    for document in documents(text)? {
        found.look_into(document);
    }
    if found.pods.is_empty() { Err(ManifestError::NoPod { kinds: found.others }) } else { Ok(found.pods) }
}

/// Anchors may repeat a manifest's parts, not multiply them: 250 000 nodes in all.
fn documents(text: &str) -> Result<Vec<Value>, ManifestError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: 64, max_nodes: 250_000, max_documents: 1_024 },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 250_000 },
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|e| ManifestError::Syntax(Box::new(e)))
}

#[derive(Default)]
struct Found {
    pods: Vec<PodTemplate>,
    others: Vec<String>,
}

impl Found {
    fn look_into(&mut self, object: Value) {
        let Value::Object(mut object) = object else { return };
        if let Some(Value::Array(items)) = object.remove("items") {
            return items.into_iter().for_each(|item| self.look_into(item));
        }
        let kind = printable(text_at(&object, "kind").unwrap_or("unknown kind"));
        match pod_in(&kind, &object) {
            Some(pod) => {
                let origin = format!("{kind}/{}", printable(name(&object)));
                self.pods.push(PodTemplate { origin, pod });
            }
            None => self.others.push(kind),
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
    let template = template.into_iter().flatten().find(|template| makes_pods(template))?;
    Some(pod_of(template, object))
}

/// Other kinds have a `template` too (secrets, certificates): only pods have containers.
fn makes_pods(template: &Value) -> bool {
    template.pointer("/spec/containers").is_some_and(Value::is_array)
}

/// The template as a pod; a controller's pods live in its namespace and begin with its name.
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
    let given = |key| metadata.and_then(|metadata| text_at(metadata, key));
    given("name").or_else(|| given("generateName")).unwrap_or("unnamed")
}

fn text_at<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str)
}

/// The text with control characters spelled out: what a file says must not steer a terminal, nor
/// end the comment or the line it is quoted in.
pub(crate) fn printable(text: &str) -> String {
    let spelled = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(spelled).collect()
}
