//! What the loop tells: each state once, when it begins, and not again at every turn.

use crate::error::chain;
use crate::host::apply::ApplyError;
use crate::host::conflict::Conflict;
use crate::host::directory::PerDirectory;
use crate::host::pass::Pass;
use crate::host::problem::Problem;
use crate::log::Journal;
use gybe_netfilter::hint::Hint;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// So many sentences about one fight tell enough.
const MOST: usize = 16;

/// The journal, and what has been told and still holds.
#[derive(Debug)]
pub(super) struct Told<'a> {
    journal: &'a Journal,
    standing: BTreeMap<&'static str, String>,
    /// What was said of the fights there are: over one thing and then another, it is still the same fight.
    fought: BTreeSet<String>,
}

impl<'a> Told<'a> {
    pub(super) fn new(journal: &'a Journal) -> Self {
        Self { journal, standing: BTreeMap::new(), fought: BTreeSet::new() }
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

    /// What failed, also what did before and waits to be tried again.
    pub(super) fn failures(&mut self, pass: &Pass) {
        let all = || pass.waiting.iter().chain(&pass.performed.failed).map(|failed| &failed.why);
        let sentences: Vec<_> = all().map(|why| chain(why)).collect();
        let hints: Vec<_> = all().filter_map(ApplyError::hint).collect();
        let sentence = (!sentences.is_empty()).then(|| sentences.join("; "));
        self.state("failures", ("error", sentence), json!({ "hint": hints.join("; ") }));
    }

    /// Fights, each with whom: each sentence once until all of them have ended.
    pub(super) fn fights(&mut self, fights: &PerDirectory<Option<Conflict>>) {
        let all: Vec<&Conflict> = fights.conf.iter().chain(&fights.programs).collect();
        if all.is_empty() {
            self.fought.clear();
        }
        for fight in all {
            let sentence = fight.to_string();
            if self.fought.len() < MOST && self.fought.insert(sentence.clone()) {
                self.journal.tell(
                    "warn",
                    &format!("gybe node: {sentence}"),
                    json!({ "undone": fight.rewrites }),
                );
            }
        }
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
