//! Makes a pass whenever an ADD has ended, and every minute. Remembers which sandboxes need no further look, and what
//! has been logged.

use super::shared_files::{PodRepairs, RepairSetting};
use super::{Action, Finding, Found, RepairNode, RepairPass, RepairReport};
use crate::host::observe::NodeDirectories;
use crate::host::pods_on_node::{PolicySources, Sandbox};
use crate::host::settings::RepairMode;
use crate::host::watch::{DirectoryWatch, WakeReason};
use crate::log::{Level, Log};
use gybe_netfilter::verdict::RedirectionState;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest time until the next pass while a new sandbox is not in its desired state, as one whose first process has
/// not started: the passes follow one another ever more slowly.
const UNSETTLED: Duration = Duration::from_secs(2);
/// How long a sandbox may be left unredirected before that is logged: the agent may not know its pod yet.
const GRACE: Duration = Duration::from_secs(5);
/// How long until the next pass otherwise. An ended ADD starts one at once. After this time every sandbox is judged
/// again.
const SETTLED: Duration = Duration::from_secs(60);

/// The shortest time between two passes, so that many ADDs that end together are one pass.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// How long until the node's entry and the agent's setting are looked for again, where no event announces them.
const NOT_YET: Duration = Duration::from_secs(1);

/// The most findings that wait for an agent: more than the pods of a node.
const MAX_UNSENT: usize = 256;

/// When pods are repaired.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Occasion<'a> {
    /// Always: an operator runs the command.
    Always,
    /// When the agent's setting in this directory requests it.
    AsTheAgentRequests(&'a Path),
}

/// Repairs pods until `stop` is readable.
pub(crate) fn watch(node: &RepairNode, occasion: Occasion<'_>, stop: BorrowedFd<'_>, log: &Log) {
    let mut memory = RepairWatch::default();
    let shared = match occasion {
        Occasion::Always => None,
        Occasion::AsTheAgentRequests(directory) => Some(directory),
    };
    // Ended ADDs, the node's entry, the agent's setting.
    let NodeDirectories { results, conf, .. } = &node.directories;
    let directories = [results, conf].into_iter().map(PathBuf::as_path).chain(shared).map(Path::to_owned);
    let mut watch = DirectoryWatch::new(directories);
    let mut nothing = DirectoryWatch::new([]);
    loop {
        let started = Instant::now();
        let wait = memory.turn(node, shared, log);
        let pause = MIN_INTERVAL.saturating_sub(started.elapsed());
        if nothing.wait(pause, Some(stop)) == WakeReason::Readable {
            return;
        }
        match watch.wait(wait, Some(stop)) {
            WakeReason::Readable => return,
            WakeReason::TimedOut | WakeReason::Changed => {}
        }
    }
}

/// The memory of the passes. Bounded by the sandboxes of the node.
#[derive(Debug, Default)]
struct RepairWatch {
    /// The runtime's ids of sandboxes in their desired state.
    settled: BTreeSet<String>,
    /// Since when these have not been judged again.
    settled_since: Option<Instant>,
    /// Since when the other sandboxes are known.
    unsettled: BTreeMap<String, Instant>,
    /// What was last logged about a sandbox.
    logged: BTreeMap<String, String>,
    counts: PodRepairs,
    /// Findings that no agent has accepted yet, the oldest first.
    unsent: VecDeque<Finding>,
    /// Why the last one was not accepted.
    send_error: Option<String>,
    /// When the agent last received that a sandbox is not redirected.
    handed_over: BTreeMap<String, Instant>,
    /// The mode of the last turn; none before the agent has written it.
    mode: Option<RepairMode>,
    /// What was written to the file.
    written: Option<Option<PodRepairs>>,
    /// What the last turn waited for.
    waits_for: Option<&'static str>,
}

impl RepairWatch {
    /// Makes a pass if it is due and the node has an entry. Returns how long to wait for the next turn.
    fn turn(&mut self, node: &RepairNode, shared: Option<&Path>, log: &Log) -> Duration {
        self.forget_settled(Instant::now());
        let mode = shared.map_or(Some(RepairMode::Repair), |shared| {
            RepairSetting::kept_in(shared).map(|setting| setting.repair)
        });
        // What was found in another mode is not acted on.
        self.handed_over.retain(|_, _| mode == self.mode);
        self.mode = mode;
        let conf = node.conf();
        let (wait, waits_for) = match (mode, &conf) {
            (Some(RepairMode::Off), _) => (SETTLED, None),
            (None, _) => (NOT_YET, Some("the agent has not written the setting `repair`")),
            (_, None) => (NOT_YET, Some("the node's conf file has no entry of gybe-cni")),
            (Some(mode @ (RepairMode::Repair | RepairMode::Delete | RepairMode::Label)), Some(conf)) => {
                let sources = PolicySources::of(conf.clone());
                let is_dry_run = mode != RepairMode::Repair;
                let pass = RepairPass { conf, sources: &sources, is_dry_run };
                (self.pass(node.sandboxes().sandboxes, &pass, mode, log), None)
            }
        };
        self.send(shared, log);
        let wait = if self.unsent.is_empty() { wait } else { wait.min(UNSETTLED) };
        let wait = wait.min(self.until_judged_again(Instant::now()));
        if let Some(why) = waits_for.filter(|_| waits_for != self.waits_for) {
            log.info("gybe repair: waiting", json!({ "why": why }));
        }
        self.waits_for = waits_for;
        let counts = (mode != Some(RepairMode::Off)).then_some(self.counts);
        if let Some(directory) = shared.filter(|_| self.written != Some(counts)) {
            self.written = Some(counts);
            if let Err(why) = PodRepairs::keep_in(counts, directory) {
                log.warn(
                    "gybe repair: the counts cannot be stored in /run/gybe",
                    json!({ "why": why.to_string() }),
                );
            }
        }
        wait
    }

    /// Lets every sandbox be judged again after `SETTLED`, also while ADDs end all the time.
    fn forget_settled(&mut self, now: Instant) {
        let since = *self.settled_since.get_or_insert(now);
        if now.duration_since(since) >= SETTLED {
            self.settled.clear();
            self.settled_since = Some(now);
        }
    }

    /// Returns how long until every sandbox is judged again.
    fn until_judged_again(&self, now: Instant) -> Duration {
        let since = self.settled_since.map_or(Duration::ZERO, |since| now.duration_since(since));
        SETTLED.saturating_sub(since).max(MIN_INTERVAL)
    }

    /// Makes a pass over the sandboxes that are not known to be in their desired state, logs what is new and returns
    /// how long to wait for the next pass.
    fn pass(
        &mut self,
        sandboxes: Vec<Sandbox>,
        pass: &RepairPass<'_>,
        mode: RepairMode,
        log: &Log,
    ) -> Duration {
        let present: BTreeSet<String> = sandboxes.iter().map(key).collect();
        self.settled.retain(|settled| present.contains(settled));
        self.unsettled.retain(|unsettled, _| present.contains(unsettled));
        self.logged.retain(|logged, _| present.contains(logged));
        self.handed_over.retain(|key, at| present.contains(key) && at.elapsed() < SETTLED);
        let open = sandboxes.into_iter().filter(|sandbox| !self.settled.contains(&key(sandbox))).collect();
        let mut wait = SETTLED;
        self.counts.not_redirected = 0;
        for report in pass.run(open) {
            let key = key(&report.before.sandbox);
            self.count(&report);
            self.hand_over(&key, &report, mode);
            if is_settled(&report) {
                self.log_once(&key, &report, mode, log);
                self.unsettled.remove(&key);
                self.settled.insert(key);
                continue;
            }
            let known_for = self.unsettled.entry(key.clone()).or_insert_with(Instant::now).elapsed();
            if report.repair.is_some() || known_for >= GRACE {
                self.log_once(&key, &report, mode, log);
            }
            if known_for < SETTLED {
                wait = wait.min((known_for / 2).clamp(MIN_INTERVAL, UNSETTLED));
            }
        }
        wait
    }

    /// Queues what the agent has to know. It receives every repair, and once a minute that a pod is not redirected: it
    /// may not have been allowed to act on it.
    fn hand_over(&mut self, key: &str, report: &RepairReport, mode: RepairMode) {
        let Some(finding) = Finding::of(report, mode) else { return };
        if !matches!(finding.found, Found::Repaired(_)) {
            if self.handed_over.contains_key(key) {
                return;
            }
            self.handed_over.insert(key.to_owned(), Instant::now());
        }
        if self.unsent.len() >= MAX_UNSENT {
            self.unsent.pop_front();
        }
        self.unsent.push_back(finding);
    }

    /// Sends to the agent of `shared` what it has not received yet.
    fn send(&mut self, shared: Option<&Path>, log: &Log) {
        let Some(directory) = shared else {
            self.unsent.clear();
            return;
        };
        while let Some(finding) = self.unsent.front() {
            if let Err(why) = finding.send(directory) {
                let why = why.to_string();
                if self.send_error.as_ref() != Some(&why) {
                    log.warn("gybe repair: the agent accepts no findings yet", json!({ "why": why }));
                }
                self.send_error = Some(why);
                // A pod that is not redirected now may be when an agent accepts findings again: the next pass judges
                // it.
                self.unsent.retain(|finding| matches!(finding.found, Found::Repaired(_)));
                self.handed_over.clear();
                return;
            }
            self.send_error = None;
            self.unsent.pop_front();
        }
    }

    fn count(&mut self, report: &RepairReport) {
        match &report.repair {
            Some(Ok(_)) => self.counts.repaired += 1,
            Some(Err(_)) => self.counts.failed += 1,
            None => {}
        }
        self.counts.not_redirected += u64::from(!report.is_well());
    }

    fn log_once(&mut self, key: &str, report: &RepairReport, mode: RepairMode, log: &Log) {
        let Some(line) = Line::of(report, mode) else {
            self.logged.remove(key);
            return;
        };
        if self.logged.get(key) == Some(&line.details) {
            return;
        }
        let sandbox = &report.before.sandbox;
        let uid = sandbox.pod.as_ref().and_then(|pod| pod.uid.as_ref()).or(sandbox.uid.as_ref());
        let mut fields = json!({ "pod": sandbox.to_string(), "uid": uid, "verdict": report.before.line() });
        if let (Some(fields), Some(more)) = (fields.as_object_mut(), line.fields.as_object()) {
            fields.extend(more.clone());
        }
        log.log(line.level, line.message, fields);
        self.logged.insert(key.to_owned(), line.details);
    }
}

/// A sandbox in its desired state, as far as that is known. Another sandbox is judged again soon.
fn is_settled(report: &RepairReport) -> bool {
    let is_known = report.before.unknown_because.is_none() && report.before.sandbox.ended_add.is_some();
    is_known && report.is_well()
}

/// The runtime's id, or the name where the runtime cached nothing.
fn key(sandbox: &Sandbox) -> String {
    sandbox.container.clone().unwrap_or_else(|| sandbox.to_string())
}

/// A line for the log.
struct Line {
    level: Level,
    message: &'static str,
    fields: serde_json::Value,
    /// What distinguishes it from the line before about the same sandbox.
    details: String,
}

impl Line {
    /// None if there is nothing to log.
    fn of(report: &RepairReport, mode: RepairMode) -> Option<Self> {
        let reason = &report.decision.reason;
        let handed_over = report.is_to_be_repaired().then(|| json!(mode));
        Some(match (&report.repair, report.decision.action) {
            (Some(Ok(repaired)), _) => Self {
                level: Level::Info,
                message: "gybe repair: redirected a running pod",
                fields: json!({ "tool": repaired.backend, "open_connections": repaired.open_connections }),
                details: "repaired".to_owned(),
            },
            (Some(Err(why)), _) => Self {
                level: Level::Error,
                message: "gybe repair: cannot redirect a running pod",
                fields: json!({ "why": why }),
                details: why.clone(),
            },
            (None, Action::None) => return None,
            (None, action) if report.before.verdict.state == RedirectionState::Unknown => Self {
                level: Level::Warn,
                message: "gybe repair: it is not known whether a pod is redirected",
                fields: json!({ "action": action.name() }),
                details: report.before.line(),
            },
            (None, action) => {
                let action = handed_over.unwrap_or_else(|| json!(action.name()));
                Self {
                    level: Level::Warn,
                    message: "gybe repair: a pod is not redirected",
                    fields: json!({ "action": action, "reason": reason }),
                    details: format!("{action}: {reason}"),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::RepairedPod;
    use gybe_plugin::args::PodRef;
    use gybe_test_support::TestDir;

    #[test]
    fn settled_sandboxes_are_judged_again_every_minute_however_often_adds_end() {
        let (mut memory, start) = (RepairWatch::default(), Instant::now());
        memory.settled.insert("a".to_owned());
        for second in 0..60 {
            memory.forget_settled(start + Duration::from_secs(second));
            assert!(!memory.settled.is_empty(), "after {second} s");
        }
        memory.forget_settled(start + SETTLED);
        assert!(memory.settled.is_empty());
        memory.settled.insert("a".to_owned());
        memory.forget_settled(start + SETTLED + Duration::from_secs(1));
        assert!(!memory.settled.is_empty());
        // An ADD that ends late in a minute does not delay the judgement.
        let left = memory.until_judged_again(start + SETTLED + Duration::from_secs(59));
        assert_eq!(left, Duration::from_secs(1));
    }

    #[test]
    fn without_an_agent_only_repairs_wait_and_other_findings_are_made_again() {
        let directory = TestDir::new("no-agent");
        let pod = PodRef::from_args("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=5f1d")
            .unwrap()
            .unwrap();
        let repaired = Found::Repaired(RepairedPod {
            backend: "nft".to_owned(),
            open_connections: 0,
            captures_dns: false,
            drops_invalid: false,
        });
        let why = || "x".to_owned();
        let others = [Found::NotRepaired { why: why() }, Found::NotRedirected { why: why() }];
        let mut memory = RepairWatch::default();
        let found = [repaired.clone()].into_iter().chain(others);
        memory.unsent.extend(found.map(|found| Finding { pod: pod.clone(), found }));
        memory.handed_over.insert("a".to_owned(), Instant::now());
        memory.send(Some(directory.path()), &Log::default());
        let left: Vec<_> = memory.unsent.iter().map(|finding| &finding.found).collect();
        assert_eq!((left, memory.handed_over.is_empty()), (vec![&repaired], true));
        // `gybe repair --watch` has none to send them to.
        memory.send(None, &Log::default());
        assert!(memory.unsent.is_empty());
    }
}
