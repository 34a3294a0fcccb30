//! Parses values. Every invalid setting is collected; none stops the parsing.

use super::error::InvalidSetting;
use super::sources::SettingsSources;
use std::path::PathBuf;

/// A configured value and the name of its setting.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawSetting<'a> {
    pub(super) name: &'static str,
    pub(super) text: &'a str,
}

pub(super) struct SettingsReader<'a> {
    pub(super) given: &'a SettingsSources,
    pub(super) faults: Vec<InvalidSetting>,
    /// Remarks that are no errors.
    pub(super) notes: Vec<String>,
}

impl<'a> SettingsReader<'a> {
    pub(super) fn of(given: &'a SettingsSources) -> Self {
        Self { given, faults: Vec::new(), notes: Vec::new() }
    }

    /// The value of a ConfigMap's key; none if empty.
    pub(super) fn key(&self, name: &'static str) -> Option<RawSetting<'a>> {
        let text = self.given.files.get(name)?.trim();
        (!text.is_empty()).then_some(RawSetting { name, text })
    }

    /// The value of a variable; none if empty.
    pub(super) fn variable(&self, name: &'static str) -> Option<RawSetting<'a>> {
        let text = self.given.environment.get(name)?.trim();
        (!text.is_empty()).then_some(RawSetting { name, text })
    }

    /// The ConfigMap's value, else the variable's.
    pub(super) fn either(&self, key: &'static str, variable: &'static str) -> Option<RawSetting<'a>> {
        self.key(key).or_else(|| self.variable(variable))
    }

    pub(super) fn refuse(&mut self, said: RawSetting<'_>, why: impl Into<String>) {
        self.faults.push(InvalidSetting::new(said.name, said.text, why));
    }

    /// Parses one of a fixed set of words.
    pub(super) fn word<T: Copy + Default>(&mut self, said: Option<RawSetting<'_>>, words: &[(&str, T)]) -> T {
        let Some(said) = said else { return T::default() };
        let meant = words.iter().find(|(word, _)| *word == said.text);
        meant.map_or_else(
            || {
                let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                self.refuse(said, format!("must be one of {}", names.join(", ")));
                T::default()
            },
            |(_, meaning)| *meaning,
        )
    }

    /// Parses a boolean in every spelling that the incumbent accepts; false if not set.
    pub(super) fn yes(&mut self, said: Option<RawSetting<'_>>) -> bool {
        self.yes_or_no(said).unwrap_or(false)
    }

    /// Parses a boolean; none if not set.
    pub(super) fn yes_or_no(&mut self, said: Option<RawSetting<'_>>) -> Option<bool> {
        let said = said?;
        let meant = truth(said.text);
        if meant.is_none() {
            self.refuse(said, "must be true or false");
        }
        meant
    }

    /// Parses an absolute path.
    pub(super) fn path(&mut self, name: &'static str, default: &str) -> PathBuf {
        let said = self.variable(name);
        if let Some(said) = said.filter(|said| !said.text.starts_with('/') || said.text.contains('\0')) {
            self.refuse(said, "must be an absolute path");
        }
        PathBuf::from(said.map_or(default, |said| said.text))
    }

    /// The variable's text; empty if not set.
    pub(super) fn text(&self, name: &'static str) -> String {
        self.variable(name).map_or(String::new(), |said| said.text.to_owned())
    }
}

/// Parses as Go's `strconv.ParseBool`, with which Istio reads its own variables.
pub(super) fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Splits a comma-separated list into trimmed elements, without the empty ones.
pub(super) fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|element| !element.is_empty())
}
