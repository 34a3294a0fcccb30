//! Reading typed values out of JSON keys: every wrong one is collected, none stops the reading.

use super::MaxIntervals;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// All wrong values of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfError(pub Vec<WrongValue>);

/// One key with a value that does not belong there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}, which must be {wanted}")]
pub struct WrongValue {
    /// The key, with those it stands under.
    pub key: String,
    /// Its value as JSON, cut short.
    pub value: String,
    /// What would be right.
    pub wanted: String,
}

impl std::error::Error for ConfError {}

impl fmt::Display for ConfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("wrong value in the plugin's configuration: ")?;
        for (i, wrong) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "; " };
            write!(f, "{comma}{wrong}")?;
        }
        Ok(())
    }
}

/// The keys of an object, and what was wrong with those read so far. An absent key, and one that
/// is null, takes its default.
pub(super) struct Entry<'a> {
    members: Option<&'a Map<String, Value>>,
    under: &'static str,
    wrong: Vec<WrongValue>,
}

impl<'a> Entry<'a> {
    pub(super) fn top(members: &'a Map<String, Value>) -> Self {
        Self { members: Some(members), under: "", wrong: Vec::new() }
    }

    /// What was read, if all of it was right.
    pub(super) fn finish<T>(self, read: T) -> Result<T, ConfError> {
        if self.wrong.is_empty() { Ok(read) } else { Err(ConfError(self.wrong)) }
    }

    /// Is there a word about it at all?
    pub(super) fn says(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Yes or no; no when the key is absent.
    pub(super) fn yes(&mut self, key: &str) -> bool {
        match self.get(key) {
            None => false,
            Some(Value::Bool(yes)) => *yes,
            Some(other) => self.wrong(key, other, "true or false"),
        }
    }

    /// Looks that it is a list, of whatever.
    pub(super) fn list(&mut self, key: &str) {
        if let Some(other) = self.get(key).filter(|value| !value.is_array()) {
            let () = self.wrong(key, other, "a list");
        }
    }

    /// Refuses the value the key has.
    pub(super) fn refuse(&mut self, key: &str, wanted: &str) {
        let value = self.get(key).unwrap_or(&Value::Null);
        let () = self.wrong(key, value, wanted);
    }

    /// One of a few words; the default when the key is absent.
    pub(super) fn word<T: Copy + Default>(&mut self, key: &str, words: &[(&str, T)]) -> T {
        let Some(value) = self.get(key) else { return T::default() };
        let meant = value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
        meant.map_or_else(
            || {
                let names: Vec<_> = words.iter().map(|(word, _)| *word).filter(|w| !w.is_empty()).collect();
                self.wrong(key, value, &format!("one of {}", names.join(", ")))
            },
            |(_, meaning)| *meaning,
        )
    }

    /// Any text; empty when the key is absent.
    pub(super) fn text(&mut self, key: &str) -> String {
        match self.get(key) {
            None => String::new(),
            Some(Value::String(text)) if !is_placeholder(text) => text.clone(),
            Some(other) => self.wrong(key, other, "a string"),
        }
    }

    /// A list of texts; empty when the key is absent.
    pub(super) fn texts(&mut self, key: &str) -> BTreeSet<String> {
        let Some(value) = self.get(key) else { return BTreeSet::new() };
        let text = |item: &Value| item.as_str().filter(|text| !is_placeholder(text)).map(str::to_owned);
        let texts = value.as_array().map(|list| list.iter().map(text));
        match texts.and_then(Iterator::collect) {
            Some(texts) => texts,
            None => self.wrong(key, value, "a list of strings"),
        }
    }

    /// An absolute path; none when the key is absent or empty.
    pub(super) fn path(&mut self, key: &str) -> Option<PathBuf> {
        match self.get(key)? {
            Value::String(text) if text.is_empty() => None,
            Value::String(text) if text.starts_with('/') && !text.contains('\0') => Some(PathBuf::from(text)),
            other => self.wrong(key, other, "an absolute path"),
        }
    }

    /// A time that a caller might wait.
    pub(super) fn milliseconds(&mut self, key: &str) -> Option<Duration> {
        let value = self.get(key)?;
        match value.as_u64().filter(|ms| (1..=60_000).contains(ms)) {
            Some(ms) => Some(Duration::from_millis(ms)),
            None => self.wrong(key, value, "a whole number of milliseconds from 1 to 60000"),
        }
    }

    /// How long a list may be.
    pub(super) fn intervals(&mut self, key: &str) -> Option<MaxIntervals> {
        let value = self.get(key)?;
        match value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=65_536).contains(n)) {
            Some(most) => Some(MaxIntervals(most)),
            None => self.wrong(key, value, "a whole number from 1 to 65536"),
        }
    }

    /// What `read` makes of the object under `key`; of an empty one when the key is absent.
    pub(super) fn inside<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Entry<'_>) -> T) -> T {
        let value = self.get(key);
        if let Some(other) = value.filter(|value| !value.is_object()) {
            let () = self.wrong(key, other, "an object");
        }
        let members = value.and_then(Value::as_object);
        let mut inner = Entry { members, under: key, wrong: Vec::new() };
        let read = read(&mut inner);
        self.wrong.append(&mut inner.wrong);
        read
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.members?.get(key).filter(|value| !value.is_null())
    }

    fn wrong<T: Default>(&mut self, key: &str, value: &Value, wanted: &str) -> T {
        let key = if self.under.is_empty() { key.to_owned() } else { format!("{}.{key}", self.under) };
        let open = value.as_str().is_some_and(is_placeholder)
            || value.as_array().is_some_and(|list| list.iter().filter_map(Value::as_str).any(is_placeholder));
        let wanted = match open {
            true => format!("{wanted}: the installer left its placeholder there, and did not fill it in"),
            false => wanted.to_owned(),
        };
        let value = value.to_string().chars().take(64).collect();
        self.wrong.push(WrongValue { key, value, wanted });
        T::default()
    }
}

/// `__KUBECONFIG_FILEPATH__`: what an installer replaces in its template.
fn is_placeholder(text: &str) -> bool {
    let name = text.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"));
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
}
