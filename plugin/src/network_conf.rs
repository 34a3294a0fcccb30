//! The network configuration that the runtime writes to stdin: the keys that the CNI specification defines.
//!
//! The plugin's own keys in it are read by `conf`, its prevResult is passed on by `result`.

use serde_json::{Map, Value};

/// The version of a configuration without `cniVersion` (CNI 0.1.0 had no such key).
const UNDECLARED: &str = "0.1.0";

/// The capability by which a plugin asks the runtime for a pod's annotations.
pub const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// A network configuration: a JSON object with a name.
#[derive(Debug, Clone)]
pub struct NetworkConf {
    name: String,
    version: String,
    members: Map<String, Value>,
}

/// The pod's annotations as the runtime hands them over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeAnnotations<'a> {
    /// The runtime is too old to hand them over, or the configuration does not ask for them.
    NotProvided,
    /// The pod has none.
    Empty,
    /// The pod's annotations.
    Present(&'a Map<String, Value>),
}

/// Why bytes are not a network configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkConfError {
    /// Not JSON.
    #[error("not JSON: {0}")]
    Syntax(String),
    /// A value of the wrong JSON type.
    #[error("{what} must be {expected}")]
    Shape {
        /// The key, or the whole.
        what: &'static str,
        /// The type that it must have.
        expected: &'static str,
    },
    /// No name.
    #[error("missing network name")]
    NoName,
    /// A name that is not fit to be part of a path.
    #[error("network name {0:?} must be a letter or digit followed by letters, digits, '_', '.' or '-'")]
    Name(String),
}

impl NetworkConf {
    /// Parses a network configuration.
    ///
    /// # Errors
    /// When it is not a JSON object, or has no name or one that is unfit for a path.
    pub fn parse(stdin: &[u8]) -> Result<Self, NetworkConfError> {
        let members = match serde_json::from_slice(stdin) {
            Ok(Value::Object(members)) => members,
            // Go reads null into an empty struct; the vectors expect "missing name", not "bad JSON".
            Ok(Value::Null) => Map::new(),
            Ok(_) => return Err(NetworkConfError::Shape { what: "the entry", expected: "a JSON object" }),
            Err(error) => return Err(NetworkConfError::Syntax(error.to_string())),
        };
        let name = text(&members, "name")?.unwrap_or_default();
        if name.is_empty() {
            return Err(NetworkConfError::NoName);
        }
        if !is_plain_name(&name) {
            return Err(NetworkConfError::Name(name.chars().take(64).collect()));
        }
        let declared = text(&members, "cniVersion")?.filter(|version| !version.is_empty());
        Ok(Self { name, version: declared.unwrap_or_else(|| UNDECLARED.to_owned()), members })
    }

    /// Returns the network's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `cniVersion`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns all keys.
    pub fn members(&self) -> &Map<String, Value> {
        &self.members
    }

    /// Returns the pod's annotations, if the runtime hands them over. Go writes an empty map as null; a value that
    /// is neither null nor an object counts as not provided.
    pub fn pod_annotations(&self) -> RuntimeAnnotations<'_> {
        match self.member("runtimeConfig").and_then(|config| config.get(POD_ANNOTATIONS)) {
            Some(Value::Null) => RuntimeAnnotations::Empty,
            Some(Value::Object(annotations)) if annotations.is_empty() => RuntimeAnnotations::Empty,
            Some(Value::Object(annotations)) => RuntimeAnnotations::Present(annotations),
            _ => RuntimeAnnotations::NotProvided,
        }
    }

    /// Returns the value of a key that the specification defines; null counts as absent.
    pub fn member(&self, key: &str) -> Option<&Value> {
        member(&self.members, key)
    }

    /// Moves prevResult out: it is most of the configuration, and passed on as it is.
    pub fn take_prev_result(&mut self) -> Option<Value> {
        let key = entry(&self.members, "prevResult")?.0.clone();
        self.members.remove(&key).filter(|value| !value.is_null())
    }
}

fn member<'a>(members: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    entry(members, key).map(|(_, value)| value).filter(|value| !value.is_null())
}

/// Returns the member of this name, or else one whose name differs only in case: Go's decoder, on which all runtimes
/// and most plugins are built, ignores the case of keys.
fn entry<'a>(members: &'a Map<String, Value>, key: &str) -> Option<(&'a String, &'a Value)> {
    members.get_key_value(key).or_else(|| members.iter().find(|(other, _)| other.eq_ignore_ascii_case(key)))
}

fn text(members: &Map<String, Value>, key: &'static str) -> Result<Option<String>, NetworkConfError> {
    match member(members, key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(NetworkConfError::Shape { what: key, expected: "a string" }),
    }
}

/// Reports whether a name is a letter or digit, then letters, digits, `_`, `.` or `-`: the CNI specification's rule.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|head| head.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_has_a_name_and_a_version() {
        for (json, name, version) in [
            (r#"{"cniVersion": "1.1.0", "name": "net"}"#, "net", "1.1.0"),
            (r#"{"CNIVersion": "1.1.0", "NAME": "net"}"#, "net", "1.1.0"),
            (r#"{"name": "n", "cniVersion": ""}"#, "n", "0.1.0"),
            (r#"{"name": "n", "cniVersion": null}"#, "n", "0.1.0"),
            (r#"{"name": "n", "cniVersion": "0.2.0", "cniVersion": "1.0.0"}"#, "n", "1.0.0"),
            (r#" {"name": "0"} "#, "0", "0.1.0"),
        ] {
            let network = NetworkConf::parse(json.as_bytes()).unwrap();
            assert_eq!((network.name(), network.version()), (name, version), "{json}");
        }
    }

    #[test]
    fn input_that_is_not_a_network_configuration_is_refused() {
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
            let error = NetworkConf::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(why), "{json}: {error}");
        }
    }

    #[test]
    fn prev_result_is_moved_out_whatever_the_case_of_its_key() {
        for (json, expected) in [
            (r#"{"name": "n", "prevResult": {"ips": []}}"#, Some(r#"{"ips":[]}"#)),
            (r#"{"name": "n", "PREVRESULT": 5}"#, Some("5")),
            (r#"{"name": "n", "prevResult": null, "prevresult": 5}"#, None),
            (r#"{"name": "n"}"#, None),
        ] {
            let mut network = NetworkConf::parse(json.as_bytes()).unwrap();
            let before = network.member("prevResult").map(Value::to_string);
            assert_eq!(network.take_prev_result().map(|value| value.to_string()), before, "{json}");
            assert_eq!(before.as_deref(), expected, "{json}");
        }
    }

    #[test]
    fn a10_a_document_nested_200000_levels_deep_is_refused() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        assert!(NetworkConf::parse(deep.as_bytes()).is_err());
    }
}
