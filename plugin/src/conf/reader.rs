//! A reader of typed values from JSON keys, which collects every wrong value.

use super::MaxIntervals;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// All wrong values of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("wrong value in the plugin's configuration: {}", joined(.0))]
pub struct ConfError(pub Vec<WrongValue>);

/// Joins all faults of an input to one sentence.
pub fn joined(faults: &[impl ToString]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A key with a wrong value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}, which must be {expected}")]
pub struct WrongValue {
    /// The key, with the one that contains it.
    pub key: String,
    /// Its value as JSON, truncated.
    pub value: String,
    /// The expected values.
    pub expected: String,
}

/// Reads the keys of an object. A missing key, and one that is null, has its default.
pub(super) struct ConfReader<'a> {
    members: Option<&'a Map<String, Value>>,
    /// The key of the object; empty at the top.
    parent: &'static str,
    wrong: Vec<WrongValue>,
}

impl<'a> ConfReader<'a> {
    pub(super) fn new(members: &'a Map<String, Value>) -> Self {
        Self { members: Some(members), parent: "", wrong: Vec::new() }
    }

    /// Returns `conf` if no value was wrong.
    pub(super) fn finish<T>(self, conf: T) -> Result<T, ConfError> {
        if self.wrong.is_empty() { Ok(conf) } else { Err(ConfError(self.wrong)) }
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Reads a boolean; false when the key is missing.
    pub(super) fn boolean(&mut self, key: &str) -> bool {
        match self.get(key) {
            None => false,
            Some(Value::Bool(value)) => *value,
            Some(other) => self.wrong(key, other, "true or false"),
        }
    }

    /// Checks that the value is a list.
    pub(super) fn check_list(&mut self, key: &str) {
        if let Some(other) = self.get(key).filter(|value| !value.is_array()) {
            let () = self.wrong(key, other, "a list");
        }
    }

    /// Marks the value as wrong.
    pub(super) fn refuse(&mut self, key: &str, expected: &str) {
        let value = self.get(key).unwrap_or(&Value::Null);
        let () = self.wrong(key, value, expected);
    }

    /// Reads one of a few names; the default when the key is missing.
    pub(super) fn choice<T: Copy + Default>(&mut self, key: &str, choices: &[(&str, T)]) -> T {
        let Some(value) = self.get(key) else { return T::default() };
        let chosen = value.as_str().and_then(|text| choices.iter().find(|(name, _)| *name == text));
        chosen.map_or_else(
            || {
                let names: Vec<_> =
                    choices.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
                self.wrong(key, value, &format!("one of {}", names.join(", ")))
            },
            |(_, choice)| *choice,
        )
    }

    /// Reads a string; empty when the key is missing.
    pub(super) fn string(&mut self, key: &str) -> String {
        match self.get(key) {
            None => String::new(),
            Some(Value::String(text)) if !is_placeholder(text) => text.clone(),
            Some(other) => self.wrong(key, other, "a string"),
        }
    }

    /// Reads a list of strings; empty when the key is missing.
    pub(super) fn strings(&mut self, key: &str) -> BTreeSet<String> {
        let Some(value) = self.get(key) else { return BTreeSet::new() };
        let string = |item: &Value| item.as_str().filter(|text| !is_placeholder(text)).map(str::to_owned);
        let strings = value.as_array().map(|list| list.iter().map(string));
        match strings.and_then(Iterator::collect) {
            Some(strings) => strings,
            None => self.wrong(key, value, "a list of strings"),
        }
    }

    /// Reads an absolute path; none when the key is missing or empty.
    pub(super) fn path(&mut self, key: &str) -> Option<PathBuf> {
        match self.get(key)? {
            Value::String(text) if text.is_empty() => None,
            Value::String(text) if text.starts_with('/') && !text.contains('\0') => Some(PathBuf::from(text)),
            other => self.wrong(key, other, "an absolute path"),
        }
    }

    /// Reads a time of 1 to 60,000 milliseconds.
    pub(super) fn milliseconds(&mut self, key: &str) -> Option<Duration> {
        let value = self.get(key)?;
        match value.as_u64().filter(|ms| (1..=60_000).contains(ms)) {
            Some(ms) => Some(Duration::from_millis(ms)),
            None => self.wrong(key, value, "a whole number of milliseconds from 1 to 60000"),
        }
    }

    /// Reads a limit of intervals.
    pub(super) fn intervals(&mut self, key: &str) -> Option<MaxIntervals> {
        let value = self.get(key)?;
        match value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=65_536).contains(n)) {
            Some(max) => Some(MaxIntervals(max)),
            None => self.wrong(key, value, "a whole number from 1 to 65536"),
        }
    }

    /// Calls `read` with the object of `key`; with an empty one when the key is missing.
    pub(super) fn nested<T>(&mut self, key: &'static str, read: impl FnOnce(&mut ConfReader<'_>) -> T) -> T {
        let value = self.get(key);
        if let Some(other) = value.filter(|value| !value.is_object()) {
            let () = self.wrong(key, other, "an object");
        }
        let members = value.and_then(Value::as_object);
        let mut inner = ConfReader { members, parent: key, wrong: Vec::new() };
        let read = read(&mut inner);
        self.wrong.append(&mut inner.wrong);
        read
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.members?.get(key).filter(|value| !value.is_null())
    }

    fn wrong<T: Default>(&mut self, key: &str, value: &Value, expected: &str) -> T {
        let key = if self.parent.is_empty() { key.to_owned() } else { format!("{}.{key}", self.parent) };
        let is_template = value.as_str().is_some_and(is_placeholder)
            || value.as_array().is_some_and(|list| list.iter().filter_map(Value::as_str).any(is_placeholder));
        let expected = match is_template {
            true => format!("{expected}: the installer did not replace its placeholder"),
            false => expected.to_owned(),
        };
        let value = value.to_string().chars().take(64).collect();
        self.wrong.push(WrongValue { key, value, expected });
        T::default()
    }
}

/// Reports whether a value is a placeholder of an installer's template, like `__KUBECONFIG_FILEPATH__`.
fn is_placeholder(text: &str) -> bool {
    let name = text.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"));
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
}
