//! The taints of our node: removed when the agent is ready, and set again when pods would start without redirection.
//! The settings name them; without names the agent queries and writes nothing. `critical` does the same for another
//! taint and other conditions.

mod critical;

pub use critical::{ConfigMapRef, CriticalDaemonSets, CriticalError};

use super::Role;
use super::cluster::{QueryError, TaintState, set_taints};
use super::events::{Event, EventQueue, Reason};
use super::istio::IstioAgent;
use super::node_label::ClusterNode;
use super::status::{StatusSources, TurnReport};
use crate::error::chain;
use crate::host::settings::NodeTaint;
use crate::log::Log;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long pods would have to start without redirection, or a critical DaemonSet be without a ready pod, until the
/// taints are set: shorter than a new agent needs would keep pods off every node of a rollout.
const SET_AFTER: Duration = Duration::from_secs(30);
/// The time between two writes, and between two queries while nothing changes: a node that registers again has its
/// taints again.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);
/// The delay after a failed request.
const RETRY: Duration = Duration::from_secs(5);
/// The deadline of the requests; the end of the agent is delayed by no more than it.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How often the agent's state is compared with the node's; and how often the settings are, without taints.
const INTERVAL: Duration = Duration::from_secs(1);
const IDLE_INTERVAL: Duration = Duration::from_secs(10);

/// What keeping the taints needs.
pub(super) struct TaintKeeper<'a> {
    pub(super) home: &'a ClusterNode,
    pub(super) events: Option<&'a EventQueue>,
    pub(super) log: &'a Log,
}

/// What should be done about the node's taints now.
struct TaintOrder {
    taints: Vec<NodeTaint>,
    /// None: they stay as they are.
    desired: Option<TaintState>,
    /// How long until the next order.
    wait: Duration,
}

/// When the next request may be sent.
#[derive(Debug, Default)]
struct Schedule {
    /// What the node had after the last query.
    observed: Option<(Vec<NodeTaint>, TaintState)>,
    next_query: Option<Instant>,
    next_write: Option<Instant>,
    /// When a failed request may be repeated.
    retry: Option<Instant>,
}

impl TaintKeeper<'_> {
    /// Keeps the agent's taints until `stop` is readable.
    pub(super) fn keep(&self, sources: &StatusSources<'_>, stop: BorrowedFd<'_>) {
        self.follow(stop, || {
            let agent = sources.snapshot();
            let taints = agent.status.report.taints.clone();
            let (status, is_ready) = (&agent.status, agent.not_ready().is_empty());
            let leads = matches!(agent.role, Role::Leads { .. });
            let desired =
                leads.then(|| desired(&status.report, is_ready, status.unredirected_for())).flatten();
            // Before the first turn the setting is not known.
            let is_idle = taints.is_empty() && agent.status.turned.is_some();
            TaintOrder { taints, desired, wait: if is_idle { IDLE_INTERVAL } else { INTERVAL } }
        });
    }

    /// Follows orders until `stop` is readable.
    fn follow(&self, stop: BorrowedFd<'_>, mut next: impl FnMut() -> TaintOrder) {
        let (mut schedule, mut logged) = (Schedule::default(), String::new());
        loop {
            let TaintOrder { taints, desired, mut wait } = next();
            let desired = desired.filter(|desired| schedule.is_due(&taints, *desired, Instant::now()));
            if let Some(desired) = desired {
                let until = Instant::now() + TIMEOUT;
                let result = set_taints(&self.home.cluster, &self.home.node, &taints, desired, until);
                self.report(&result, desired, &taints, &mut logged);
                if result.is_err() {
                    wait = wait.min(RETRY);
                }
                schedule.finish(taints, desired, result.ok(), Instant::now());
            }
            let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(stop, PollFlags::POLLIN)], wait) {
                Ok(0) | Err(_) => {}
                Ok(_) => return,
            }
        }
    }

    fn report(
        &self,
        result: &Result<bool, QueryError>,
        desired: TaintState,
        taints: &[NodeTaint],
        logged: &mut String,
    ) {
        let names: Vec<_> = taints.iter().map(ToString::to_string).collect();
        match result {
            Ok(changed) => {
                logged.clear();
                let (message, event) = match desired {
                    TaintState::Absent => {
                        let note =
                            format!("this node redirects pods; removed the taint {}", names.join(", "));
                        ("gybe node: removed the node's taints", Event::of_node(Reason::TaintRemoved, &note))
                    }
                    TaintState::Present => {
                        let note = format!(
                            "pods would start without redirection; set the taint {}",
                            names.join(", ")
                        );
                        ("gybe node: set the node's taints", Event::of_node(Reason::TaintSet, &note))
                    }
                };
                if *changed {
                    self.log.info(message, json!({ "taints": names }));
                    self.events.inspect(|events| events.post(event));
                }
            }
            Err(why) => {
                let cause = chain(why);
                if *logged != cause {
                    let hint = "the component node-taint of the manifests grants the right to patch nodes";
                    let fields = json!({ "cause": cause, "taints": names, "hint": hint });
                    self.log.warn("gybe node: the node's taints cannot be changed", fields);
                }
                *logged = cause;
            }
        }
    }
}

/// Returns the state that the taints should have; none when they should stay as they are.
fn desired(report: &TurnReport, is_ready: bool, unredirected_for: Option<Duration>) -> Option<TaintState> {
    if report.taints.is_empty() {
        return None;
    }
    if is_ready {
        return Some(TaintState::Absent);
    }
    // Pods that istio-cni redirects are not redirected by us.
    let is_istio = report.istio.is_none_or(IstioAgent::may_run);
    let is_followed = report.settings_error.is_none();
    let is_lost = unredirected_for.is_some_and(|time| time >= SET_AFTER);
    (is_lost && is_followed && !is_istio).then_some(TaintState::Present)
}

impl Schedule {
    fn is_due(&self, taints: &[NodeTaint], desired: TaintState, now: Instant) -> bool {
        let is_over = |time: Option<Instant>| time.is_none_or(|time| time <= now);
        let is_known = self.observed.as_ref().is_some_and(|(of, state)| of == taints && *state == desired);
        is_over(self.retry) && is_over(self.next_write) && (!is_known || is_over(self.next_query))
    }

    /// Records a request; `changed` is none if it failed.
    fn finish(&mut self, taints: Vec<NodeTaint>, desired: TaintState, changed: Option<bool>, now: Instant) {
        match changed {
            Some(changed) => {
                self.observed = Some((taints, desired));
                self.next_query = Some(now + WRITE_INTERVAL);
                if changed {
                    self.next_write = Some(now + WRITE_INTERVAL);
                }
            }
            // The write may have arrived, although its response did not.
            None => self.retry = Some(now + RETRY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taints() -> Vec<NodeTaint> {
        vec![NodeTaint::parse("cni.istio.io/not-ready").unwrap()]
    }

    #[test]
    fn taints_are_removed_when_ready_and_set_after_thirty_seconds_without_redirection() {
        type Change = fn(&mut TurnReport);
        let (lost, same): (_, Change) = (|seconds| Some(Duration::from_secs(seconds)), |_| {});
        for (what, is_ready, lost_for, change, expected) in [
            ("ready", true, None, same, Some(TaintState::Absent)),
            ("not ready, and pods are redirected or refused", false, None, same, None),
            ("lost for a moment", false, lost(29), same, None),
            ("lost", false, lost(30), same, Some(TaintState::Present)),
            ("lost, without names of taints", false, lost(30), |it| it.taints = Vec::new(), None),
            ("ready, without names of taints", true, None, |it| it.taints = Vec::new(), None),
            (
                "the ConfigMap is invalid",
                false,
                lost(30),
                |it| it.settings_error = Some("x".to_owned()),
                None,
            ),
            ("istio-cni's agent runs", false, lost(30), |it| it.istio = Some(IstioAgent::HasPod), None),
        ] {
            let mut report =
                TurnReport { taints: taints(), istio: Some(IstioAgent::Absent), ..TurnReport::default() };
            change(&mut report);
            assert_eq!(desired(&report, is_ready, lost_for), expected, "{what}");
        }
    }

    #[test]
    fn the_node_is_written_at_most_once_a_minute_and_queried_once_a_minute() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(schedule.is_due(&taints(), TaintState::Absent, start));
        schedule.finish(taints(), TaintState::Absent, Some(true), start);
        assert!(!schedule.is_due(&taints(), TaintState::Present, after(59)), "a write");
        assert!(schedule.is_due(&taints(), TaintState::Present, after(60)));
        schedule.finish(taints(), TaintState::Absent, Some(false), after(60));
        assert!(!schedule.is_due(&taints(), TaintState::Absent, after(119)), "a query");
        assert!(schedule.is_due(&taints(), TaintState::Present, after(119)), "nothing was written");
        schedule.finish(taints(), TaintState::Present, None, after(119));
        assert!(!schedule.is_due(&taints(), TaintState::Present, after(123)), "a failure");
        assert!(schedule.is_due(&taints(), TaintState::Present, after(124)));
    }
}
