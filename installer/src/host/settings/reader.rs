//! Parses values. Every invalid setting is collected; none stops the parsing, and all are reported in one message.

use super::sources::SettingsSources;
use gybe_plugin::conf::joined;
use gybe_plugin::pod::parse_bool;
use std::path::PathBuf;

/// The limits of a label's key, which a taint's key shares (Kubernetes' `IsQualifiedName`).
const MAX_NAME: usize = 63;
const MAX_PREFIX: usize = 253;

/// One invalid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value:?}: {why}")]
pub struct InvalidSetting {
    /// The variable, or the ConfigMap's key.
    pub name: String,
    /// Its value, truncated to 64 characters.
    pub value: String,
    /// What is valid, or what replaces the setting.
    pub why: String,
}

impl InvalidSetting {
    pub(super) fn new(name: &str, value: &str, why: impl Into<String>) -> Self {
        let value = value.chars().take(64).collect();
        Self { name: name.to_owned(), value, why: why.into() }
    }
}

/// All invalid settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid settings: {}", joined(.0))]
pub struct SettingsError(pub Vec<InvalidSetting>);

/// A configured value and the name of its setting.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawSetting<'a> {
    pub(super) name: &'static str,
    pub(super) text: &'a str,
}

pub(super) struct SettingsReader<'a> {
    pub(super) sources: &'a SettingsSources,
    pub(super) faults: Vec<InvalidSetting>,
    /// Remarks that are no errors.
    pub(super) notes: Vec<String>,
}

impl<'a> SettingsReader<'a> {
    pub(super) fn of(sources: &'a SettingsSources) -> Self {
        Self { sources, faults: Vec::new(), notes: Vec::new() }
    }

    /// The value of a ConfigMap's key; none if empty.
    pub(super) fn key(&self, name: &'static str) -> Option<RawSetting<'a>> {
        let text = self.sources.files.get(name)?.trim();
        (!text.is_empty()).then_some(RawSetting { name, text })
    }

    /// The value of a variable; none if empty.
    pub(super) fn variable(&self, name: &'static str) -> Option<RawSetting<'a>> {
        let text = self.sources.environment.get(name)?.trim();
        (!text.is_empty()).then_some(RawSetting { name, text })
    }

    /// The ConfigMap's value, else the variable's.
    pub(super) fn either(&self, key: &'static str, variable: &'static str) -> Option<RawSetting<'a>> {
        self.key(key).or_else(|| self.variable(variable))
    }

    pub(super) fn refuse(&mut self, setting: RawSetting<'_>, why: impl Into<String>) {
        self.faults.push(InvalidSetting::new(setting.name, setting.text, why));
    }

    /// Parses one of a fixed set of words.
    pub(super) fn word<T: Copy + Default>(
        &mut self,
        setting: Option<RawSetting<'_>>,
        words: &[(&str, T)],
    ) -> T {
        let Some(setting) = setting else { return T::default() };
        let meant = words.iter().find(|(word, _)| *word == setting.text);
        meant.map_or_else(
            || {
                let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                self.refuse(setting, format!("must be one of {}", names.join(", ")));
                T::default()
            },
            |(_, meaning)| *meaning,
        )
    }

    /// Parses a boolean in every spelling that the incumbent accepts; false if not set.
    pub(super) fn yes(&mut self, setting: Option<RawSetting<'_>>) -> bool {
        self.yes_or_no(setting).unwrap_or(false)
    }

    /// Parses a boolean; none if not set.
    pub(super) fn yes_or_no(&mut self, setting: Option<RawSetting<'_>>) -> Option<bool> {
        let setting = setting?;
        let meant = parse_bool(setting.text);
        if meant.is_none() {
            self.refuse(setting, "must be true or false");
        }
        meant
    }

    /// Parses an absolute path.
    pub(super) fn path(&mut self, name: &'static str, default: &str) -> PathBuf {
        let setting = self.variable(name);
        if let Some(setting) =
            setting.filter(|setting| !setting.text.starts_with('/') || setting.text.contains('\0'))
        {
            self.refuse(setting, "must be an absolute path");
        }
        PathBuf::from(setting.map_or(default, |setting| setting.text))
    }

    /// The variable's text; empty if not set.
    pub(super) fn text(&self, name: &'static str) -> String {
        self.variable(name).map_or(String::new(), |setting| setting.text.to_owned())
    }
}

/// Splits a comma-separated list into trimmed elements, without the empty ones.
pub(super) fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|element| !element.is_empty())
}

/// Reports whether a text is the key of a label or taint: a name, after a DNS prefix and a slash or alone.
pub(super) fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_prefix = prefix.is_none_or(|prefix| prefix.len() <= MAX_PREFIX && prefix.split('.').all(is_label));
    is_prefix && is_name(name)
}

/// Reports whether a text is the name in such a key, or the value of a label.
pub(super) fn is_name(name: &str) -> bool {
    let is_end = |end: Option<char>| end.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.len() <= MAX_NAME
        && is_end(name.chars().next())
        && is_end(name.chars().last())
        && name.chars().all(is_inner)
}

fn is_label(label: &str) -> bool {
    is_name(label) && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}
