//! Writes parts of a node, each no more often than once a minute: its taints, as the orders of the caller say, and for the
//! agent the condition, of which the agent decides all but when it is written.

use super::own_node::{ClusterNode, OwnNode};
use super::queries::{QueryError, TaintState, changed_taints, set_taints};
use crate::error::chain;
use crate::host::settings::NodeTaint;
use crate::log::Log;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;
use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long pods would have to start without redirection, or a critical DaemonSet be without a ready pod, until the
/// taints are set, and an agent be unready until the condition is `False`. A shorter time than a new agent needs to become
/// ready would keep pods off every node of a rollout.
pub(crate) const SET_AFTER: Duration = Duration::from_secs(30);
/// The time between two writes.
pub(crate) const WRITE_INTERVAL: Duration = Duration::from_secs(60);
/// The delay after a failed request.
pub(crate) const RETRY: Duration = Duration::from_secs(5);
/// The deadline of each request. A request that has begun delays the end of the agent, and so does the last one about the
/// condition: together by no more than twice this time.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(3);

/// Writes the taints of a node.
pub(crate) struct TaintWriter<'a> {
    pub(crate) home: &'a ClusterNode,
    pub(crate) own_node: &'a OwnNode,
    pub(crate) log: &'a Log,
    /// Called after a write, with the taints' names.
    pub(crate) written: &'a dyn Fn(TaintState, &str),
}

/// What should be done about the node's taints now.
pub(crate) struct TaintOrder {
    pub(crate) taints: Vec<NodeTaint>,
    /// None: they stay as they are.
    pub(crate) desired: Option<TaintState>,
    /// How long until the next order.
    pub(crate) wait: Duration,
}

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    Done,
    /// Another client has written the node since it was observed (409), for example the other writer of this agent.
    Conflict,
    Failed,
}

impl WriteOutcome {
    pub(crate) fn of(result: &Result<(), QueryError>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(why) if why.status() == Some(409) => Self::Conflict,
            Err(_) => Self::Failed,
        }
    }
}

/// When the next write may be made.
#[derive(Debug, Default)]
struct WriteSchedule {
    next_write: Option<Instant>,
}

/// Makes the changes that `next` returns, until one of `stops` is readable; `next` also returns how long until it is
/// called again. `write` gets the deadline of its request.
pub(crate) fn write_node<C>(
    stops: &[BorrowedFd<'_>],
    mut next: impl FnMut() -> (Option<C>, Duration),
    mut write: impl FnMut(C, Instant) -> WriteOutcome,
) {
    let mut schedule = WriteSchedule::default();
    loop {
        let (change, mut wait) = next();
        if let Some(change) = change {
            let now = Instant::now();
            let not_before = schedule.wait(now);
            wait = wait.min(not_before.max(RETRY));
            if not_before.is_zero() {
                let outcome = write(change, now + TIMEOUT);
                schedule.finish(outcome, Instant::now());
            }
        }
        let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        let mut fds: Vec<_> = stops.iter().map(|stop| PollFd::new(*stop, PollFlags::POLLIN)).collect();
        match poll(&mut fds, wait) {
            Ok(0) | Err(_) => {}
            Ok(_) => return,
        }
    }
}

impl TaintWriter<'_> {
    /// Follows orders until `stop` is readable.
    pub(crate) fn follow(&self, stop: BorrowedFd<'_>, mut next: impl FnMut() -> TaintOrder) {
        let (mut logged, refused_version) = (String::new(), RefCell::new(None::<String>));
        let next = || {
            let TaintOrder { taints, desired, wait } = next();
            let change = desired.and_then(|desired| {
                let observed = self.own_node.read()?;
                // After a conflict the watch delivers a newer one.
                if refused_version.borrow().as_ref() == Some(&observed.version) {
                    return None;
                }
                Some((changed_taints(&observed.taints, &taints, desired)?, observed, desired))
            });
            (change.map(|change| (change, taints)), wait)
        };
        write_node(&[stop], next, |((changed, observed, desired), taints), until| {
            let result = set_taints(self.home, &observed, &changed, until);
            let outcome = WriteOutcome::of(&result);
            match outcome {
                WriteOutcome::Conflict => {
                    refused_version.replace(Some(observed.version));
                }
                WriteOutcome::Done | WriteOutcome::Failed => {
                    self.report(&result, desired, &taints, &mut logged);
                }
            }
            outcome
        });
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
                let message = match desired {
                    TaintState::Absent => "removed the node's taints",
                    TaintState::Present => "set the node's taints",
                };
                self.log.info(message, json!({ "taints": names }));
                (self.written)(desired, &names.join(", "));
            }
            Err(why) => {
                let cause = chain(why);
                if *logged != cause {
                    let right = "the component node-taint of the manifests grants the right to patch nodes";
                    let hint = (why.status() == Some(403)).then_some(right);
                    let fields = json!({ "cause": cause, "taints": names, "hint": hint });
                    self.log.warn("the node's taints cannot be changed", fields);
                }
                *logged = cause;
            }
        }
    }
}

impl WriteSchedule {
    /// Returns how long until the next write may be made.
    fn wait(&self, now: Instant) -> Duration {
        self.next_write.map_or(Duration::ZERO, |time| time.saturating_duration_since(now))
    }

    /// Records a write. One that failed may have arrived, although its response did not; after a conflict the next call
    /// may write again.
    fn finish(&mut self, outcome: WriteOutcome, now: Instant) {
        self.next_write = match outcome {
            WriteOutcome::Done => Some(now + WRITE_INTERVAL),
            WriteOutcome::Conflict => None,
            WriteOutcome::Failed => Some(now + RETRY),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_written_at_most_once_a_minute_after_a_failure_in_five_seconds_and_after_a_conflict_at_once()
     {
        let (mut schedule, start) = (WriteSchedule::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(schedule.wait(start), Duration::ZERO);
        schedule.finish(WriteOutcome::Done, start);
        assert_eq!([0, 59, 60].map(|at| schedule.wait(after(at)).as_secs()), [60, 1, 0]);
        schedule.finish(WriteOutcome::Failed, after(60));
        assert_eq!([60, 64, 65].map(|at| schedule.wait(after(at)).as_secs()), [5, 1, 0]);
        schedule.finish(WriteOutcome::Conflict, after(65));
        assert_eq!(schedule.wait(after(65)), Duration::ZERO);
    }
}
