//! A backend that only remembers: for tests of what stands on top of one.

use super::{Applied, Backend, BackendError, Before, Inventory, Item, Part, PartKind};
use crate::ruleset::Ruleset;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One namespace's rules, kept in memory.
#[derive(Debug, Default)]
pub struct Memory(Mutex<Option<Ruleset>>);

impl Memory {
    /// The rules that were applied last and not removed since.
    pub fn rules(&self) -> Option<Ruleset> {
        self.held().clone()
    }

    fn held(&self) -> MutexGuard<'_, Option<Ruleset>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn apply(&self, rules: &Ruleset) -> Result<Applied, BackendError> {
        let before = match self.held().replace(rules.clone()) {
            None => Before::Nothing,
            Some(held) if held == *rules => Before::TheSame,
            Some(_) => Before::Others,
        };
        Ok(Applied { before, beside: Vec::new() })
    }

    fn remove(&self) -> Result<(), BackendError> {
        *self.held() = None;
        Ok(())
    }

    fn inspect(&self) -> Result<Inventory, BackendError> {
        Ok(self.held().as_ref().map(|rules| self.wanted(rules)).unwrap_or_default())
    }

    fn wanted(&self, rules: &Ruleset) -> Inventory {
        let chains = rules.chains.iter().map(|chain| Part {
            kind: PartKind::Chain,
            name: chain.name.to_string(),
            form: Vec::new(),
            items: chain.rules.iter().map(|rule| item(rule.id.0, &format!("{rule:?}"))).collect(),
        });
        Inventory::of(chains.collect())
    }
}

fn item(id: &str, form: &str) -> Item {
    Item { id: id.to_owned(), form: form.as_bytes().to_vec(), packets: None, bytes: None }
}
