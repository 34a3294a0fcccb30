//! Settings that follow the ConfigMap: read again at every turn, taken over when they make sense. A
//! ConfigMap that makes none is told once, and what was good before holds.

use super::told::Told;
use crate::layers::chain;
use crate::settings::{Given, Settings};
use serde_json::json;
use std::collections::BTreeMap;

/// The last good settings, and what they were read from.
#[derive(Debug)]
pub(super) struct Following {
    environment: BTreeMap<String, String>,
    /// None after one that could not be read: whatever comes next is to be judged anew.
    seen: Option<Given>,
    pub(super) good: Settings,
    /// Why the ConfigMap as it is now cannot be followed.
    pub(super) fault: Option<String>,
}

impl Following {
    /// From settings that were read from this.
    pub(super) fn new(given: Given, good: Settings) -> Self {
        Self { environment: given.environment.clone(), seen: Some(given), good, fault: None }
    }

    /// Looks whether something else is said now.
    pub(super) fn follow(&mut self, told: &mut Told<'_>) {
        let given = match Given::gather(self.environment.clone()) {
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
            }
            Err(why) => self.keep(why.to_string(), told),
        }
        self.seen = Some(given);
    }

    fn keep(&mut self, why: String, told: &mut Told<'_>) {
        if self.fault.as_ref() != Some(&why) {
            let kept = "those from before hold";
            told.news(
                "error",
                "gybe node: the settings cannot be followed",
                json!({ "why": why, "kept": kept }),
            );
        }
        self.fault = Some(why);
    }
}
