//! Pods of this node that should be redirected and are not: a pass over the sandboxes finds them, `decision` decides
//! what happens to each, `namespace` writes the rules. `watch` makes a pass whenever an ADD has ended; `shared_files`
//! and `finding` connect it with the agent, which alone has access to the API server.

mod decision;
mod finding;
mod namespace;
mod shared_files;
mod watch;

pub use decision::{Action, Candidate, Decision, KnownPolicy, decide};
pub(crate) use finding::{Finding, Found, MAX_FINDING, REPAIR_SOCKET, RepairedPod};
pub use namespace::{RepairError, Repaired};
pub(crate) use shared_files::{PodRepairs, RepairSetting};
pub(crate) use watch::{Occasion, watch};

use crate::host::entries::OurEntries;
use crate::host::observe::{HashCache, NodeDirectories, ObserveScope, observe};
use crate::host::platform::Platform;
use crate::host::pods_on_node::{
    HostPaths, JudgedSandbox, PolicySources, Sandbox, SandboxList, SandboxVerdict, find, judge_open,
};
use gybe_netfilter::verdict::RedirectionState;
use gybe_plugin::conf::PluginConf;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The sandboxes that one pass judges and repairs at the same time.
const AT_ONCE: usize = 4;

/// A node as this process sees it.
#[derive(Debug)]
pub struct RepairNode {
    /// The host's root directory.
    pub root: PathBuf,
    pub directories: NodeDirectories,
    /// A directory of manifests as a further source of pods.
    pub facts: Option<PathBuf>,
}

impl RepairNode {
    /// The host's, for a process in its mount namespace.
    #[must_use]
    pub fn of_host(root: &Path) -> Self {
        let directories = Platform::of_host(root).node_directories(root);
        Self { root: root.to_owned(), directories, facts: None }
    }

    /// Returns the plugin's configuration in the node's own entry; none if there is no entry.
    #[must_use]
    pub fn conf(&self) -> Option<PluginConf> {
        let observed = observe(&self.directories, &ObserveScope::default(), &mut HashCache::default());
        let mut conf = OurEntries::find(&observed.conf).plugin_conf()?;
        conf.facts.directory = self.facts.clone().or(conf.facts.directory);
        Some(conf)
    }

    /// Lists the sandboxes.
    #[must_use]
    pub fn sandboxes(&self) -> SandboxList {
        find(&HostPaths { results: self.directories.results.clone(), root: self.root.clone() })
    }
}

/// One pass over sandboxes.
#[derive(Debug)]
pub struct RepairPass<'a> {
    /// The plugin's configuration: its backend, and the sources of the pods' policies.
    pub conf: &'a PluginConf,
    pub sources: &'a PolicySources,
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
    /// Reports whether the pod is certainly not redirected, and its rules have not been written.
    #[must_use]
    pub fn is_to_be_repaired(&self) -> bool {
        self.repair.is_none() && self.decision.action == Action::Repair
    }

    /// Reports whether the pod is redirected by now, or needs no redirection. A pod that is being created is not.
    #[must_use]
    pub fn is_well(&self) -> bool {
        match &self.repair {
            Some(repair) => repair.is_ok(),
            None => {
                let state = self.before.verdict.state;
                self.decision.action == Action::None && state != RedirectionState::NotRedirected
            }
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
            has_process: !sandbox.processes.is_empty(),
            has_our_rules: !matches!(ours, Some(Ok(false))),
            doubt: match (&policy, &netns) {
                (Some(known), _) if !known.is_of_uid => {
                    Some("the facts about the pod have no uid".to_owned())
                }
                (_, Some(netns)) => namespace::doubt(sandbox, netns),
                (_, None) => Some("it cannot be opened".to_owned()),
            },
        };
        let decision = decide(&candidate);
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
