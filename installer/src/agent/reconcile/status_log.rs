//! What the loop reports once, when it begins or changes, and not at every turn: the conditions in its log, and the events
//! about the node: redirection is lost or restored, a conflict begins or ends.

use crate::agent::events::{Event, Reason};
use crate::agent::status::Status;
use crate::error::chain;
use crate::host::apply::ChangeError;
use crate::host::conflict::Conflict;
use crate::host::observe::{Directory, PerDirectory};
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

/// The conditions that have had an event and still hold.
#[derive(Debug, Default)]
pub(super) struct NodeEvents {
    was_redirected: bool,
    is_lost: bool,
    conflicts: PerDirectory<bool>,
}

impl NodeEvents {
    /// Returns the events of the last turn.
    pub(super) fn observe(&mut self, status: &Status) -> Vec<Event> {
        let redirection = self.observe_redirection(status);
        redirection.into_iter().chain(self.observe_conflicts(status)).collect()
    }

    /// A rewrite that is repaired by the turn that observes it causes no event, nor does the time before the first
    /// installation.
    fn observe_redirection(&mut self, status: &Status) -> Option<Event> {
        let report = &status.report;
        self.was_redirected |= report.is_redirected == Some(true);
        let is_lost = status.is_unredirected() && self.was_redirected;
        match (std::mem::replace(&mut self.is_lost, is_lost), is_lost) {
            (false, true) => Some(Event::of_node(Reason::RedirectionLost, &report.missing.join("; "))),
            (true, false) if report.is_redirected == Some(true) => {
                Some(Event::of_node(Reason::RedirectionRestored, "a pod started now is redirected again"))
            }
            _ => None,
        }
    }

    fn observe_conflicts(&mut self, status: &Status) -> Vec<Event> {
        let changed = |directory: Directory| {
            let conflict = status.report.conflicts.of(directory);
            let was_conflict = std::mem::replace(self.conflicts.of_mut(directory), conflict.is_some());
            match (was_conflict, conflict) {
                (false, Some(why)) => Some(Event::of_node(Reason::ConflictBegan, why)),
                (true, None) => {
                    let what = match directory {
                        Directory::Conf => {
                            "no other program undoes Gybe's entry in the conf directory any more"
                        }
                        Directory::Programs => "no other program replaces Gybe's programs any more",
                    };
                    Some(Event::of_node(Reason::ConflictEnded, what))
                }
                _ => None,
            }
        };
        Directory::BOTH.into_iter().filter_map(changed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::status::TurnReport;
    use std::time::{Duration, Instant};

    fn report(is_redirected: Option<bool>, conflict: Option<&str>) -> TurnReport {
        let conf = conflict.map(str::to_owned);
        TurnReport {
            is_redirected,
            missing: vec!["the entry is missing".to_owned()],
            conflicts: PerDirectory { conf, programs: None },
            ..TurnReport::default()
        }
    }

    #[test]
    fn redirection_that_is_lost_for_a_second_or_restored_and_conflicts_are_events() {
        let (mut status, mut events) = (Status::default(), NodeEvents::default());
        let start = Instant::now().checked_sub(Duration::from_secs(100)).unwrap();
        let restored = Event::of_node(Reason::RedirectionRestored, "a pod started now is redirected again");
        let ended = "no other program undoes Gybe's entry in the conf directory any more";
        for (what, seconds_ago, is_redirected, conflict, expected) in [
            ("before the first installation", 100, Some(false), None, vec![]),
            ("installed", 90, Some(true), None, vec![]),
            ("a rewrite that is repaired at once", 0, Some(false), None, vec![]),
            ("repaired", 0, Some(true), None, vec![]),
            (
                "lost",
                50,
                Some(false),
                None,
                vec![Event::of_node(Reason::RedirectionLost, "the entry is missing")],
            ),
            ("still lost", 40, Some(false), None, vec![]),
            ("unknown", 30, None, None, vec![]),
            (
                "a conflict",
                20,
                Some(true),
                Some("why"),
                vec![restored, Event::of_node(Reason::ConflictBegan, "why")],
            ),
            ("the conflict lasts", 20, Some(true), Some("other file"), vec![]),
            ("it ends", 10, Some(true), None, vec![Event::of_node(Reason::ConflictEnded, ended)]),
        ] {
            let now = start + Duration::from_secs(100 - seconds_ago);
            status.update(report(is_redirected, conflict), now);
            assert_eq!(events.observe(&status), expected, "{what}");
        }
    }
}
