//! Reads the values of a JSON object by key and collects their faults. Each read takes the parser of a value's text.

use gybe_plugin::names::nearest_of;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// What is wrong with one key: it is unknown, or its value is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFault {
    pub key: String,
    pub why: String,
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.why)
    }
}

/// Why a text is not a policy file.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    #[error("the policy is not a JSON object without duplicate keys")]
    NotAnObject(#[source] serde_json::Error),
    #[error("the policy has {}: {}", FaultCount(.0.len()), JoinedFaults(.0))]
    Faults(Vec<PolicyFault>),
}

struct FaultCount(usize);

impl fmt::Display for FaultCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} fault{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

struct JoinedFaults<'a>(&'a [PolicyFault]);

impl fmt::Display for JoinedFaults<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}

/// `*`, or a list of values.
pub(super) enum ListOrAll<T> {
    All,
    Only(Vec<T>),
}

/// How many edits make a known key of an unknown one that may be misspelt.
const MAX_EDITS: usize = 2;
/// The number of characters of an unknown key that a fault shows.
const MAX_SHOWN_KEY: usize = 64;

/// An object and the keys read from it; a key that is never read is unknown.
pub(super) struct PolicyReader<'a> {
    entries: &'a Map<String, Value>,
    read_keys: Vec<&'static str>,
    faults: Vec<PolicyFault>,
}

impl<'a> PolicyReader<'a> {
    pub(super) fn new(entries: &'a Map<String, Value>) -> Self {
        Self { entries, read_keys: Vec::new(), faults: Vec::new() }
    }

    /// Fails with the faults of all reads and the unknown keys, if there are any.
    pub(super) fn finish(mut self) -> Result<(), PolicyFileError> {
        let unknown = self.entries.keys().filter(|key| !self.read_keys.contains(&key.as_str()));
        self.faults.extend(unknown.map(|key| {
            let why = match nearest_of(&key.to_lowercase(), &self.read_keys.iter().copied(), MAX_EDITS) {
                Some(known) => format!("unknown key; did you mean {known}?"),
                None => "unknown key".to_owned(),
            };
            PolicyFault { key: key.chars().take(MAX_SHOWN_KEY).collect(), why }
        }));
        if self.faults.is_empty() { Ok(()) } else { Err(PolicyFileError::Faults(self.faults)) }
    }

    pub(super) fn fault(&mut self, key: &str, why: impl fmt::Display) {
        self.faults.push(PolicyFault { key: key.to_owned(), why: why.to_string() });
    }

    pub(super) fn is_given(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Option<bool> {
        match self.value(key)? {
            Value::Bool(flag) => Some(*flag),
            _ => {
                self.fault(key, "must be true or false");
                None
            }
        }
    }

    /// Reads one value, a string or a whole number; none if it is absent or has a fault.
    pub(super) fn text<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let Some(text) = text_of(self.value(key)?) else {
            self.fault(key, "must be a string or a whole number");
            return None;
        };
        parse(&text).map_err(|why| self.fault(key, why)).ok()
    }

    /// Reads a list; `*` in it is a fault, and an absent key is an empty list.
    pub(super) fn list<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let texts = self.texts(key).unwrap_or_default();
        if texts.iter().any(|text| text == "*") {
            self.fault(key, "does not take \"*\"");
        }
        self.parse_all(key, &texts, parse)
    }

    /// Reads a list or `["*"]`; an absent key means `*`.
    pub(super) fn list_or_all<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> ListOrAll<T> {
        let Some(texts) = self.texts(key) else { return ListOrAll::All };
        let star = texts.iter().any(|text| text == "*");
        if star && texts.len() == 1 {
            return ListOrAll::All;
        }
        if star {
            self.fault(key, "has \"*\" and other values; \"*\" means all and must be the only value");
        }
        ListOrAll::Only(self.parse_all(key, &texts, parse))
    }

    /// Parses all texts but `*`.
    fn parse_all<T, E: fmt::Display>(
        &mut self,
        key: &str,
        texts: &[String],
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let values = texts.iter().filter(|text| *text != "*");
        values.filter_map(|text| parse(text).map_err(|why| self.fault(key, why)).ok()).collect()
    }

    fn texts(&mut self, key: &'static str) -> Option<Vec<String>> {
        let texts = match self.value(key)? {
            Value::Array(items) => items.iter().map(text_of).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        if texts.is_none() {
            self.fault(key, "must be a list of strings or whole numbers");
        }
        texts
    }

    /// Returns the value of a key, and records the key as known.
    fn value(&mut self, key: &'static str) -> Option<&'a Value> {
        self.read_keys.push(key);
        self.entries.get(key)
    }
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_u64() || number.is_i64() => Some(number.to_string()),
        _ => None,
    }
}

/// Parses an object and refuses duplicate keys: JSON parsers differ in which of their values they use.
pub(super) fn object(text: &str) -> Result<Map<String, Value>, PolicyFileError> {
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = json.deserialize_map(WithoutDuplicates).and_then(|entries| json.end().map(|()| entries));
    parsed.map_err(PolicyFileError::NotAnObject)
}

struct WithoutDuplicates;

impl<'de> Visitor<'de> for WithoutDuplicates {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut source: A) -> Result<Self::Value, A::Error> {
        let mut entries = Map::new();
        while let Some((key, value)) = source.next_entry::<String, Value>()? {
            if entries.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            entries.insert(key, value);
        }
        Ok(entries)
    }
}
