//! The condition `GybeReady` of our node: whether the agent that leads is ready, and if not, why. The agent writes it where
//! the settings say so.

use super::node_taint::{IDLE_INTERVAL, INTERVAL};
use super::status::{StatusSources, UnreadyReason};
use crate::cluster::{ClusterNode, NodeCondition, OwnNode, SET_AFTER, TIMEOUT, set_condition, write_node};
use crate::error::chain;
use crate::lead::process::Role;
use crate::log::Log;
use serde_json::json;
use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How often a condition that stays the same is written: as often as the kubelet writes its own.
const HEARTBEAT: Duration = Duration::from_secs(300);
const SWITCHED_OFF: &str = "SwitchedOff";
/// The most characters of the message.
const MAX_MESSAGE: usize = 1024;

pub(super) struct ConditionWriter<'a> {
    pub(super) home: &'a ClusterNode,
    pub(super) own_node: &'a OwnNode,
    pub(super) sources: &'a StatusSources<'a>,
    pub(super) log: &'a Log,
}

/// The condition to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Desired {
    condition: NodeCondition,
    message: String,
}

impl Desired {
    fn new(status: &str, reason: &str, message: &str) -> Self {
        let message = message.chars().map(|c| if c.is_control() { ' ' } else { c });
        let condition = NodeCondition { status: status.to_owned(), reason: reason.to_owned() };
        Self { condition, message: message.take(MAX_MESSAGE).collect() }
    }
}

impl ConditionWriter<'_> {
    /// Keeps the condition until one of `stops` is readable. Then it is `Unknown`, unless another agent leads.
    pub(super) fn keep(&self, stops: &[BorrowedFd<'_>]) {
        let (mut unready_since, mut logged) = (None, String::new());
        // Whether the setting was on, until the condition shows that it is off.
        let (was_on, written) = (Cell::new(false), Cell::new(None::<Instant>));
        let next = || {
            let agent = self.sources.snapshot();
            let (unready, now) = (agent.unready(), Instant::now());
            let since = unready_since.take().unwrap_or(now);
            unready_since = (!unready.is_empty()).then_some(since);
            let (leads, has_condition) =
                (matches!(agent.role, Role::Leads { .. }), agent.settings.has_condition);
            was_on.set(leads && (has_condition || was_on.get()));
            let change = self.own_node.read().filter(|_| leads).and_then(|node| {
                let observed = node.condition;
                let desired = match has_condition {
                    true => desired(&unready, observed.as_ref(), now - since),
                    false => {
                        was_on.get().then(|| Desired::new("Unknown", SWITCHED_OFF, "node_condition is off"))
                    }
                }?;
                let is_due = written.get().is_none_or(|at| now - at >= HEARTBEAT);
                (is_due || observed.as_ref() != Some(&desired.condition)).then_some((desired, observed))
            });
            // Before the first turn the setting is not known.
            let is_idle = !has_condition && agent.status.turned.is_some();
            (change, if is_idle { IDLE_INTERVAL } else { INTERVAL })
        };
        write_node(stops, next, |(desired, observed), until| {
            let is_done = self.write(&desired, observed.as_ref(), until, &mut logged);
            if is_done {
                written.set(Some(Instant::now()));
            }
            // Not again after a failure: the right may be gone with the setting.
            was_on.set(desired.condition.reason != SWITCHED_OFF);
            is_done
        });
        let agent = self.sources.snapshot();
        if let (Role::Leads { .. }, true, Some(node)) =
            (agent.role, agent.settings.has_condition, self.own_node.read())
        {
            let desired = Desired::new("Unknown", "AgentStopped", "no agent of this node leads");
            self.write(&desired, node.condition.as_ref(), Instant::now() + TIMEOUT, &mut logged);
        }
    }

    /// Reports whether the condition was written.
    fn write(
        &self,
        Desired { condition, message }: &Desired,
        observed: Option<&NodeCondition>,
        until: Instant,
        logged: &mut String,
    ) -> bool {
        let is_transition = observed.is_none_or(|observed| observed.status != condition.status);
        let NodeCondition { status, reason } = condition;
        let result = set_condition(self.home, condition, message, is_transition, until);
        let cause = result.as_ref().err().map(|why| chain(why)).unwrap_or_default();
        match result {
            Ok(()) if observed != Some(condition) => {
                self.log.info("set the node's condition", json!({ "status": status, "reason": reason }));
            }
            Err(why) if *logged != cause => {
                let right = "the component node-condition of the manifests grants the right to patch the status of nodes";
                let hint = (why.status() == Some(403)).then_some(right);
                self.log
                    .warn("the node's condition cannot be changed", json!({ "cause": cause, "hint": hint }));
            }
            _ => {}
        }
        *logged = cause;
        logged.is_empty()
    }
}

/// Returns the condition that the node should have; none when it should stay as it is: a new agent is not ready for a
/// moment.
fn desired(
    unready: &[(UnreadyReason, String)],
    observed: Option<&NodeCondition>,
    unready_for: Duration,
) -> Option<Desired> {
    let Some((reason, _)) = unready.first() else {
        return Some(Desired::new("True", "AgentReady", "a pod started now is redirected"));
    };
    let is_false = observed.is_some_and(|observed| observed.status == "False");
    let sentences: Vec<_> = unready.iter().map(|(_, sentence)| sentence.as_str()).collect();
    (is_false || unready_for >= SET_AFTER)
        .then(|| Desired::new("False", reason.name(), &sentences.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_is_true_when_ready_and_false_after_thirty_seconds_or_when_it_was_false() {
        let unready = vec![
            (UnreadyReason::NotInstalled, "still to do: write\n10.conflist".to_owned()),
            (UnreadyReason::NoBackend, "no backend works".to_owned()),
        ];
        let observed =
            |status: &str| Some(NodeCondition { status: status.to_owned(), reason: "LoopHung".to_owned() });
        let message = "still to do: write 10.conflist; no backend works";
        for (reasons, observed, seconds, expected) in [
            (&[][..], observed("False"), 0, Some(("True", "AgentReady", "a pod started now is redirected"))),
            (&unready, None, 29, None),
            (&unready, observed("True"), 29, None),
            (&unready, observed("Unknown"), 29, None),
            (&unready, observed("True"), 30, Some(("False", "NotInstalled", message))),
            (&unready, observed("False"), 0, Some(("False", "NotInstalled", message))),
        ] {
            let found = desired(reasons, observed.as_ref(), Duration::from_secs(seconds));
            let expected = expected.map(|(status, reason, message)| Desired::new(status, reason, message));
            assert_eq!(found, expected, "{observed:?} {seconds}");
        }
        let long = [(UnreadyReason::NoBackend, "x".repeat(5_000))];
        assert_eq!(desired(&long, None, SET_AFTER).unwrap().message.len(), MAX_MESSAGE);
    }
}
