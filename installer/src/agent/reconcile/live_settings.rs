//! Settings that follow the ConfigMap: read again at every turn, and used if they are valid. An invalid ConfigMap is
//! logged once, and the previous settings stay in use. If there are none, because the agent has just started, the node
//! stays as it is until the ConfigMap is valid.

use super::status_log::StatusLog;
use crate::agent::ambient::AmbientNode;
use crate::error::chain;
use crate::host::settings::{Environment, Settings, SettingsError, SettingsSources, SourceError};
use crate::log::Level;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// The settings in use, and the values they were read from.
#[derive(Debug)]
pub struct LiveSettings {
    environment: BTreeMap<String, String>,
    /// None after a ConfigMap that could not be read: the next one is read even if it is unchanged.
    read_from: Option<SettingsSources>,
    /// The keys and values of the ConfigMap in use.
    files: BTreeMap<String, String>,
    /// Before a valid ConfigMap was read, the settings of the environment alone.
    pub(super) current: Settings,
    pub(super) origin: Origin,
    /// Why the current ConfigMap is not in use.
    pub(super) error: Option<String>,
}

/// Where the settings in use come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A valid ConfigMap, or its absence.
    ConfigMap,
    /// No valid ConfigMap was read since the start.
    Environment,
}

/// Why there are no settings to start with.
#[derive(Debug, thiserror::Error)]
pub enum SettingsLoadError {
    #[error(transparent)]
    SourceError(#[from] SourceError),
    #[error(transparent)]
    Invalid(#[from] SettingsError),
}

fn load(
    sources: Result<SettingsSources, SourceError>,
) -> Result<(SettingsSources, Settings), SettingsLoadError> {
    let sources = sources?;
    let settings = Settings::read(&sources)?;
    Ok((sources, settings))
}

impl LiveSettings {
    /// Reads the settings. An invalid ConfigMap alone does not stop the agent: without an agent the plugin refuses
    /// every pod of the mesh on this node.
    ///
    /// # Errors
    /// When the environment is invalid, which cannot change while the process runs. Names everything that is invalid.
    pub fn start(environment: BTreeMap<String, String>) -> Result<Self, SettingsLoadError> {
        let (read_from, current, origin) = match load(SettingsSources::gather(environment.clone())) {
            Ok((sources, current)) => (Some(sources), current, Origin::ConfigMap),
            Err(why) => match load(SettingsSources::of_environment(environment.clone())) {
                Ok((_, current)) => (None, current, Origin::Environment),
                Err(_) => return Err(why),
            },
        };
        let files = read_from.as_ref().map_or_else(BTreeMap::new, |sources| sources.files.clone());
        Ok(Self { environment, read_from, files, current, origin, error: None })
    }

    #[must_use]
    pub fn environment(&self) -> &Environment {
        &self.current.environment
    }

    /// Reads the ConfigMap, and uses it if it changed and is valid.
    pub(super) fn refresh(&mut self, log: &StatusLog<'_>) {
        let sources = match SettingsSources::gather(self.environment.clone()) {
            Ok(sources) if self.read_from.as_ref() == Some(&sources) => return,
            Ok(sources) => sources,
            Err(why) => {
                self.read_from = None;
                return self.reject(chain(&why), log);
            }
        };
        match Settings::read(&sources) {
            Ok(settings) => {
                self.error = None;
                for note in settings.notes.iter().filter(|note| !self.current.notes.contains(note)) {
                    log.event(Level::Warn, "gybe node: note on the settings", json!({ "note": note }));
                }
                if settings.options != self.current.options {
                    let fields = json!({ "keys": changed_keys(&self.files, &sources.files) });
                    log.event(Level::Info, "gybe node: the settings changed", fields);
                }
                // A process keeps its environment, so `environment` is the same.
                self.current = settings;
                self.files.clone_from(&sources.files);
                self.origin = Origin::ConfigMap;
            }
            Err(why) => self.reject(why.to_string(), log),
        }
        self.read_from = Some(sources);
    }

    /// Sets the selectors by which the agent decides which pods are ambient; none before a valid ConfigMap.
    pub(super) fn set_ambient_selectors(&self, ambient: Option<&AmbientNode>) {
        let selectors = self.current.options.ambient.as_ref().filter(|_| self.origin == Origin::ConfigMap);
        if let Some(ambient) = ambient {
            ambient.set_selectors(selectors, &self.current.options.conf.exclude_namespaces);
        }
    }

    fn reject(&mut self, why: String, log: &StatusLog<'_>) {
        if self.error.as_ref() != Some(&why) {
            let kept = match self.origin {
                Origin::ConfigMap => "the previous settings",
                Origin::Environment => "the node stays as it is; queries about pods are served",
            };
            let fields = json!({ "why": why, "kept": kept });
            log.event(Level::Error, "gybe node: the settings cannot be followed", fields);
        }
        self.error = Some(why);
    }
}

/// Returns the keys whose values differ, or that only one of the two has.
fn changed_keys<'k>(
    before: &'k BTreeMap<String, String>,
    now: &'k BTreeMap<String, String>,
) -> BTreeSet<&'k String> {
    before.keys().chain(now.keys()).filter(|key| before.get(*key) != now.get(*key)).collect()
}
