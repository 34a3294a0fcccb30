//! The condition `GybeReady` of our node: whether the agent that leads is ready, and if not, why. The agent writes it where
//! the settings say so.

use super::node_taint::{IDLE_INTERVAL, INTERVAL};
use super::status::{StatusSources, UnreadyReason};
use crate::cluster::{
    ClusterNode, ConditionStatus, NodeCondition, ObservedNode, OwnNode, SET_AFTER, TIMEOUT, WriteOutcome,
    set_condition, write_node,
};
use crate::error::chain;
use crate::lead::process::Role;
use crate::log::Log;
use serde_json::json;
use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How often a condition that stays the same is written: as often as the kubelet writes its own.
const HEARTBEAT: Duration = Duration::from_secs(300);
/// The most characters of the message; the manifests' policy allows no more.
const MAX_MESSAGE: usize = 1024;

/// Writes the condition while this agent leads.
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
    fn new(status: ConditionStatus, reason: &str, message: &str) -> Self {
        let message = message.chars().map(|c| if c.is_control() { ' ' } else { c });
        let condition = NodeCondition { status, reason: reason.to_owned() };
        Self { condition, message: message.take(MAX_MESSAGE).collect() }
    }
}

/// A write, and what it changes.
struct Change {
    desired: Desired,
    before: Option<NodeCondition>,
    /// The node's last version that the watch has delivered.
    version: String,
}

/// The last write of this term.
struct LastWrite {
    condition: NodeCondition,
    /// The node's last version that the watch had delivered before.
    version: String,
    time: Instant,
}

impl LastWrite {
    /// Returns the condition that the node has: the written one until the watch delivers the node again.
    fn condition_of(last: Option<&Self>, node: &ObservedNode) -> Option<NodeCondition> {
        match last {
            Some(last) if last.version == node.version => Some(last.condition.clone()),
            _ => node.condition.clone(),
        }
    }
}

impl ConditionWriter<'_> {
    /// Keeps the condition until one of `stops` is readable. Then it is `Unknown`, unless the lead passes to another
    /// agent.
    pub(super) fn keep(&self, stops: &[BorrowedFd<'_>]) {
        let (mut unready_since, mut logged) = (None, String::new());
        let last = RefCell::new(None::<LastWrite>);
        let change = |desired: Desired, node: ObservedNode| {
            let before = LastWrite::condition_of(last.borrow().as_ref(), &node);
            Change { desired, before, version: node.version }
        };
        let next = || {
            let agent = self.sources.snapshot();
            let (unready, now) = (agent.unready(), Instant::now());
            let since = unready_since.take().unwrap_or(now);
            unready_since = (!unready.is_empty()).then_some(since);
            let has_condition = agent.settings.has_condition;
            let is_kept = has_condition && matches!(agent.role, Role::Leads { .. });
            let due = self.own_node.read().filter(|_| is_kept).and_then(|node| {
                let last = last.borrow();
                let before = LastWrite::condition_of(last.as_ref(), &node);
                let desired = desired(&unready, before.as_ref(), now - since)?;
                let is_old = last.as_ref().is_none_or(|last| now - last.time >= HEARTBEAT);
                (is_old || before.as_ref() != Some(&desired.condition)).then_some((desired, node))
            });
            // Before the first turn the setting is not known.
            let is_idle = !has_condition && agent.status.turned.is_some();
            (due.map(|(desired, node)| change(desired, node)), if is_idle { IDLE_INTERVAL } else { INTERVAL })
        };
        write_node(stops, next, |change, until| {
            let outcome = self.write(&change, until, &mut logged);
            if outcome == WriteOutcome::Done {
                let Change { desired: Desired { condition, .. }, version, .. } = change;
                last.replace(Some(LastWrite { condition, version, time: Instant::now() }));
            }
            outcome
        });
        let agent = self.sources.snapshot();
        if let (Role::Leads { .. }, true, Some(node)) =
            (agent.role, agent.settings.has_condition, self.own_node.read())
        {
            let desired =
                Desired::new(ConditionStatus::Unknown, "AgentStopped", "no agent of this node leads");
            self.write(&change(desired, node), Instant::now() + TIMEOUT, &mut logged);
        }
    }

    fn write(&self, change: &Change, until: Instant, logged: &mut String) -> WriteOutcome {
        let Change { desired: Desired { condition, message }, before, .. } = change;
        let status_before = before.as_ref().map(|before| before.status);
        let result = set_condition(self.home, condition, message, status_before, until);
        let outcome = WriteOutcome::of(&result);
        let cause = result.as_ref().err().map(|why| chain(why)).unwrap_or_default();
        match result {
            _ if outcome == WriteOutcome::Conflict => return outcome,
            Ok(()) if before.as_ref() != Some(condition) => {
                let NodeCondition { status, reason } = condition;
                let fields = json!({ "status": status.name(), "reason": reason });
                self.log.info("set the node's condition", fields);
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
        outcome
    }
}

/// Returns the condition that the node should have; none when it should stay as it is: a new agent is not ready for a
/// moment, and in mode leave the condition stays, as the node's taints do.
fn desired(
    unready: &[(UnreadyReason, String)],
    before: Option<&NodeCondition>,
    unready_for: Duration,
) -> Option<Desired> {
    let Some((reason, _)) = unready.first() else {
        return Some(Desired::new(ConditionStatus::True, "AgentReady", "a pod started now is redirected"));
    };
    let leaves = |(reason, _): &(UnreadyReason, _)| {
        matches!(reason, UnreadyReason::Uninstalling | UnreadyReason::Uninstalled)
    };
    let was_false = before.is_some_and(|before| before.status == ConditionStatus::False);
    if unready.iter().any(leaves) || !(was_false || unready_for >= SET_AFTER) {
        return None;
    }
    let sentences: Vec<_> = unready.iter().map(|(_, sentence)| sentence.as_str()).collect();
    Some(Desired::new(ConditionStatus::False, reason.name(), &sentences.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_is_true_when_ready_and_false_after_thirty_seconds_or_when_it_was_false() {
        use ConditionStatus::{False, True, Unknown};
        let unready = vec![
            (UnreadyReason::NotInstalled, "still to do: write\n10.conflist".to_owned()),
            (UnreadyReason::NoBackend, "no backend works".to_owned()),
        ];
        let leaving = vec![
            (UnreadyReason::LoopHung, "the loop hangs".to_owned()),
            (UnreadyReason::Uninstalling, "uninstalling".to_owned()),
        ];
        let before = |status| Some(NodeCondition { status, reason: "LoopHung".to_owned() });
        let message = "still to do: write 10.conflist; no backend works";
        for (reasons, before, seconds, expected) in [
            (&[][..], before(False), 0, Some((True, "AgentReady", "a pod started now is redirected"))),
            (&unready, None, 29, None),
            (&unready, before(True), 29, None),
            (&unready, before(Unknown), 29, None),
            (&unready, before(True), 30, Some((False, "NotInstalled", message))),
            (&unready, before(False), 0, Some((False, "NotInstalled", message))),
            (&leaving, before(True), 30, None),
            (&leaving, before(False), 30, None),
        ] {
            let found = desired(reasons, before.as_ref(), Duration::from_secs(seconds));
            let expected = expected.map(|(status, reason, message)| Desired::new(status, reason, message));
            assert_eq!(found, expected, "{before:?} {seconds}");
        }
        let long = [(UnreadyReason::NoBackend, "ä".repeat(5_000))];
        assert_eq!(desired(&long, None, SET_AFTER).unwrap().message, "ä".repeat(MAX_MESSAGE));
    }

    #[test]
    fn the_written_condition_is_the_nodes_until_the_watch_delivers_the_node_again() {
        let condition = |status| NodeCondition { status, reason: "AgentReady".to_owned() };
        let node = |version: &str| ObservedNode {
            condition: Some(condition(ConditionStatus::Unknown)),
            version: version.to_owned(),
            ..ObservedNode::default()
        };
        let (version, time) = ("7".to_owned(), Instant::now());
        let last = LastWrite { condition: condition(ConditionStatus::True), version, time };
        for (last, version, expected) in [
            (None, "7", ConditionStatus::Unknown),
            (Some(&last), "7", ConditionStatus::True),
            (Some(&last), "8", ConditionStatus::Unknown),
        ] {
            let found = LastWrite::condition_of(last, &node(version));
            assert_eq!(found, Some(condition(expected)), "{version}");
        }
    }
}
