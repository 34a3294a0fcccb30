//! What the passes of one process have found: sandboxes that need no further look, and what has been logged.

use super::{Action, RepairPass, RepairReport};
use crate::host::pods_on_node::Sandbox;
use crate::log::{Level, Log};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long until the next pass while a sandbox has newly been found not to be in its desired state, or without an ended ADD.
const UNSETTLED: Duration = Duration::from_secs(2);
/// How long until the next pass otherwise. An ended ADD starts one at once. After this time every sandbox is judged again.
const SETTLED: Duration = Duration::from_secs(60);

/// The memory of the passes. Bounded by the sandboxes of the node.
#[derive(Debug, Default)]
pub(crate) struct RepairWatch {
    /// The runtime's ids of sandboxes in their desired state.
    settled: BTreeSet<String>,
    /// Since when the other sandboxes are known.
    unsettled: BTreeMap<String, Instant>,
    /// What was last logged about a sandbox.
    logged: BTreeMap<String, String>,
}

impl RepairWatch {
    /// Makes a pass over the sandboxes that are not known to be in their desired state, logs what is new and returns how
    /// long to wait for the next pass.
    pub(crate) fn pass(&mut self, sandboxes: Vec<Sandbox>, pass: &RepairPass<'_>, log: &Log) -> Duration {
        let present: BTreeSet<String> = sandboxes.iter().map(key).collect();
        self.settled.retain(|settled| present.contains(settled));
        self.unsettled.retain(|unsettled, _| present.contains(unsettled));
        self.logged.retain(|logged, _| present.contains(logged));
        let open = sandboxes.into_iter().filter(|sandbox| !self.settled.contains(&key(sandbox))).collect();
        let mut wait = SETTLED;
        for report in pass.run(open) {
            let key = key(&report.before.sandbox);
            self.log_once(&key, &report, log);
            if is_settled(&report) {
                self.unsettled.remove(&key);
                self.settled.insert(key);
            } else if self.unsettled.entry(key).or_insert_with(Instant::now).elapsed() < SETTLED {
                wait = UNSETTLED;
            }
        }
        wait
    }

    /// Lets the next pass judge every sandbox again.
    pub(crate) fn judge_all_again(&mut self) {
        self.settled.clear();
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
            (None, action) => Self {
                level: Level::Warn,
                message: "gybe repair: a pod is not redirected",
                fields: json!({ "action": action.name(), "reason": reason }),
                details: format!("{}: {reason}", action.name()),
            },
        })
    }
}
