//! Writes the annotation `ambient.istio.io/redirection`, by which istiod and other pods learn that a pod takes HBONE:
//! compares what the node's pods should have with what the watch shows, as long as the agent serves ztunnel. A pod that
//! is in the mesh should have it, so an ADD never waits for it.

use super::ambient::AmbientNode;
use super::pods::PodLookup;
use super::ztunnel::PodState;
use crate::cluster::{ClusterNode, QueryError, annotate_pod};
use crate::error::chain;
use crate::lead::socket::CHECK_INTERVAL;
use crate::log::Log;
pub(super) use crate::pod::enablement::REDIRECTION as ANNOTATION;
use crate::pod::enablement::{REDIRECTED as ENABLED, is_announced};
use crate::retry::{Backoff, RateLimit};
use gybe_plugin::facts::ambient::{AmbientPod, PodUid};
use gybe_plugin::pod::Ambient;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The deadline of a request; a term of the agent ends no later than that after it should.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The requests that are sent at once, and then the time between two: a node that starts may have 500 pods.
const BURST: u32 = 50;
const PERIOD: Duration = Duration::from_millis(50);

/// The delay after the first request about a pod, in which the watch shows the change, and after the first failure of
/// the API server; and the longest delays. A pod is reached as plain text meanwhile.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// What has to be done with the annotation of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Enable,
    Remove,
}

impl Change {
    /// Returns the change for a pod with this decision. Without the annotation other pods send it plain text, which
    /// STRICT mutual TLS refuses while rules lead it to ztunnel. Another value than `enabled` is istio-cni's; it is
    /// replaced when ztunnel serves the pod, and means nothing to istiod before.
    fn of(decision: &Ambient, state: Option<PodState>, is_announced: bool) -> Option<Self> {
        match (decision, state) {
            (Ambient::Yes { .. }, Some(PodState::Enrolled)) if !is_announced => Some(Self::Enable),
            (Ambient::No { .. }, None | Some(PodState::WithoutRules)) if is_announced => Some(Self::Remove),
            _ => None,
        }
    }
}

/// A pod whose annotation has to change.
#[derive(Debug)]
struct DueChange {
    change: Change,
    pod: AmbientPod,
}

type DueChanges = BTreeMap<PodUid, DueChange>;

/// The failures of annotations, for the agent's status and metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AnnotationStatus {
    /// Requests that have failed since the start of the agent.
    pub(crate) failures: u64,
    /// The number of pods whose annotation could not be written or removed yet, and why.
    pub(crate) failing: Option<(usize, String)>,
}

/// Why a request has failed.
#[derive(Debug)]
enum Failure {
    /// The API server refuses this change of this pod.
    OfPod(String),
    /// Each request would fail; with the delay that the server requests.
    OfServer(String, Option<Duration>),
}

/// A delay, and why the last request failed.
#[derive(Debug)]
struct Retry {
    backoff: Backoff,
    next: Instant,
    why: Option<String>,
}

impl Retry {
    fn new(now: Instant) -> Self {
        Self { backoff: Backoff::new(FIRST_RETRY), next: now, why: None }
    }
}

/// The last requested change of a pod.
#[derive(Debug)]
struct Sent {
    change: Change,
    retry: Retry,
}

/// When which request is sent. Pure.
#[derive(Debug)]
struct Schedule {
    limit: RateLimit,
    server: Retry,
    /// One is dropped when the opposite change is due, or when no change is due and its delay has passed.
    sent: BTreeMap<PodUid, Sent>,
}

impl Schedule {
    fn new(now: Instant) -> Self {
        Self { limit: RateLimit::new(BURST, PERIOD), server: Retry::new(now), sent: BTreeMap::new() }
    }

    /// Returns the change that is made next, and from when on it may be. One that was not tried yet is the first.
    fn next<'a>(&mut self, due: &'a DueChanges, now: Instant) -> Option<(Instant, &'a DueChange)> {
        self.sent
            .retain(|uid, sent| due.get(uid).map_or(now < sent.retry.next, |due| due.change == sent.change));
        let next = |due: &&DueChange| self.sent.get(&due.pod.uid).map(|sent| sent.retry.next);
        let first = due.values().min_by_key(next)?;
        let at = next(&first).unwrap_or(now).max(self.server.next).max(now + self.limit.wait(now));
        Some((at, first))
    }

    /// Records the result of a request for the change that `next` has returned.
    fn finish(&mut self, due: &DueChange, result: Result<(), Failure>, now: Instant) {
        self.limit.count(now);
        let sent = self.sent.entry(due.pod.uid.clone());
        let retry = &mut sent.or_insert_with(|| Sent { change: due.change, retry: Retry::new(now) }).retry;
        if let Err(Failure::OfServer(why, requested)) = result {
            // The server may refuse this pod alone, so the others are next.
            retry.next = now;
            self.server.next = now + self.server.backoff.failed_at_server(LAST_RETRY, requested);
            self.server.why = Some(why);
            return;
        }
        retry.next = now + retry.backoff.failed(LAST_RETRY);
        retry.why = match result {
            Err(Failure::OfPod(why)) => Some(why),
            _ => None,
        };
        self.server = Retry::new(now);
    }

    /// Returns the number of changes that could not be made, and why the last or one of them could not.
    fn failing(&self, due: &DueChanges) -> Option<(usize, String)> {
        if let Some(why) = self.server.why.as_ref().filter(|_| !due.is_empty()) {
            return Some((due.len(), why.clone()));
        }
        let failed = due.keys().filter_map(|uid| self.sent.get(uid)?.retry.why.as_ref());
        Some((failed.clone().count(), failed.clone().next()?.clone()))
    }
}

/// Writes the annotations of the node's pods.
pub(super) struct AnnotationWriter<'a> {
    pub(super) home: &'a ClusterNode,
    pub(super) node: &'a AmbientNode,
    /// The pods as the watch shows them.
    pub(super) pods: &'a dyn PodLookup,
    pub(super) log: &'a Log,
}

impl AnnotationWriter<'_> {
    /// Writes annotations until `end` is readable.
    pub(super) fn follow(&self, end: BorrowedFd<'_>) {
        let changed = self.node.pods.subscribe();
        // The HTTP statuses that were logged since all annotations were right: the text names a pod.
        let (mut schedule, mut logged) = (Schedule::new(Instant::now()), BTreeSet::new());
        loop {
            let (due, now, mut wait) = (self.due(), Instant::now(), CHECK_INTERVAL);
            let mut has_failed = false;
            if let Some((at, next)) = schedule.next(&due, now) {
                wait = wait.min(at.saturating_duration_since(now));
                if wait.is_zero() {
                    let result = self.write(next, &mut logged);
                    has_failed = result.is_err();
                    schedule.finish(next, result, Instant::now());
                }
            }
            let failing = schedule.failing(&due);
            if failing.is_none() {
                logged.clear();
            }
            self.report(u64::from(has_failed), failing);
            if changed.wait(end, wait) {
                return self.report(0, None);
            }
        }
    }

    fn report(&self, failures: u64, failing: Option<(usize, String)>) {
        let mut status = self.node.annotations.lock().unwrap_or_else(PoisonError::into_inner);
        *status = AnnotationStatus { failures: status.failures + failures, failing };
    }

    /// Returns the changes by which the annotations become what they should be.
    fn due(&self) -> DueChanges {
        let states = self.node.pods.states();
        let due = self.node.select(self.pods, |uid, facts, decision| {
            let change = Change::of(decision, states.get(&uid).copied(), is_announced(facts))?;
            // The account is ztunnel's matter.
            let pod = AmbientPod::parse(uid.as_str(), &facts.namespace, &facts.name, "default").ok()?;
            Some((uid, DueChange { change, pod }))
        });
        due.into_iter().collect()
    }

    fn write(
        &self,
        DueChange { change, pod }: &DueChange,
        logged: &mut BTreeSet<Option<u16>>,
    ) -> Result<(), Failure> {
        let value = match change {
            Change::Enable => Some(ENABLED),
            Change::Remove => None,
        };
        let until = Instant::now() + TIMEOUT;
        let result = annotate_pod(&self.home.cluster, pod, ANNOTATION, value, until);
        let Err(why) = result else { return Ok(()) };
        let (status, retry_after) = match &why {
            QueryError::Api(fault) if fault.is_not_found() => return Ok(()),
            QueryError::Api(fault) => (fault.status(), fault.retry_after()),
            QueryError::Cluster(_) => (None, None),
        };
        // Another pod of its name is an invalid change, too.
        let is_shown = || self.pods.has_pod(&|it| it.uid == pod.uid.as_str()) == Some(true);
        let hint = match status {
            Some(403) => Some(MISSING_RIGHT),
            Some(422) if is_shown() => Some(REFUSED),
            _ => None,
        };
        let cause = chain(&why);
        if logged.insert(status) {
            let fields = json!({ "pod": pod.to_string(), "cause": cause, "hint": hint });
            self.log.warn(FAILED, fields);
        }
        let why = hint.map_or_else(|| cause.clone(), |hint| format!("{cause}; {hint}"));
        Err(match status {
            Some(404 | 409 | 422) => Failure::OfPod(why),
            _ => Failure::OfServer(why, retry_after),
        })
    }
}

const FAILED: &str = "gybe node: cannot write the annotation ambient.istio.io/redirection of a pod";
const MISSING_RIGHT: &str = "the component ambient-annotation of the manifests grants the right to patch the status of pods; \
                             in the chart ambient.enabled does";
const REFUSED: &str = "an admission policy refuses it; beside the component repair-label use the two policies that the \
                       chart renders; that of ambient-annotation needs Kubernetes 1.30";

#[cfg(test)]
mod tests {
    use super::*;

    fn due(uids: &[&str]) -> DueChanges {
        let pod = |uid: &&str| AmbientPod::parse(uid, "shop", uid, "default").unwrap();
        uids.iter().map(pod).map(|pod| (pod.uid.clone(), DueChange { change: Change::Enable, pod })).collect()
    }

    /// Returns the pod that is next, and after how many milliseconds.
    fn next(schedule: &mut Schedule, due: &DueChanges, now: Instant) -> Option<(String, u128)> {
        let (at, next) = schedule.next(due, now)?;
        Some((next.pod.uid.as_str().to_owned(), at.saturating_duration_since(now).as_millis()))
    }

    fn finish(schedule: &mut Schedule, uid: &str, result: Result<(), Failure>, now: Instant) {
        schedule.finish(&due(&[uid])[&PodUid::parse(uid).unwrap()], result, now);
    }

    #[test]
    fn an_annotation_is_set_for_pods_in_the_mesh_and_removed_from_those_without_rules_that_are_not_ambient() {
        use PodState::{Enrolled, NotHeld, Redirected, WithoutRules};
        let why = String::new;
        let yes = Ambient::Yes { service_account: "default".to_owned(), why: why() };
        let no = Ambient::No { why: why() };
        for (decision, state, is_announced, expected) in [
            (&yes, Some(Enrolled), false, Some(Change::Enable)),
            (&yes, Some(Enrolled), true, None),
            (&yes, Some(Redirected), false, None),
            (&yes, Some(WithoutRules), false, None),
            (&yes, Some(WithoutRules), true, None),
            (&yes, None, false, None),
            (&no, None, true, Some(Change::Remove)),
            (&no, Some(WithoutRules), true, Some(Change::Remove)),
            (&no, Some(NotHeld), true, None),
            (&no, Some(Redirected), true, None),
            (&no, Some(Enrolled), true, None),
            (&no, Some(WithoutRules), false, None),
            (&no, None, false, None),
            (&Ambient::Unknown, Some(Enrolled), false, None),
            (&Ambient::Unknown, None, true, None),
        ] {
            let change = Change::of(decision, state, is_announced);
            assert_eq!(change, expected, "{decision:?} {state:?} {is_announced}");
        }
    }

    #[test]
    fn a_change_is_repeated_after_a_growing_delay_while_the_watch_does_not_show_it() {
        let (now, due) = (Instant::now(), due(&["u-1"]));
        let mut schedule = Schedule::new(now);
        for (delay, after) in [(0, 2_000), (2_000, 4_000), (6_000, 8_000)] {
            let now = now + Duration::from_millis(delay);
            assert_eq!(next(&mut schedule, &due, now), Some(("u-1".to_owned(), 0)));
            finish(&mut schedule, "u-1", Ok(()), now);
            assert_eq!(next(&mut schedule, &due, now), Some(("u-1".to_owned(), after)));
        }
        assert_eq!(schedule.failing(&due), None);
        // Once the watch has shown it, another client removes it.
        let later = now + Duration::from_secs(20);
        assert_eq!(next(&mut schedule, &DueChanges::new(), later), None);
        assert!(schedule.sent.is_empty(), "{schedule:?}");
        assert_eq!(next(&mut schedule, &due, later), Some(("u-1".to_owned(), 0)));
    }

    #[test]
    fn a_pod_whose_label_changes_again_is_not_delayed_by_the_earlier_change() {
        let (start, mut due) = (Instant::now(), due(&["u-1"]));
        let mut schedule = Schedule::new(start);
        for second in 0..6 {
            let now = start + Duration::from_secs(second);
            let change = if second % 2 == 0 { Change::Enable } else { Change::Remove };
            due.values_mut().for_each(|due| due.change = change);
            assert_eq!(next(&mut schedule, &due, now), Some(("u-1".to_owned(), 0)), "after {second} s");
            schedule.finish(&due[&PodUid::parse("u-1").unwrap()], Ok(()), now);
            assert_eq!(next(&mut schedule, &due, now), Some(("u-1".to_owned(), 2_000)), "after {second} s");
        }
    }

    #[test]
    fn a_refused_pod_delays_no_other_and_a_server_that_fails_delays_all() {
        let (now, all) = (Instant::now(), due(&["u-1", "u-2"]));
        let mut schedule = Schedule::new(now);
        finish(&mut schedule, "u-1", Err(Failure::OfPod("422".to_owned())), now);
        assert_eq!(next(&mut schedule, &all, now), Some(("u-2".to_owned(), 0)));
        assert_eq!(schedule.failing(&all), Some((1, "422".to_owned())));
        let requested = Some(Duration::from_secs(10));
        finish(&mut schedule, "u-2", Err(Failure::OfServer("429".to_owned(), requested)), now);
        let (uid, wait) = next(&mut schedule, &all, now).unwrap();
        assert!(uid == "u-2" && (10_000..=11_000).contains(&wait), "{uid} {wait}");
        assert_eq!(schedule.failing(&all), Some((2, "429".to_owned())));
        // A server that refuses one pod gets the other one first.
        let later = now + Duration::from_secs(12);
        let more = due(&["u-2", "u-3"]);
        assert_eq!(next(&mut schedule, &more, later), Some(("u-3".to_owned(), 0)));
        finish(&mut schedule, "u-3", Ok(()), later);
        assert_eq!(schedule.failing(&more), None);
        assert_eq!(next(&mut schedule, &more, later), Some(("u-2".to_owned(), 0)));
    }
}
