//! Values out of text, and what is wrong with it: every fault is collected, none stops the reading.

use super::error::InvalidSetting;
use super::sources::SettingsSources;
use std::path::PathBuf;

/// What somebody said about a setting, and where.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawSetting<'a> {
    pub(super) name: &'static str,
    pub(super) text: &'a str,
}

/// Reads settings one by one.
pub(super) struct SettingsReader<'a> {
    pub(super) given: &'a SettingsSources,
    pub(super) faults: Vec<InvalidSetting>,
    /// Not wrong, and worth knowing.
    pub(super) notes: Vec<String>,
}

impl<'a> SettingsReader<'a> {
    pub(super) fn of(given: &'a SettingsSources) -> Self {
        Self { given, faults: Vec::new(), notes: Vec::new() }
    }

    /// The ConfigMap's word; an empty one says nothing.
    pub(super) fn key(&self, name: &'static str) -> Option<RawSetting<'a>> {
        let text = self.given.files.get(name)?.trim();
        (!text.is_empty()).then_some(RawSetting { name, text })
    }

    /// The environment's; an empty one says nothing.
    pub(super) fn variable(&self, name: &'static str) -> Option<RawSetting<'a>> {
        let text = self.given.environment.get(name)?.trim();
        (!text.is_empty()).then_some(RawSetting { name, text })
    }

    /// The ConfigMap's, which can change, before the environment's, which cannot.
    pub(super) fn either(&self, key: &'static str, variable: &'static str) -> Option<RawSetting<'a>> {
        self.key(key).or_else(|| self.variable(variable))
    }

    pub(super) fn refuse(&mut self, said: RawSetting<'_>, why: impl Into<String>) {
        self.faults.push(InvalidSetting::new(said.name, said.text, why));
    }

    /// One of a few words.
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

    /// Yes or no, in every spelling of the incumbent's; no where nobody says anything.
    pub(super) fn yes(&mut self, said: Option<RawSetting<'_>>) -> bool {
        self.yes_or_no(said).unwrap_or(false)
    }

    /// The same; none where nobody says anything.
    pub(super) fn yes_or_no(&mut self, said: Option<RawSetting<'_>>) -> Option<bool> {
        let said = said?;
        let meant = truth(said.text);
        if meant.is_none() {
            self.refuse(said, "must be true or false");
        }
        meant
    }

    /// An absolute path.
    pub(super) fn path(&mut self, name: &'static str, default: &str) -> PathBuf {
        let said = self.variable(name);
        if let Some(said) = said.filter(|said| !said.text.starts_with('/') || said.text.contains('\0')) {
            self.refuse(said, "must be an absolute path");
        }
        PathBuf::from(said.map_or(default, |said| said.text))
    }

    /// Any text; empty where nobody says anything.
    pub(super) fn text(&self, name: &'static str) -> String {
        self.variable(name).map_or(String::new(), |said| said.text.to_owned())
    }
}

/// Go's `strconv.ParseBool`, by which Istio reads all of its own.
pub(super) fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// A comma list, trimmed, without its empty elements.
pub(super) fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|element| !element.is_empty())
}
