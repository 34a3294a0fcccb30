//! The taints of our node: removed when the agent is ready, and set again when pods would start without redirection.
//! The settings name them; without names the agent writes nothing. `critical` does the same for another taint and other
//! conditions.

mod critical;

pub use critical::{ConfigMapRef, CriticalDaemonSets, CriticalError};

use super::Role;
use super::cluster::{ClusterNode, OwnNode, QueryError, TaintState, changed_taints, set_taints};
use super::events::{Event, EventQueue, Reason};
use super::istio::IstioAgent;
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
/// The time between two writes.
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
    pub(super) own_node: &'a OwnNode,
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

/// When the next write may be made.
#[derive(Debug, Default)]
struct Schedule {
    next_write: Option<Instant>,
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
            let change = desired.and_then(|desired| {
                let observed = self.own_node.read()?;
                Some((changed_taints(&observed.taints, &taints, desired)?, observed, desired))
            });
            if let Some((changed, observed, desired)) = change {
                let now = Instant::now();
                let not_before = schedule.wait(now);
                wait = wait.min(not_before.max(RETRY));
                if not_before.is_zero() {
                    let result = set_taints(self.home, &observed, &changed, now + TIMEOUT);
                    self.report(&result, desired, &taints, &mut logged);
                    schedule.finish(result.is_ok(), Instant::now());
                }
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
        result: &Result<(), QueryError>,
        desired: TaintState,
        taints: &[NodeTaint],
        logged: &mut String,
    ) {
        let names: Vec<_> = taints.iter().map(ToString::to_string).collect();
        match result {
            Ok(()) => {
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
                self.log.info(message, json!({ "taints": names }));
                self.events.inspect(|events| events.post(event));
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
    /// Returns how long until the next write may be made.
    fn wait(&self, now: Instant) -> Duration {
        self.next_write.map_or(Duration::ZERO, |time| time.saturating_duration_since(now))
    }

    /// Records a write. One that failed may have arrived, although its response did not.
    fn finish(&mut self, is_done: bool, now: Instant) {
        self.next_write = Some(now + if is_done { WRITE_INTERVAL } else { RETRY });
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
    fn the_node_is_written_at_most_once_a_minute_and_after_a_failure_in_five_seconds() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(schedule.wait(start), Duration::ZERO);
        schedule.finish(true, start);
        assert_eq!([0, 59, 60].map(|at| schedule.wait(after(at)).as_secs()), [60, 1, 0]);
        schedule.finish(false, after(60));
        assert_eq!([60, 64, 65].map(|at| schedule.wait(after(at)).as_secs()), [5, 1, 0]);
    }
}
