//! Makes a pass whenever an ADD has ended, and every minute. Remembers which sandboxes need no further look, and what
//! has been logged.

use super::shared_files::{PodRepairs, RepairSetting};
use super::{Action, RepairNode, RepairPass, RepairReport};
use crate::host::pods_on_node::{PolicySources, Sandbox};
use crate::host::settings::RepairMode;
use crate::host::watch::{DirectoryWatch, WakeReason};
use crate::log::{Level, Log};
use gybe_netfilter::verdict::RedirectionState;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::Path;
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
/// How long until the node's entry and the agent's setting are looked for again.
const NOT_YET: Duration = Duration::from_secs(1);

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
    let directories = [node.directories.results.clone()].into_iter().chain(shared.map(Path::to_owned));
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
            WakeReason::TimedOut if wait == SETTLED => memory.settled.clear(),
            WakeReason::TimedOut | WakeReason::Changed => {}
        }
    }
}

/// The memory of the passes. Bounded by the sandboxes of the node.
#[derive(Debug, Default)]
struct RepairWatch {
    /// The runtime's ids of sandboxes in their desired state.
    settled: BTreeSet<String>,
    /// Since when the other sandboxes are known.
    unsettled: BTreeMap<String, Instant>,
    /// What was last logged about a sandbox.
    logged: BTreeMap<String, String>,
    counts: PodRepairs,
    /// What was written to the file.
    written: Option<Option<PodRepairs>>,
    /// What the last turn waited for.
    waits_for: Option<&'static str>,
}

impl RepairWatch {
    /// Makes a pass if it is due and the node has an entry. Returns how long to wait for the next turn.
    fn turn(&mut self, node: &RepairNode, shared: Option<&Path>, log: &Log) -> Duration {
        let mode = shared.map_or(Some(RepairMode::Repair), |shared| {
            RepairSetting::kept_in(shared).map(|setting| setting.repair)
        });
        let conf = node.conf();
        let (wait, waits_for) = match (mode, &conf) {
            (Some(RepairMode::Off), _) => (SETTLED, None),
            (None, _) => (NOT_YET, Some("the agent has not written the setting `repair`")),
            (_, None) => (NOT_YET, Some("the node's conf file has no entry of gybe-cni")),
            (Some(RepairMode::Repair), Some(conf)) => {
                let sources = PolicySources::of(conf.clone());
                let pass = RepairPass { conf, sources: &sources, is_dry_run: false };
                (self.pass(node.sandboxes().sandboxes, &pass, log), None)
            }
        };
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

    /// Makes a pass over the sandboxes that are not known to be in their desired state, logs what is new and returns
    /// how long to wait for the next pass.
    fn pass(&mut self, sandboxes: Vec<Sandbox>, pass: &RepairPass<'_>, log: &Log) -> Duration {
        let present: BTreeSet<String> = sandboxes.iter().map(key).collect();
        self.settled.retain(|settled| present.contains(settled));
        self.unsettled.retain(|unsettled, _| present.contains(unsettled));
        self.logged.retain(|logged, _| present.contains(logged));
        let open = sandboxes.into_iter().filter(|sandbox| !self.settled.contains(&key(sandbox))).collect();
        let mut wait = SETTLED;
        self.counts.not_redirected = 0;
        for report in pass.run(open) {
            let key = key(&report.before.sandbox);
            self.count(&report);
            if is_settled(&report) {
                self.log_once(&key, &report, log);
                self.unsettled.remove(&key);
                self.settled.insert(key);
                continue;
            }
            let known_for = self.unsettled.entry(key.clone()).or_insert_with(Instant::now).elapsed();
            if report.repair.is_some() || known_for >= GRACE {
                self.log_once(&key, &report, log);
            }
            if known_for < SETTLED {
                wait = wait.min((known_for / 2).clamp(MIN_INTERVAL, UNSETTLED));
            }
        }
        wait
    }

    fn count(&mut self, report: &RepairReport) {
        match &report.repair {
            Some(Ok(_)) => self.counts.repaired += 1,
            Some(Err(_)) => self.counts.failed += 1,
            None => {}
        }
        self.counts.not_redirected += u64::from(!report.is_well());
    }

    fn log_once(&mut self, key: &str, report: &RepairReport, log: &Log) {
        let Some(line) = Line::of(report) else {
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
    fn of(report: &RepairReport) -> Option<Self> {
        let reason = &report.decision.reason;
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
            (None, action) => Self {
                level: Level::Warn,
                message: "gybe repair: a pod is not redirected",
                fields: json!({ "action": action.name(), "reason": reason }),
                details: format!("{}: {reason}", action.name()),
            },
        })
    }
}
