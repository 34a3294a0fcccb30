//! What the loop tells: each state once, when it begins, and not again at every turn.

use crate::install::change::Problem;
use crate::install::perform::PerformError;
use crate::install::{Fight, Pass};
use crate::layers::chain;
use crate::node::Journal;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The journal, and what has been told and still holds.
#[derive(Debug)]
pub(super) struct Told<'a> {
    journal: &'a Journal,
    standing: BTreeMap<&'static str, String>,
}

impl<'a> Told<'a> {
    pub(super) fn new(journal: &'a Journal) -> Self {
        Self { journal, standing: BTreeMap::new() }
    }

    /// Something that happened.
    pub(super) fn news(&self, level: &str, message: &str, more: Value) {
        self.journal.tell(level, message, more);
    }

    /// Something that holds: told when it begins, and when it is another; none is its end.
    pub(super) fn state(
        &mut self,
        what: &'static str,
        (level, sentence): (&str, Option<String>),
        more: Value,
    ) {
        if self.standing.get(what) == sentence.as_ref() {
            return;
        }
        match sentence {
            Some(sentence) => {
                self.journal.tell(level, &format!("gybe node: {sentence}"), more);
                self.standing.insert(what, sentence);
            }
            None => drop(self.standing.remove(what)),
        }
    }

    /// What a pass found in its way.
    pub(super) fn problems(&mut self, problems: &[Problem]) {
        let sentences: Vec<_> = problems.iter().map(ToString::to_string).collect();
        let blocks = problems.iter().any(Problem::blocks);
        let hints: Vec<_> = problems.iter().filter_map(Problem::hint).collect();
        let sentence = (!sentences.is_empty()).then(|| sentences.join("; "));
        let level = if blocks { "warn" } else { "info" };
        self.state("problems", (level, sentence), json!({ "hint": hints.join("; ") }));
    }

    /// What failed.
    pub(super) fn failures(&mut self, failed: &[PerformError]) {
        let sentences: Vec<_> = failed.iter().map(|why| chain(why)).collect();
        let hints: Vec<_> = failed.iter().filter_map(PerformError::hint).collect();
        let sentence = (!sentences.is_empty()).then(|| sentences.join("; "));
        self.state("failures", ("error", sentence), json!({ "hint": hints.join("; ") }));
    }

    /// A fight, its end, and with whom.
    pub(super) fn fight(&mut self, fight: Option<&Fight>) {
        let more = fight.map_or(json!({}), |fight| json!({ "undone": fight.undone }));
        self.state("fight", ("warn", fight.map(in_words)), more);
    }

    /// What was done to the node.
    pub(super) fn done(&self, pass: &Pass, more: Value) {
        let changes: Vec<_> = pass.plan.changes.iter().map(ToString::to_string).collect();
        let mut about = json!({ "steps": changes, "done": pass.performed.done });
        if let (Some(about), Value::Object(more)) = (about.as_object_mut(), more) {
            about.extend(more);
        }
        self.journal.tell("info", "gybe node: changed the node", about);
    }
}

/// Who undoes what, and what stops it.
pub(super) fn in_words(fight: &Fight) -> String {
    let file = fight.file.as_ref().map_or("our entry".to_owned(), |file| format!("our entry in {file}"));
    match fight.rival {
        Some(rival) => {
            format!("{file} is undone again and again, most likely by {}: {}", rival.name, rival.setting)
        }
        None => format!("{file} is undone again and again, by a plugin's agent that we do not know"),
    }
}
