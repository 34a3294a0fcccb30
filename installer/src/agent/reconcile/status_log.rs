//! The loop's log: each condition is logged once when it begins or changes, not at every turn.

use crate::error::chain;
use crate::host::apply::ChangeError;
use crate::host::conflict::Conflict;
use crate::host::observe::PerDirectory;
use crate::host::pass::Pass;
use crate::host::problem::Problem;
use crate::log::{Level, Log};
use gybe_netfilter::model::Hint;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of lines until all conflicts have ended.
const MAX_CONFLICT_LINES: usize = 16;

/// The log, and the conditions that were logged and still hold.
#[derive(Debug)]
pub(super) struct StatusLog<'a> {
    log: &'a Log,
    /// The reason of each condition, by its message.
    holding: BTreeMap<&'static str, String>,
    /// What was logged about the current conflicts: a conflict may be over one file and then another.
    conflicts: BTreeSet<String>,
}

impl<'a> StatusLog<'a> {
    pub(super) fn new(log: &'a Log) -> Self {
        Self { log, holding: BTreeMap::new(), conflicts: BTreeSet::new() }
    }

    pub(super) fn event(&self, level: Level, message: &str, fields: Value) {
        self.log.log(level, message, fields);
    }

    /// Sets a condition, and logs it with its reason in the field `why` when it begins or its reason changes. A
    /// condition without a reason does not hold.
    pub(super) fn condition(
        &mut self,
        level: Level,
        message: &'static str,
        why: Option<String>,
        fields: Value,
    ) {
        if self.holding.get(message) == why.as_ref() {
            return;
        }
        match why {
            Some(why) => {
                self.log.log(level, message, with(fields, "why", json!(why)));
                self.holding.insert(message, why);
            }
            None => drop(self.holding.remove(message)),
        }
    }

    /// Logs the problems of a pass.
    pub(super) fn problems(&mut self, problems: &[Problem]) {
        let sentences: Vec<_> = problems.iter().map(ToString::to_string).collect();
        let level = if problems.iter().any(Problem::blocks) { Level::Warn } else { Level::Info };
        let mut hints: Vec<_> = problems.iter().filter_map(Hint::hint).collect();
        hints.dedup();
        self.condition(level, "gybe node: problems on the node", joined(&sentences), hint(&hints.join("; ")));
    }

    /// Logs the changes that failed, also those that failed before and wait for a retry.
    pub(super) fn failures(&mut self, pass: &Pass) {
        let all = || pass.failed().map(|failed| &failed.why);
        let sentences: Vec<_> = all().map(|why| chain(why)).collect();
        let hints: Vec<_> = all().filter_map(ChangeError::hint).collect();
        self.condition(
            Level::Error,
            "gybe node: a change failed",
            joined(&sentences),
            hint(&hints.join("; ")),
        );
    }

    /// Logs the conflicts: each sentence once until all conflicts have ended.
    pub(super) fn conflicts(&mut self, conflicts: &PerDirectory<Option<Conflict>>) {
        let all: Vec<&Conflict> = conflicts.conf.iter().chain(&conflicts.programs).collect();
        if all.is_empty() {
            self.conflicts.clear();
        }
        for conflict in all {
            let why = conflict.to_string();
            if self.conflicts.len() < MAX_CONFLICT_LINES && self.conflicts.insert(why.clone()) {
                let fields = json!({ "why": why, "undone": conflict.rewrites });
                self.log.warn("gybe node: another program undoes our changes", fields);
            }
        }
    }

    /// Logs the changes that a pass made.
    pub(super) fn changes(&self, pass: &Pass, repaired_in_us: Option<u64>) {
        let steps: Vec<_> = pass.plan.changes.iter().map(ToString::to_string).collect();
        let mut fields = json!({ "steps": steps, "done": pass.applied.done });
        if let Some(micros) = repaired_in_us {
            fields = with(fields, "repaired_in_us", json!(micros));
        }
        self.log.info("gybe node: changed the node", fields);
    }
}

fn joined(sentences: &[String]) -> Option<String> {
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

fn hint(text: &str) -> Value {
    json!({ "hint": text })
}

fn with(mut fields: Value, key: &str, value: Value) -> Value {
    if let Some(members) = fields.as_object_mut() {
        members.insert(key.to_owned(), value);
    }
    fields
}
