//! The pods whose last ADD the plugin refused, from its log lines.

use super::events::PodEvent;
use crate::agent_status::RefusedPod;
use std::time::{Duration, Instant};

/// How long a refusal is kept: the kubelet tries again within a few minutes as long as the pod exists.
const KEPT: Duration = Duration::from_secs(600);
/// The number of pods that are kept; a further one drops the one whose last refusal is the oldest.
const MAX_PODS: usize = 16;

/// The refused pods, the last refusal at the end.
#[derive(Debug, Default)]
pub(super) struct Refusals(Vec<Refusal>);

#[derive(Debug)]
struct Refusal {
    /// NAMESPACE/NAME.
    pod: String,
    /// The id of the last error, its cause and its hint.
    error: String,
    count: u64,
    last: Instant,
}

impl Refusals {
    /// Records a refused ADD.
    pub(super) fn record(&mut self, event: &PodEvent, now: Instant) {
        let pod = event.pod.to_string();
        let count = self.remove(&pod).map_or(0, |before| before.count) + 1;
        if self.0.len() == MAX_PODS {
            self.0.remove(0);
        }
        self.0.push(Refusal { pod, error: event.note.clone(), count, last: now });
    }

    /// Forgets a pod whose ADD succeeded.
    pub(super) fn added(&mut self, pod: &str) {
        self.remove(pod);
    }

    fn remove(&mut self, pod: &str) -> Option<Refusal> {
        let at = self.0.iter().position(|refusal| refusal.pod == pod)?;
        Some(self.0.remove(at))
    }

    /// Returns the pods that were refused within the last minutes, the last one first.
    pub(super) fn recent(&self, now: Instant) -> Vec<RefusedPod> {
        let age = |refusal: &Refusal| now.saturating_duration_since(refusal.last);
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
