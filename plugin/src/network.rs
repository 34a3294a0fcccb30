//! The network's entry as stdin brings it: what the protocol itself says about it.
//!
//! Our own keys in it are read by `conf`, its prevResult is handed on by `result`.

use crate::request::is_plain_name;
use serde_json::{Map, Value};

/// The version a configuration without `cniVersion` means (CNI 0.1.0 had no such key).
const UNDECLARED: &str = "0.1.0";

/// A network's entry: a JSON object with a name.
#[derive(Debug, Clone)]
pub struct Network {
    name: String,
    version: String,
    members: Map<String, Value>,
}

/// What the runtime hands over of a pod's annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handed<'a> {
    /// It does not say: it is too old, or the entry did not ask for it.
    Unsaid,
    /// The pod has none.
    Nothing,
    /// These.
    These(&'a Map<String, Value>),
}

/// Why bytes are not a network's entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Not JSON at all.
    #[error("not JSON: {0}")]
    Syntax(String),
    /// JSON, but of another shape.
    #[error("{what} must be {wanted}")]
    Shape {
        /// Which part.
        what: &'static str,
        /// What it should have been.
        wanted: &'static str,
    },
    /// No name.
    #[error("missing network name")]
    NoName,
    /// A name that could not be part of a path.
    #[error("network name {0:?} must be a letter or digit followed by letters, digits, '_', '.' or '-'")]
    Name(String),
}

impl Network {
    /// Reads an entry.
    ///
    /// # Errors
    /// When it is no JSON object, or has no name, or one that nobody should pass on.
    pub fn parse(stdin: &[u8]) -> Result<Self, NetworkError> {
        let members = match serde_json::from_slice(stdin) {
            Ok(Value::Object(members)) => members,
            // Go reads null into an empty struct; the vectors want "missing name", not "bad JSON".
            Ok(Value::Null) => Map::new(),
            Ok(_) => return Err(NetworkError::Shape { what: "the entry", wanted: "a JSON object" }),
            Err(fault) => return Err(NetworkError::Syntax(fault.to_string())),
        };
        let name = text(&members, "name")?.unwrap_or_default();
        if name.is_empty() {
            return Err(NetworkError::NoName);
        }
        if !is_plain_name(&name) {
            return Err(NetworkError::Name(name.chars().take(64).collect()));
        }
        let declared = text(&members, "cniVersion")?.filter(|version| !version.is_empty());
        Ok(Self { name, version: declared.unwrap_or_else(|| UNDECLARED.to_owned()), members })
    }

    /// The network's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version the entry is written in.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// All its keys.
    pub fn members(&self) -> &Map<String, Value> {
        &self.members
    }

    /// The pod's annotations, if the runtime hands them over. A pod without any comes as null: Go
    /// writes an empty map so. What is neither null nor an object nobody means.
    pub fn pod_annotations(&self) -> Handed<'_> {
        match self.member("runtimeConfig").and_then(|config| config.get(ANNOTATIONS)) {
            Some(Value::Null) => Handed::Nothing,
            Some(Value::Object(these)) if these.is_empty() => Handed::Nothing,
            Some(Value::Object(these)) => Handed::These(these),
            _ => Handed::Unsaid,
        }
    }

    /// One of the protocol's own keys; null is absence.
    pub fn member(&self, key: &str) -> Option<&Value> {
        member(&self.members, key)
    }

    /// The result of the plugin before, moved out: it is handed on, and most of the entry.
    pub fn take_prev_result(&mut self) -> Option<Value> {
        let key = written(&self.members, "prevResult")?.0.clone();
        self.members.remove(&key).filter(|value| !value.is_null())
    }
}

/// The capability by which a runtime is asked for a pod's annotations.
pub const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

fn member<'a>(members: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    written(members, key).map(|(_, value)| value).filter(|value| !value.is_null())
}

/// The key as given, else in another case: Go's decoder, which all runtimes and most plugins are built
/// on, does not mind the case of keys.
fn written<'a>(members: &'a Map<String, Value>, key: &str) -> Option<(&'a String, &'a Value)> {
    members.get_key_value(key).or_else(|| members.iter().find(|(other, _)| other.eq_ignore_ascii_case(key)))
}

fn text(members: &Map<String, Value>, key: &'static str) -> Result<Option<String>, NetworkError> {
    match member(members, key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(NetworkError::Shape { what: key, wanted: "a string" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_a_name_and_a_version() {
        for (json, name, version) in [
            (r#"{"cniVersion": "1.1.0", "name": "net"}"#, "net", "1.1.0"),
            (r#"{"CNIVersion": "1.1.0", "NAME": "net"}"#, "net", "1.1.0"),
            (r#"{"name": "n", "cniVersion": ""}"#, "n", "0.1.0"),
            (r#"{"name": "n", "cniVersion": null}"#, "n", "0.1.0"),
            (r#"{"name": "n", "cniVersion": "0.2.0", "cniVersion": "1.0.0"}"#, "n", "1.0.0"),
            (r#" {"name": "0"} "#, "0", "0.1.0"),
        ] {
            let network = Network::parse(json.as_bytes()).unwrap();
            assert_eq!((network.name(), network.version()), (name, version), "{json}");
        }
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        for (json, why) in [
            ("", "not JSON"),
            ("{", "not JSON"),
            (r#"{"name": "n"}}"#, "not JSON"),
            ("\u{feff}{\"name\": \"n\"}", "not JSON"),
            ("[]", "must be a JSON object"),
            (r#""x""#, "must be a JSON object"),
            ("null", "missing network name"),
            ("{}", "missing network name"),
            (r#"{"name": ""}"#, "missing network name"),
            (r#"{"name": 5}"#, "name must be a string"),
            (r#"{"name": "n", "cniVersion": 1}"#, "cniVersion must be a string"),
            (r#"{"name": ".."}"#, "must be a letter or digit"),
            (r#"{"name": "a/b"}"#, "must be a letter or digit"),
            (r#"{"name": "a\n"}"#, "must be a letter or digit"),
            (r#"{"name": "né"}"#, "must be a letter or digit"),
        ] {
            let fault = Network::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(fault.contains(why), "{json}: {fault}");
        }
    }

    #[test]
    fn the_result_before_is_moved_out_in_whatever_case_it_is_written() {
        for (json, taken) in [
            (r#"{"name": "n", "prevResult": {"ips": []}}"#, Some(r#"{"ips":[]}"#)),
            (r#"{"name": "n", "PREVRESULT": 5}"#, Some("5")),
            (r#"{"name": "n", "prevResult": null, "prevresult": 5}"#, None),
            (r#"{"name": "n"}"#, None),
        ] {
            let mut network = Network::parse(json.as_bytes()).unwrap();
            let before = network.member("prevResult").map(Value::to_string);
            assert_eq!(network.take_prev_result().map(|value| value.to_string()), before, "{json}");
            assert_eq!(before.as_deref(), taken, "{json}");
        }
    }

    #[test]
    fn a10_a_bottomless_document_is_refused_not_recursed_into() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        assert!(Network::parse(deep.as_bytes()).is_err());
    }
}
