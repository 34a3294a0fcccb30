//! Settings that follow the ConfigMap: read again at every turn, taken over when they make sense. A
//! ConfigMap that makes none is told once, and what was good before holds; where nothing was, because
//! the agent has only just started, the node stays as it is until there is one.

use super::told::Told;
use crate::error::chain;
use crate::host::settings::{Environment, Settings, SettingsError, SettingsSources, SourceError};
use serde_json::json;
use std::collections::BTreeMap;

/// The last good settings, and what they were read from.
#[derive(Debug)]
pub struct Following {
    environment: BTreeMap<String, String>,
    /// None after one that could not be read: whatever comes next is to be judged anew.
    seen: Option<SettingsSources>,
    /// Before a ConfigMap was followed, the environment's alone: nobody has chosen by them.
    pub(super) good: Settings,
    pub(super) chosen: Chosen,
    /// Why the ConfigMap as it is now cannot be followed.
    pub(super) fault: Option<String>,
}

/// Whether a ConfigMap, there or not, was ever followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chosen {
    /// What an operator chose is known.
    Yes,
    /// It could not be read since the start.
    NotYet,
}

/// Why there are no settings to start with.
#[derive(Debug, thiserror::Error)]
pub enum NoSettings {
    /// A file.
    #[error(transparent)]
    SourceError(#[from] SourceError),
    /// What they say.
    #[error(transparent)]
    Wrong(#[from] SettingsError),
}

fn read(given: Result<SettingsSources, SourceError>) -> Result<(SettingsSources, Settings), NoSettings> {
    let given = given?;
    let settings = Settings::read(&given)?;
    Ok((given, settings))
}

impl Following {
    /// A fault of the ConfigMap's alone is no reason not to start: the agent that is not there answers
    /// nobody's question, and every meshed pod of its node would be refused.
    ///
    /// # Errors
    /// Names everything that is wrong, when something of it is in the environment, which cannot change.
    pub fn start(environment: BTreeMap<String, String>) -> Result<Self, NoSettings> {
        let (seen, good, chosen) = match read(SettingsSources::gather(environment.clone())) {
            Ok((given, good)) => (Some(given), good, Chosen::Yes),
            Err(why) => match read(SettingsSources::of_environment(environment.clone())) {
                Ok((_, good)) => (None, good, Chosen::NotYet),
                Err(_) => return Err(why),
            },
        };
        Ok(Self { environment, seen, good, chosen, fault: None })
    }

    /// Where things are and who we are.
    #[must_use]
    pub fn ground(&self) -> &Environment {
        &self.good.ground
    }

    /// Looks whether something else is said now.
    pub(super) fn follow(&mut self, told: &mut Told<'_>) {
        let given = match SettingsSources::gather(self.environment.clone()) {
            Ok(given) if self.seen.as_ref() == Some(&given) => return,
            Ok(given) => given,
            Err(why) => {
                self.seen = None;
                return self.keep(chain(&why), told);
            }
        };
        match Settings::read(&given) {
            Ok(settings) => {
                self.fault = None;
                for note in settings.notes.iter().filter(|note| !self.good.notes.contains(note)) {
                    told.news("warn", "gybe node: a setting", json!({ "note": note }));
                }
                if settings.choices != self.good.choices {
                    told.news("info", "gybe node: other settings", json!({}));
                }
                // A live process keeps its environment, so the ground is the same.
                self.good = settings;
                self.chosen = Chosen::Yes;
            }
            Err(why) => self.keep(why.to_string(), told),
        }
        self.seen = Some(given);
    }

    fn keep(&mut self, why: String, told: &mut Told<'_>) {
        if self.fault.as_ref() != Some(&why) {
            let kept = match self.chosen {
                Chosen::Yes => "those from before hold",
                Chosen::NotYet => "the node stays as it is; pods are answered",
            };
            told.news(
                "error",
                "gybe node: the settings cannot be followed",
                json!({ "why": why, "kept": kept }),
            );
        }
        self.fault = Some(why);
    }
}
