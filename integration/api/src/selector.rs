//! Which objects a list or a watch is about: field and label selectors, and a namespace.

use serde_json::Value;

/// All that must be so of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) namespace: Option<String>,
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    pointer: String,
    equal: bool,
    value: String,
}

/// What real servers let pods be selected by, and this one too.
const FIELDS: [(&str, &str); 5] = [
    ("metadata.name", "/metadata/name"),
    ("metadata.namespace", "/metadata/namespace"),
    ("spec.nodeName", "/spec/nodeName"),
    ("spec.restartPolicy", "/spec/restartPolicy"),
    ("status.phase", "/status/phase"),
];

const NODE: &str = "/spec/nodeName";

impl Selector {
    /// By a query's two parameters.
    ///
    /// # Errors
    /// What the server says to a field or an operator it does not know.
    pub(crate) fn parse(namespace: Option<String>, fields: &str, labels: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for (name, equal, value) in terms(fields)? {
            let known = FIELDS.iter().find(|(field, _)| *field == name);
            let (_, pointer) = known.ok_or_else(|| format!("field label not supported: {name}"))?;
            requirements.push(Requirement { pointer: (*pointer).to_owned(), equal, value });
        }
        for (name, equal, value) in terms(labels)? {
            let key = name.replace('~', "~0").replace('/', "~1");
            requirements.push(Requirement { pointer: format!("/metadata/labels/{key}"), equal, value });
        }
        Ok(Self { namespace, requirements })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let here = self.namespace.as_ref().is_none_or(|namespace| text("/metadata/namespace") == namespace);
        here && self.requirements.iter().all(|it| (text(&it.pointer) == it.value) == it.equal)
    }

    /// The one node whose pods are meant, when only one can be.
    pub(crate) fn node(&self) -> Option<&str> {
        let one = self.requirements.iter().find(|it| it.pointer == NODE && it.equal);
        one.map(|it| it.value.as_str())
    }

    /// Whether it selects by anything but a namespace.
    pub(crate) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }
}

fn terms(text: &str) -> Result<Vec<(String, bool, String)>, String> {
    let term = |term: &str| {
        let (name, equal, value) = if let Some((name, value)) = term.split_once("!=") {
            (name, false, value)
        } else {
            let (name, value) = term.split_once('=').ok_or_else(|| format!("invalid selector: '{term}'"))?;
            (name, true, value.strip_prefix('=').unwrap_or(value))
        };
        Ok((name.trim().to_owned(), equal, value.trim().to_owned()))
    };
    text.split(',').filter(|part| !part.is_empty()).map(term).collect()
}
