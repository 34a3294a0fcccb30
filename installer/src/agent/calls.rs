//! What plugins were called for and how long it took, counted out of the lines they send.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Of everything that can stand in a line, only these words become a label: whoever could write there
/// must not be able to make a metric for each pod.
const VERBS: [&str; 5] = [ADD, "CHECK", "DEL", "GC", "STATUS"];
const ADD: &str = "ADD";
const DECISIONS: [&str; 4] = ["redirect", "leave alone", "nothing", "error"];
/// A phase, and the field of its microseconds.
const PHASES: [(&str, &str); 3] = [("all", "took_us"), ("facts", "facts_us"), ("rules", "rules_us")];

/// Upper ends in microseconds: an ADD takes a few milliseconds, and 2 s at the most for its facts.
pub(crate) const BOUNDS: [u64; 12] =
    [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 500_000, 2_000_000, 10_000_000];

/// All calls that were heard of.
#[derive(Debug, Default)]
pub(crate) struct Calls(Mutex<Heard>);

#[derive(Debug, Default)]
struct Heard {
    counted: Counted,
    last_add: Option<Instant>,
}

/// Counters and histograms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// By verb and decision.
    pub(crate) calls: BTreeMap<(&'static str, &'static str), u64>,
    /// By verb and phase.
    pub(crate) took: BTreeMap<(&'static str, &'static str), Histogram>,
}

/// How many took how long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    /// For each of `BOUNDS`, those that took no longer than it and longer than the one before.
    pub(crate) counts: [u64; BOUNDS.len()],
    /// All of them.
    pub(crate) count: u64,
    /// Microseconds, of all together.
    pub(crate) sum: u64,
}

impl Calls {
    /// Counts a line, if it ends a call.
    pub(crate) fn heard(&self, line: &Map<String, Value>) {
        let known = |key: &str, words: &[&'static str]| {
            let word = line.get(key)?.as_str()?;
            words.iter().find(|known| **known == word).copied()
        };
        let (Some(verb), Some(decision)) = (known("verb", &VERBS), known("decision", &DECISIONS)) else {
            return;
        };
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if verb == ADD {
            heard.last_add = Some(Instant::now());
        }
        let counted = &mut heard.counted;
        *counted.calls.entry((verb, decision)).or_default() += 1;
        for (phase, field) in PHASES {
            if let Some(took) = line.get(field).and_then(Value::as_u64) {
                counted.took.entry((verb, phase)).or_default().put(took);
            }
        }
    }

    pub(crate) fn read(&self) -> Counted {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).counted.clone()
    }

    /// Whether an ADD has ended after that.
    pub(crate) fn added_after(&self, then: Instant) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last_add.is_some_and(|last| last > then)
    }
}

impl Histogram {
    fn put(&mut self, micros: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(micros);
        let at = BOUNDS.partition_point(|bound| *bound < micros);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn heard(calls: &Calls, line: &Value) {
        calls.heard(line.as_object().unwrap());
    }

    #[test]
    fn a_call_is_counted_by_verb_and_decision_and_each_of_its_phases_measured() {
        let calls = Calls::default();
        let line = json!({ "verb": "ADD", "decision": "redirect", "took_us": 4000, "facts_us": 501, "rules_us": 9e9 });
        heard(&calls, &line);
        heard(&calls, &json!({ "verb": "ADD", "decision": "redirect", "took_us": 99_000_000_u64 }));
        heard(&calls, &json!({ "verb": "DEL", "decision": "nothing" }));
        let counted = calls.read();
        assert_eq!(counted.calls, [(("ADD", "redirect"), 2), (("DEL", "nothing"), 1)].into());
        let all = &counted.took[&("ADD", "all")];
        assert_eq!(
            (all.counts[3], all.count, all.sum),
            (1, 2, 99_004_000),
            "4 ms is in the fourth, 99 s in none"
        );
        assert_eq!(counted.took[&("ADD", "facts")].counts[1], 1);
        assert_eq!(counted.took.len(), 2, "9e9 is no whole number of microseconds");
    }

    #[test]
    fn a09_words_of_somebodys_own_become_no_metric() {
        let calls = Calls::default();
        for line in [
            json!({ "verb": "ADD\"}", "decision": "redirect" }),
            json!({ "verb": "ADD", "decision": "pod-1" }),
            json!({ "verb": 1, "decision": "redirect" }),
            json!({ "decision": "redirect" }),
            json!({ "msg": "verb" }),
        ] {
            heard(&calls, &line);
        }
        assert_eq!(calls.read(), Counted::default());
    }
}
