//! Taking values out of a JSON object by name, while collecting what is wrong with them.
//!
//! What a value means is not known here: every reading is given the parser of its text.

use super::faults::{Fault, PolicyFileError, nearest};
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// All, or only what a list names.
pub(super) enum Scope<T> {
    All,
    Only(Vec<T>),
}

/// Remembers what was asked for, so that what nobody asked for is known to be unknown.
pub(super) struct Reader<'a> {
    entries: &'a Map<String, Value>,
    asked: Vec<&'static str>,
    faults: Vec<Fault>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(entries: &'a Map<String, Value>) -> Self {
        Self { entries, asked: Vec::new(), faults: Vec::new() }
    }

    pub(super) fn finish(mut self) -> Result<(), PolicyFileError> {
        let unknown = self.entries.keys().filter(|key| !self.asked.contains(&key.as_str()));
        self.faults.extend(unknown.map(|key| {
            let why = match nearest(key, &self.asked) {
                Some(known) => format!("is not a name we know; did you mean {known}?"),
                None => "is not a name we know".to_owned(),
            };
            Fault { key: key.chars().take(64).collect(), why }
        }));
        if self.faults.is_empty() { Ok(()) } else { Err(PolicyFileError::Faults(self.faults)) }
    }

    pub(super) fn fault(&mut self, key: &str, why: impl fmt::Display) {
        self.faults.push(Fault { key: key.to_owned(), why: why.to_string() });
    }

    pub(super) fn given(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Option<bool> {
        match self.take(key)? {
            Value::Bool(flag) => Some(*flag),
            _ => {
                self.fault(key, "must be true or false");
                None
            }
        }
    }

    /// One value, a string or a whole number, as `parse` understands its text.
    pub(super) fn text<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let Some(text) = text_of(self.take(key)?) else {
            self.fault(key, "must be a string or a whole number");
            return None;
        };
        parse(&text).map_err(|why| self.fault(key, why)).ok()
    }

    /// A list without `*`; absent means empty.
    pub(super) fn list<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let texts = self.texts(key).unwrap_or_default();
        if texts.iter().any(|text| text == "*") {
            self.fault(key, "has no place for \"*\"");
        }
        self.parsed(key, &texts, parse)
    }

    /// A list, or `*` alone; absent means `*`.
    pub(super) fn scope<T, E: fmt::Display>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Scope<T> {
        let Some(texts) = self.texts(key) else { return Scope::All };
        let star = texts.iter().any(|text| text == "*");
        if star && texts.len() == 1 {
            return Scope::All;
        }
        if star {
            self.fault(key, "has \"*\" beside other values; it means all and stands alone");
        }
        Scope::Only(self.parsed(key, &texts, parse))
    }

    fn parsed<T, E: fmt::Display>(
        &mut self,
        key: &str,
        texts: &[String],
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let values = texts.iter().filter(|text| *text != "*");
        values.filter_map(|text| parse(text).map_err(|why| self.fault(key, why)).ok()).collect()
    }

    fn texts(&mut self, key: &'static str) -> Option<Vec<String>> {
        let texts = match self.take(key)? {
            Value::Array(items) => items.iter().map(text_of).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        if texts.is_none() {
            self.fault(key, "must be a list of strings or whole numbers");
        }
        texts
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Value> {
        self.asked.push(key);
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

/// Parses an object, and refuses a name that stands there twice: nobody could say which one counts.
pub(super) fn object(text: &str) -> Result<Map<String, Value>, PolicyFileError> {
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = json.deserialize_map(Once).and_then(|entries| json.end().map(|()| entries));
    parsed.map_err(PolicyFileError::NotAnObject)
}

struct Once;

impl<'de> Visitor<'de> for Once {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut source: A) -> Result<Self::Value, A::Error> {
        let mut entries = Map::new();
        while let Some((key, value)) = source.next_entry::<String, Value>()? {
            if entries.contains_key(&key) {
                return Err(A::Error::custom(format_args!("{key:?} stands there twice")));
            }
            entries.insert(key, value);
        }
        Ok(entries)
    }
}
