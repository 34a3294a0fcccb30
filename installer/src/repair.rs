//! Pods of this node that should be redirected and are not: a pass over the sandboxes finds them, `decision` decides what
//! happens to each, `namespace` writes the rules. `watch` remembers what earlier passes found.

mod decision;
mod namespace;
mod watch;

pub use decision::{Action, Candidate, Decision, KnownPolicy, RepairMode, decide};
pub use namespace::{RepairError, Repaired};
pub(crate) use watch::RepairWatch;

use crate::host::pods_on_node::{JudgedSandbox, PolicySources, Sandbox, SandboxVerdict, judge_open};
use gybe_plugin::conf::PluginConf;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The sandboxes that one pass judges and repairs at the same time.
const AT_ONCE: usize = 4;

/// One pass over sandboxes.
#[derive(Debug)]
pub struct RepairPass<'a> {
    /// The plugin's configuration: its backend, and the sources of the pods' policies.
    pub conf: &'a PluginConf,
    pub sources: &'a PolicySources,
    pub mode: RepairMode,
    /// Whether nothing is written.
    pub is_dry_run: bool,
}

/// What a pass found and did with one sandbox.
#[derive(Debug)]
pub struct RepairReport {
    /// The verdict before the repair.
    pub before: SandboxVerdict,
    pub decision: Decision,
    /// The outcome of a repair; none if none was made.
    pub repair: Option<Result<Repaired, String>>,
}

impl RepairReport {
    /// Reports whether the pod is redirected by now, or needs no redirection.
    #[must_use]
    pub fn is_well(&self) -> bool {
        match &self.repair {
            Some(repair) => repair.is_ok(),
            None => self.decision.action == Action::None,
        }
    }
}

impl RepairPass<'_> {
    /// Judges the sandboxes and acts on each, some at a time. Returns the reports in the order of the sandboxes.
    #[must_use]
    pub fn run(&self, sandboxes: Vec<Sandbox>) -> Vec<RepairReport> {
        let queue = Mutex::new(sandboxes.into_iter().enumerate());
        let reports = Mutex::new(Vec::new());
        let work = || {
            // A thread that panics has taken its sandbox from the queue already.
            while let Some((index, sandbox)) = next(&queue) {
                let report = self.treat(judge_open(sandbox, self.sources));
                reports.lock().unwrap_or_else(PoisonError::into_inner).push((index, report));
            }
        };
        thread::scope(|scope| {
            for _ in 1..AT_ONCE {
                // Without another thread this one does all the work.
                let _ = thread::Builder::new().name("repair".to_owned()).spawn_scoped(scope, work);
            }
            work();
        });
        let mut reports = reports.into_inner().unwrap_or_else(PoisonError::into_inner);
        reports.sort_by_key(|(index, _)| *index);
        reports.into_iter().map(|(_, report)| report).collect()
    }

    fn treat(&self, judged: JudgedSandbox) -> RepairReport {
        let JudgedSandbox { report: before, netns, policy } = judged;
        let sandbox = &before.sandbox;
        let ours = netns.as_ref().map(namespace::has_our_rules);
        let candidate = Candidate {
            state: before.verdict.state,
            policy: match (&policy, &before.unknown_because) {
                (Some(_), _) => KnownPolicy::Redirect,
                (None, Some(_)) => KnownPolicy::NotKnown,
                (None, None) => KnownPolicy::LeaveAlone,
            },
            has_ended_add: sandbox.ended_add.is_some(),
            has_our_rules: !matches!(ours, Some(Ok(false))),
            doubt: match (&policy, &netns) {
                (Some(known), _) if !known.is_of_uid => {
                    Some("the facts about the pod have no uid".to_owned())
                }
                (_, Some(netns)) => namespace::doubt(sandbox, netns),
                (_, None) => Some("it cannot be opened".to_owned()),
            },
        };
        let decision = decide(&candidate, self.mode);
        let repair = match (decision.action, &netns, &policy) {
            (Action::Repair, Some(netns), Some(known)) if !self.is_dry_run => {
                let repaired = namespace::repair(sandbox, netns, &known.policy, self.conf);
                Some(repaired.map_err(|error| namespace::line(&error)))
            }
            _ => None,
        };
        RepairReport { before, decision, repair }
    }
}

fn next<T>(queue: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).next()
}
