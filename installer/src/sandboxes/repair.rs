//! Pods of this node that should be redirected and are not: each sandbox is judged, `decision` decides what happens to
//! it, `namespace` writes the rules, and `enrolment` those of ambient pods, together with the agent, which serves
//! ztunnel. `watch` judges new sandboxes whenever an ADD has ended, in the order of `queue`; `finding` connects it with
//! the agent, which alone has access to the API server, and so do three files in `/run/gybe`: the agent writes the
//! setting for the process that repairs pods, and the ambient pods that are due, and that process writes its counts for
//! the agent's metrics. The agent enters no namespace, and the other process reads no setting.

mod decision;
mod enrolment;
mod finding;
mod memory;
mod namespace;
mod queue;
mod watch;

pub use decision::{Action, KnownPolicy, OurRules, RepairCandidate, RepairDecision, decide};
pub use enrolment::AmbientOutcome;
pub(crate) use finding::{
    FindingKind, JUDGE, MAX_FINDING, PodJudgement, PodVerdict, REPAIR_SOCKET, RepairFinding, RepairedPod,
};
pub use namespace::{RepairError, Repaired};
pub(crate) use watch::{Occasion, watch};

use crate::host::entries::written_conf;
use crate::host::observe::NodeDirectories;
use crate::host::platform::Platform;
use crate::host::runtimes::is_renewed;
use crate::host::settings::RepairMode;
use crate::pod::proxy::silent_ports_of_ztunnel;
use crate::retry::since_boot;
use crate::sandboxes::{
    DesiredRules, HostPaths, JudgedSandbox, PolicySources, Sandbox, SandboxList, SandboxVerdict, find,
    judge_open,
};
use enrolment::{AmbientChange, AmbientTurn, our_rules, rules_of_istio};
use gybe_netfilter::inspect::verdict::RedirectionState;
use gybe_plugin::args::PodRef;
use gybe_plugin::conf::PluginConf;
use gybe_plugin::probe_cache::{REPAIR_SETTING, REPAIRS, read_own_file, replace_file};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use std::{io, thread};

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
    /// The host's, for a process in its mount namespace; `conf` is its conf directory if it is not the platform's.
    #[must_use]
    pub fn of_host(root: &Path, conf: Option<&Path>) -> Self {
        let usual = Platform::of_host(root).node_directories(root);
        let conf = conf.map_or(usual.conf, Path::to_owned);
        let directories = NodeDirectories { conf, ..usual };
        Self { root: root.to_owned(), directories, facts: None }
    }

    /// Returns the plugin's configuration in the node's own entry; none if there is no entry.
    #[must_use]
    pub fn conf(&self) -> Option<PluginConf> {
        let mut conf = written_conf(&self.directories.conf)?;
        conf.facts.directory = self.facts.clone().or(conf.facts.directory);
        Some(conf)
    }

    /// Lists the sandboxes.
    #[must_use]
    pub fn sandboxes(&self) -> SandboxList {
        find(&HostPaths { results: self.directories.results.clone(), root: self.root.clone() })
    }

    /// Judges all sandboxes of a pod as they are now, under the node's entry as it is now. Writes nothing.
    pub(crate) fn judge_pod(&self, pod: &PodRef) -> PodJudgement {
        let at = since_boot();
        let prevented = self.prevents_change(pod);
        let verdict = prevented.map_or(PodVerdict::NotRedirected, |why| PodVerdict::LeftAlone { why });
        PodJudgement { at, verdict }
    }

    /// Returns why the pod must be left alone.
    fn prevents_change(&self, pod: &PodRef) -> Option<String> {
        let Some(conf) = self.conf() else {
            return Some("the node's conf file has no entry of gybe-cni".to_owned());
        };
        let SandboxList { sandboxes, unreadable } = self.sandboxes();
        if let Some(what) = unreadable.first() {
            return Some(format!("it may have another sandbox: {what}"));
        }
        let uid = pod.uid.as_deref();
        let of_pod: Vec<_> =
            sandboxes.into_iter().filter(|one| uid.is_some_and(|uid| one.is_of_uid(uid))).collect();
        if of_pod.is_empty() {
            return Some("it has no sandbox any more".to_owned());
        }
        let sources = PolicySources::of(conf.clone());
        let pass = RepairPass { conf: &conf, sources: &sources, in_force: None };
        of_pod.into_iter().find_map(|sandbox| pass.judge(sandbox, AmbientTurn::default()).prevents_change())
    }
}

/// One pass over sandboxes.
pub struct RepairPass<'a> {
    /// The plugin's configuration: its backend, and the sources of the pods' policies.
    pub conf: &'a PluginConf,
    pub sources: &'a PolicySources,
    /// Called right before rules are written: reports whether these are still the node's settings. None for a pass
    /// that writes nothing.
    pub in_force: Option<&'a (dyn Fn() -> bool + Sync)>,
}

/// What a pass found and did with one sandbox.
#[derive(Debug)]
pub struct RepairReport {
    /// The verdict before the repair.
    pub before: SandboxVerdict,
    pub decision: RepairDecision,
    /// The outcome of a repair; none if none was made.
    pub repair: Option<Result<Repaired, String>>,
    /// The outcome of an enrolment of a pod that runs, or of its end; none if none was made.
    pub ambient: Option<Result<AmbientOutcome, String>>,
    /// Why the ADD left the pod alone, or may have done so, although the present settings redirect it.
    left_alone_by_add: Option<String>,
    /// How long the namespace was read.
    pub took: Duration,
}

impl RepairReport {
    /// Reports whether the pod is certainly not redirected, and its rules have not been written.
    #[must_use]
    pub fn is_to_be_repaired(&self) -> bool {
        self.repair.is_none() && self.decision.action == Action::Repair
    }

    /// Returns why the pod must be left alone: it is not certain that this sandbox should be redirected and is not, the
    /// annotations of its ADD are not known, or its ADD left it alone by the settings of that time.
    fn prevents_change(&self) -> Option<String> {
        if self.decision.action != Action::Repair {
            return Some(format!("{}: {}", self.before.sandbox, self.decision.reason));
        }
        let is_unknown = self.before.sandbox.annotations.is_none();
        if is_unknown {
            return Some("the runtime passed no annotations, so those of its ADD are not known".to_owned());
        }
        self.left_alone_by_add.clone()
    }

    fn has_failed(&self) -> bool {
        matches!((&self.repair, &self.ambient), (Some(Err(_)), _) | (_, Some(Err(_))))
    }

    /// Reports whether the pod is redirected by now, or needs no redirection. A pod that is being created is not.
    #[must_use]
    pub fn is_well(&self) -> bool {
        let was_redirected = self.before.verdict.state != RedirectionState::NotRedirected;
        match (&self.repair, &self.ambient) {
            (Some(repair), _) => repair.is_ok(),
            (None, Some(ambient)) => ambient.is_ok(),
            (None, None) => self.decision.action == Action::None && was_redirected,
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
                let report = self.judge(sandbox, AmbientTurn::default());
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

    /// Judges a sandbox and acts on it.
    fn judge(&self, sandbox: Sandbox, turn: AmbientTurn) -> RepairReport {
        let JudgedSandbox { report: before, netns, desired, took } = judge_open(sandbox, self.sources);
        let sandbox = &before.sandbox;
        let state = before.verdict.state;
        let policy = match &desired {
            Some(DesiredRules::Policy(_)) => KnownPolicy::Redirect,
            Some(DesiredRules::Ambient(_)) => KnownPolicy::Ambient,
            Some(DesiredRules::NotKnown { .. }) => KnownPolicy::NotKnown,
            Some(DesiredRules::LeftAlone { not_ambient: Some(_), .. }) => KnownPolicy::NotAmbient,
            Some(DesiredRules::LeftAlone { .. }) | None => KnownPolicy::LeaveAlone,
        };
        // A single pass does not have the agent's report.
        let is_due = turn.is_due
            || matches!(&desired, Some(DesiredRules::LeftAlone { not_ambient: Some(pod), .. })
                if pod.is_announced && turn.drained_for.is_none());
        let differs = !before.verdict.differences.is_empty();
        // A pod that is due is handed over anyway.
        let may_be_silent = policy == KnownPolicy::Ambient
            && state == RedirectionState::Redirected
            && self.in_force.is_some()
            && !is_due
            && !differs;
        let is_silent =
            may_be_silent && netns.as_ref().is_some_and(|netns| !silent_ports_of_ztunnel(netns).is_empty());
        // No other sandbox is changed.
        let is_open = match policy {
            KnownPolicy::Ambient => {
                matches!(state, RedirectionState::NotRedirected | RedirectionState::ByOthers)
                    || is_due
                    || differs
                    || is_silent
            }
            KnownPolicy::NotAmbient => state == RedirectionState::Redirected || is_due,
            _ => state == RedirectionState::NotRedirected,
        };
        let may_be_ambient = matches!(policy, KnownPolicy::Ambient | KnownPolicy::NotAmbient);
        let ours = netns.as_ref().filter(|_| is_open).map(|netns| match (&desired, state) {
            (Some(DesiredRules::Ambient(enrolment)), RedirectionState::ByOthers) => {
                rules_of_istio(netns, &enrolment.policy)
            }
            _ => our_rules(netns, may_be_ambient),
        });
        let ours = ours.and_then(Result::ok).unwrap_or(OurRules::NotRead);
        let candidate = RepairCandidate {
            state,
            policy,
            has_ended_add: sandbox.ended_add.is_some(),
            has_process: !sandbox.processes.is_empty(),
            ours,
            differs,
            is_due,
            is_silent,
            doubt: match (&desired, &netns) {
                (Some(DesiredRules::Policy(known)), _) if !known.is_of_uid => {
                    Some("the facts about the pod have no uid".to_owned())
                }
                (_, Some(netns)) => namespace::doubt(sandbox, netns),
                (_, None) => Some("it cannot be opened".to_owned()),
            },
        };
        let decision = decide(&candidate);
        let change = netns.as_ref().zip(self.in_force).map(|(netns, in_force)| AmbientChange {
            sandbox,
            netns,
            verdict: &before.verdict,
            ours,
            conf: self.conf,
            in_force,
        });
        let (mut repair, mut ambient) = (None, None);
        match (decision.action, &desired, change) {
            (
                Action::Repair,
                Some(DesiredRules::Policy(known)),
                Some(AmbientChange { netns, in_force, .. }),
            ) => {
                repair = Some(namespace::repair(sandbox, netns, &known.policy, self.conf, in_force));
            }
            (Action::Enrol, Some(DesiredRules::Ambient(enrolment)), Some(change)) => {
                let writes = state != RedirectionState::Unknown && (differs || ours != OurRules::Ambient);
                ambient = Some(change.enrol(enrolment, writes));
            }
            (Action::Restart, Some(DesiredRules::Ambient(enrolment)), Some(change)) => {
                ambient = Some(change.restart(&enrolment.pod));
            }
            (Action::Leave, Some(DesiredRules::LeftAlone { not_ambient: Some(pod), .. }), Some(change)) => {
                ambient = Some(change.leave(pod, turn.drained_for));
            }
            _ => {}
        }
        let repair = repair.map(|it| it.map_err(|error| namespace::line(&error)));
        let ambient = ambient.map(|it| it.map_err(|error| namespace::line(&error)));
        let left_alone_by_add = match desired {
            Some(DesiredRules::Policy(known)) => known.left_alone_by_add,
            _ => None,
        };
        RepairReport { before, decision, repair, ambient, left_alone_by_add, took }
    }
}

fn next<T>(queue: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).next()
}

/// The setting `repair`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RepairSetting {
    pub(crate) repair: RepairMode,
}

/// What the process that repairs pods has done since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodRepairs {
    pub(crate) repaired: u64,
    /// Attempts.
    pub(crate) failed: u64,
    /// The sandboxes that it last left in another state than the desired one: they should be redirected and are not, or
    /// that is not known.
    not_redirected: u64,
    /// Whether the process has not renewed its counts for three minutes.
    #[serde(skip)]
    pub(crate) is_silent: bool,
}

impl RepairSetting {
    /// Reads what the agent wrote; none if it has written nothing yet.
    pub(crate) fn kept_in(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&read_own_file(&directory.join(REPAIR_SETTING))?.0).ok()
    }

    /// Writes it if it changed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn keep_in(self, directory: &Path) -> io::Result<()> {
        if Self::kept_in(directory) == Some(self) {
            return Ok(());
        }
        replace_file(directory, REPAIR_SETTING, &serde_json::to_string(&self)?)
    }
}

impl PodRepairs {
    /// Reads the counts; none where no process repairs pods.
    pub(crate) fn kept_in(directory: &Path) -> Option<Self> {
        let (text, metadata) = read_own_file(&directory.join(REPAIRS))?;
        let counts: Self = serde_json::from_slice(&text).ok()?;
        Some(Self { is_silent: !is_renewed(&metadata), ..counts })
    }

    /// The pods that are not redirected; none when the last count was 0 and the process has stopped renewing it.
    pub(crate) fn not_redirected(&self) -> Option<u64> {
        (self.not_redirected > 0 || !self.is_silent).then_some(self.not_redirected)
    }

    /// Writes the counts, or removes the file where no pod is repaired. An unchanged file only gets a new time. To be
    /// called at least once a minute.
    ///
    /// # Errors
    /// If the file cannot be written or removed.
    pub(crate) fn keep_in(counts: Option<Self>, directory: &Path) -> io::Result<()> {
        let path = directory.join(REPAIRS);
        match counts {
            None => match fs::remove_file(path) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
                _ => Ok(()),
            },
            Some(_) if Self::kept_in(directory) == counts => {
                File::open(path)?.set_modified(SystemTime::now())
            }
            Some(counts) => replace_file(directory, REPAIRS, &serde_json::to_string(&counts)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;

    #[test]
    fn both_files_are_read_as_they_were_written_and_damaged_ones_are_ignored() {
        let directory = TestDir::new("repair-files");
        assert_eq!(RepairSetting::kept_in(directory.path()), None);
        for repair in [RepairMode::Off, RepairMode::Repair] {
            RepairSetting { repair }.keep_in(directory.path()).unwrap();
            assert_eq!(RepairSetting::kept_in(directory.path()), Some(RepairSetting { repair }));
        }
        let counts = PodRepairs { repaired: 3, failed: 1, not_redirected: 2, is_silent: false };
        for counts in [Some(counts), None, None] {
            PodRepairs::keep_in(counts, directory.path()).unwrap();
            assert_eq!(PodRepairs::kept_in(directory.path()), counts);
        }
        fs::write(directory.join(REPAIR_SETTING), r#"{"repair":"everything"}"#).unwrap();
        assert_eq!(RepairSetting::kept_in(directory.path()), None);
    }
}
