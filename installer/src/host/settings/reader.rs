//! Parses values. Every invalid setting is collected; none stops the parsing.

use super::error::InvalidSetting;
use super::sources::SettingsSources;
use gybe_plugin::pod::parse_bool;
use std::path::PathBuf;

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
