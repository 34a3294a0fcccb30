//! The plugin's calls and how long they took, counted from the log lines that it sends, and the pods that it refused.

use super::events::PodEvent;
use super::refusals::Refusals;
use crate::agent_status::RefusedPod;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Only these values become a label: a line's sender must not be able to create a metric for each pod.
const VERBS: [&str; 5] = [ADD, "CHECK", "DEL", "GC", "STATUS"];
const ADD: &str = "ADD";
const DECISIONS: [&str; 4] = ["redirect", "leave alone", "nothing", "error"];
/// The phases, and the field with each one's microseconds.
const PHASES: [(&str, &str); 3] = [("all", "took_us"), ("facts", "facts_us"), ("rules", "rules_us")];

/// The upper bounds of the buckets in microseconds: an ADD takes a few milliseconds, and 2 s at the most for its facts.
pub(crate) const BOUNDS: [u64; 12] =
    [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 500_000, 2_000_000, 10_000_000];

/// The recorded calls.
#[derive(Debug, Default)]
pub(crate) struct PluginCalls(Mutex<Recorded>);

#[derive(Debug, Default)]
struct Recorded {
    counts: CallCounts,
    last_add: Option<Instant>,
    refusals: Refusals,
}

/// Counters and histograms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CallCounts {
    /// By verb and decision.
    pub(crate) calls: BTreeMap<(&'static str, &'static str), u64>,
    /// By verb and phase.
    pub(crate) took: BTreeMap<(&'static str, &'static str), Histogram>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    /// The number of calls in the bucket of each of `BOUNDS`, not cumulative.
    pub(crate) counts: [u64; BOUNDS.len()],
    pub(crate) count: u64,
    /// Microseconds.
    pub(crate) sum: u64,
}

impl PluginCalls {
    /// Counts a line that reports the end of a call; `refusal` is what it reports about a refused pod.
    pub(crate) fn record(&self, line: &Map<String, Value>, refusal: Option<&PodEvent>) {
        let value = |key: &str, known: &[&'static str]| {
            let value = line.get(key)?.as_str()?;
            known.iter().find(|known| **known == value).copied()
        };
        let (Some(verb), Some(decision)) = (value("verb", &VERBS), value("decision", &DECISIONS)) else {
            return;
        };
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if verb == ADD {
            let now = Instant::now();
            recorded.last_add = Some(now);
            match (refusal, line.get("pod").and_then(Value::as_str)) {
                (Some(refusal), _) => recorded.refusals.record(refusal, now),
                (None, Some(pod)) => recorded.refusals.added(pod),
                (None, None) => {}
            }
        }
        let counts = &mut recorded.counts;
        *counts.calls.entry((verb, decision)).or_default() += 1;
        for (phase, field) in PHASES {
            if let Some(took) = line.get(field).and_then(Value::as_u64) {
                counts.took.entry((verb, phase)).or_default().put(took);
            }
        }
    }

    pub(crate) fn read(&self) -> CallCounts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).counts.clone()
    }

    /// Returns the pods whose last ADD was refused within the last minutes.
    pub(crate) fn refused(&self) -> Vec<RefusedPod> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).refusals.recent(Instant::now())
    }

    /// Reports whether an ADD ended after `then`.
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

    fn record(calls: &PluginCalls, line: &Value) {
        calls.record(line.as_object().unwrap(), None);
    }

    #[test]
    fn a_call_is_counted_by_verb_and_decision_with_the_time_of_each_phase() {
        let calls = PluginCalls::default();
        let line = json!({ "verb": "ADD", "decision": "redirect", "took_us": 4000, "facts_us": 501, "rules_us": 9e9 });
        record(&calls, &line);
        record(&calls, &json!({ "verb": "ADD", "decision": "redirect", "took_us": 99_000_000_u64 }));
        record(&calls, &json!({ "verb": "DEL", "decision": "nothing" }));
        let counted = calls.read();
        assert_eq!(counted.calls, [(("ADD", "redirect"), 2), (("DEL", "nothing"), 1)].into());
        let all = &counted.took[&("ADD", "all")];
        assert_eq!(
            (all.counts[3], all.count, all.sum),
            (1, 2, 99_004_000),
            "4 ms is in the fourth bucket, 99 s in none"
        );
        assert_eq!(counted.took[&("ADD", "facts")].counts[1], 1);
        assert_eq!(counted.took.len(), 2, "9e9 is not an integer of microseconds");
    }

    #[test]
    fn a09_unknown_values_become_no_metric() {
        let calls = PluginCalls::default();
        for line in [
            json!({ "verb": "ADD\"}", "decision": "redirect" }),
            json!({ "verb": "ADD", "decision": "pod-1" }),
            json!({ "verb": 1, "decision": "redirect" }),
            json!({ "decision": "redirect" }),
            json!({ "msg": "verb" }),
        ] {
            record(&calls, &line);
        }
        assert_eq!(calls.read(), CallCounts::default());
    }
}
