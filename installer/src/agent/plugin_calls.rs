//! The plugin's calls and how long they took, counted from the log lines that it sends; how long it took until pods were
//! redirected; and the pods whose last ADD the plugin refused.

use super::events::PodEvent;
use super::histogram::Histogram;
use crate::agent_status::RefusedPod;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Only these values become a label: a line's sender must not be able to create a metric for each pod.
const VERBS: [&str; 5] = [ADD, "CHECK", "DEL", "GC", "STATUS"];
const ADD: &str = "ADD";
const DECISIONS: [&str; 5] = ["redirect", "ambient", "leave alone", "nothing", "error"];
/// The phases, and the field with each one's microseconds.
const PHASES: [(&str, &str); 3] = [("all", "took_us"), ("facts", "facts_us"), ("rules", "rules_us")];

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
    pub(crate) redirected: RedirectionTimes,
}

/// How long it took until pods were redirected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedirectionTimes {
    /// From the assignment of a pod to this node to its first ADD that redirected it.
    pub(crate) by_add: Histogram,
    /// From the ADD of a sandbox to its repair.
    pub(crate) by_repair: Histogram,
}

impl Default for RedirectionTimes {
    fn default() -> Self {
        Self { by_add: Histogram::of_pods(), by_repair: Histogram::of_pods() }
    }
}

impl PluginCalls {
    /// Counts a line that reports the end of a call; `refusal` is what it reports about a refused pod. `take_assigned`
    /// takes the time of the pod's assignment; the next call returns none.
    pub(crate) fn record(
        &self,
        line: &Map<String, Value>,
        refusal: Option<&PodEvent>,
        take_assigned: impl FnOnce(&str) -> Option<SystemTime>,
    ) {
        let value = |key: &str, known: &[&'static str]| {
            let value = line.get(key)?.as_str()?;
            known.iter().find(|known| **known == value).copied()
        };
        let (Some(verb), Some(decision)) = (value("verb", &VERBS), value("decision", &DECISIONS)) else {
            return;
        };
        let pod = line.get("pod").and_then(Value::as_str);
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if verb == ADD {
            let now = Instant::now();
            recorded.last_add = Some(now);
            match (refusal, pod) {
                (Some(refusal), _) => recorded.refusals.record(refusal, now),
                (None, Some(pod)) => recorded.refusals.added(pod),
                (None, None) => {}
            }
        }
        let counts = &mut recorded.counts;
        if let (ADD, "redirect" | "ambient", Some(pod)) = (verb, decision, pod)
            && let Some(assigned) = take_assigned(pod)
        {
            counts.redirected.by_add.record(assigned.elapsed().unwrap_or_default());
        }
        *counts.calls.entry((verb, decision)).or_default() += 1;
        for (phase, field) in PHASES {
            if let Some(took) = line.get(field).and_then(Value::as_u64) {
                counts.took.entry((verb, phase)).or_default().put(took);
            }
        }
    }

    /// Records the time from the sandbox's ADD to its repair.
    pub(crate) fn record_repair(&self, after: Duration) {
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.counts.redirected.by_repair.record(after);
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

/// How long a refusal is kept: the kubelet tries again within a few minutes as long as the pod exists.
const KEPT: Duration = Duration::from_secs(600);
/// The number of pods that are kept; a further one drops the one whose last refusal is the oldest.
const MAX_PODS: usize = 16;

/// The refused pods, the last refusal at the end.
#[derive(Debug, Default)]
struct Refusals(Vec<RefusedAdd>);

#[derive(Debug)]
struct RefusedAdd {
    /// NAMESPACE/NAME.
    pod: String,
    /// The id of the last error, its cause and its hint.
    error: String,
    count: u64,
    last: Instant,
}

impl Refusals {
    /// Records a refused ADD.
    fn record(&mut self, event: &PodEvent, now: Instant) {
        let pod = event.pod.to_string();
        let count = self.remove(&pod).map_or(0, |before| before.count) + 1;
        if self.0.len() == MAX_PODS {
            self.0.remove(0);
        }
        self.0.push(RefusedAdd { pod, error: event.note.clone(), count, last: now });
    }

    /// Forgets a pod whose ADD succeeded.
    fn added(&mut self, pod: &str) {
        self.remove(pod);
    }

    fn remove(&mut self, pod: &str) -> Option<RefusedAdd> {
        let at = self.0.iter().position(|refusal| refusal.pod == pod)?;
        Some(self.0.remove(at))
    }

    /// Returns the pods that were refused within the last minutes, the last one first.
    fn recent(&self, now: Instant) -> Vec<RefusedPod> {
        let age = |refusal: &RefusedAdd| now.saturating_duration_since(refusal.last);
        let recent = self.0.iter().rev().filter(|refusal| age(refusal) < KEPT);
        recent
            .map(|refusal| RefusedPod {
                pod: refusal.pod.clone(),
                error: refusal.error.clone(),
                count: refusal.count,
                seconds: age(refusal).as_secs(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(calls: &PluginCalls, line: &Value) {
        calls.record(line.as_object().unwrap(), None, |_| None);
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
    fn the_first_add_that_redirects_a_pod_ends_the_time_of_its_start() {
        let calls = PluginCalls::default();
        let mut assigned = Some(SystemTime::now() - Duration::from_secs(20));
        for decision in ["error", "leave alone", "redirect", "redirect"] {
            let line = json!({ "verb": "ADD", "decision": decision, "pod": "shop/cart-0" });
            calls.record(line.as_object().unwrap(), None, |pod| assigned.take_if(|_| pod == "shop/cart-0"));
        }
        // The clock of the API server may be ahead.
        let line = json!({ "verb": "ADD", "decision": "ambient", "pod": "shop/cart-1" });
        let ahead = Some(SystemTime::now() + Duration::from_secs(20));
        calls.record(line.as_object().unwrap(), None, |_| ahead);
        let by_add = calls.read().redirected.by_add;
        assert_eq!((by_add.count, by_add.counts[0], by_add.counts[7]), (2, 1, 1), "{by_add:?}");
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

    fn refused(name: &str, id: &str) -> PodEvent {
        let args = format!("K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
        let line =
            json!({ "verb": "ADD", "decision": "error", "id": id, "cause": "why", "hint": "", "args": args });
        PodEvent::of_refusal(line.as_object().unwrap()).unwrap()
    }

    #[test]
    fn a_pod_is_kept_with_its_last_error_until_its_add_succeeds_or_ten_minutes_have_passed() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        refusals.record(&refused("a", "GYBE-ADD-017"), start);
        refusals.record(&refused("b", "GYBE-ADD-032"), after(1));
        refusals.record(&refused("a", "GYBE-ADD-011"), after(2));
        let of = |pod: &str, error: &str, count, seconds| RefusedPod {
            pod: format!("shop/{pod}"),
            error: format!("{error}: why"),
            count,
            seconds,
        };
        let (a, b) = (of("a", "GYBE-ADD-011", 2, 1), of("b", "GYBE-ADD-032", 1, 2));
        assert_eq!(refusals.recent(after(3)), [a, b]);
        assert_eq!(refusals.recent(after(601)), [of("a", "GYBE-ADD-011", 2, 599)]);
        refusals.added("shop/a");
        assert_eq!(refusals.recent(after(3)), [of("b", "GYBE-ADD-032", 1, 2)]);
    }

    #[test]
    fn of_many_refused_pods_the_last_ones_are_kept() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        for number in 0..100 {
            refusals.record(&refused(&format!("pod-{number}"), "GYBE-ADD-017"), now);
        }
        let kept = refusals.recent(now);
        assert_eq!((kept.len(), kept[0].pod.as_str()), (MAX_PODS, "shop/pod-99"));
    }
}
