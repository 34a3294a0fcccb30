//! What the process that repairs pods remembers: which sandboxes need no further look, what has been logged, and what the
//! agent has not received yet. Bounded by the sandboxes of the node.

use super::enrolment::AmbientTurn;
use super::queue::LONG;
use super::{Action, AmbientOutcome, FindingKind, PodRepairs, RepairFinding, RepairReport};
use crate::host::settings::RepairMode;
use crate::log::{Level, Log};
use crate::sandboxes::{Sandbox, SandboxList};
use gybe_netfilter::inspect::verdict::RedirectionState;
use nix::errno::Errno;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// The longest time until the next turn while a new sandbox is not in its desired state, as one whose first process has
/// not started: the turns follow one another ever more slowly.
pub(super) const UNSETTLED: Duration = Duration::from_secs(2);
/// How long until the next turn otherwise. An ended ADD starts one at once. After this time every sandbox is judged
/// again.
pub(super) const SETTLED: Duration = Duration::from_secs(60);
/// The shortest time between two turns, so that many ADDs that end together are one turn.
pub(super) const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// How long a sandbox may be left unredirected before that is logged: the agent may not know its pod yet.
const GRACE: Duration = Duration::from_secs(5);
/// The most findings that wait for an agent: more than the pods of a node.
const MAX_UNSENT: usize = 256;

#[derive(Debug, Default)]
pub(super) struct RepairMemory {
    /// The sandboxes by their keys, since their first judgement.
    sandboxes: BTreeMap<String, Judged>,
    /// The uids of the pods that the agent reports as due, and whether that is new.
    due: BTreeMap<String, bool>,
    /// Since when ambient pods that leave have neither the annotation nor rules that capture connections, by the keys
    /// of their sandboxes.
    drained: BTreeMap<String, Instant>,
    /// Since when the settled ones have not been judged again.
    settled_since: Option<Instant>,
    /// What was last logged about a sandbox.
    logged: BTreeMap<String, String>,
    repaired: u64,
    failed: u64,
    /// Findings that no agent has accepted yet, the oldest first.
    pub(super) unsent: VecDeque<RepairFinding>,
    /// Why the last one was not accepted.
    send_error: Option<String>,
    /// When the agent last received that a sandbox is not redirected.
    handed_over: BTreeMap<String, Instant>,
    /// The mode of the last turn; none before the agent has written it.
    mode: Option<RepairMode>,
    /// What cannot be read or written at present, by message, and why.
    problems: BTreeMap<&'static str, String>,
    /// What the last turn waited for.
    pub(super) waits_for: Option<&'static str>,
    pub(super) has_ended: bool,
}

/// What is remembered of a sandbox.
#[derive(Debug, Clone, Copy)]
struct Judged {
    /// When it was judged first, or last became due.
    since: Instant,
    last: Instant,
    /// Whether it is in its desired state, as far as that is known, and is not judged again soon.
    is_settled: bool,
    is_well: bool,
    /// Whether a change of it has failed.
    has_failed: bool,
    /// How long its namespace was read.
    took: Duration,
}

impl Judged {
    fn is_long(&self) -> bool {
        self.took >= LONG
    }

    /// Returns how long it is not judged again, a minute at most: one that takes long for twenty times as long, and one
    /// that could not be changed for as long as that has lasted. Each failure changes the file with the counts, which
    /// begins the next turn.
    fn pause(&self, now: Instant) -> Duration {
        let long = if self.is_long() { self.took * 20 } else { Duration::ZERO };
        let known_for = self.last.duration_since(self.since);
        let failed = if self.has_failed { known_for.max(UNSETTLED) } else { Duration::ZERO };
        long.max(failed).min(SETTLED).saturating_sub(now.duration_since(self.last))
    }

    /// Reports whether it is judged in this turn.
    fn is_due(&self, now: Instant) -> bool {
        !self.is_settled && self.pause(now).is_zero()
    }

    /// Returns how long until it is judged again, if it is not judged with all others.
    fn until_next(&self, now: Instant) -> Option<Duration> {
        let known_for = now.duration_since(self.since);
        let soon = (known_for / 2).clamp(MIN_INTERVAL, UNSETTLED);
        (!self.is_settled && known_for < SETTLED).then(|| self.pause(now).max(soon))
    }
}

impl RepairMemory {
    /// Begins a turn in this mode: what was found in another mode is not acted on.
    pub(super) fn set_mode(&mut self, mode: Option<RepairMode>, now: Instant) {
        if self.mode != mode {
            self.handed_over.clear();
            self.unsent.retain(|finding| matches!(finding.found, FindingKind::Repaired(_)));
        }
        self.mode = mode;
        self.forget_settled(now);
    }

    /// Lets every sandbox be judged again after `SETTLED`, also while ADDs end all the time.
    fn forget_settled(&mut self, now: Instant) {
        let since = *self.settled_since.get_or_insert(now);
        if now.duration_since(since) >= SETTLED {
            self.sandboxes.values_mut().for_each(|it| it.is_settled = false);
            self.settled_since = Some(now);
        }
    }

    /// Records the uids of the pods that the agent reports as due.
    pub(super) fn set_due(&mut self, uids: BTreeSet<String>) {
        let before = std::mem::take(&mut self.due);
        self.due = uids
            .into_iter()
            .map(|uid| (before.get(&uid) != Some(&false), uid))
            .map(|(is_new, uid)| (uid, is_new))
            .collect();
    }

    /// Returns what is known of an ambient pod that runs.
    pub(super) fn ambient_turn(&self, key: &str, sandbox: &Sandbox, now: Instant) -> AmbientTurn {
        let drained_for = self.drained.get(key).map_or(Duration::ZERO, |since| now.duration_since(*since));
        let is_due = uid(sandbox).is_some_and(|uid| self.due.contains_key(uid));
        AmbientTurn { is_due, drained_for: Some(drained_for) }
    }

    /// Returns the sandboxes that are to be judged, with their keys and whether they take long: new ones first, then
    /// those whose judgement is the oldest. Forgets those that are gone. A list with unread parts
    /// may miss some, which are forgotten later.
    pub(super) fn due(&mut self, list: SandboxList, now: Instant) -> Vec<(String, bool, Sandbox)> {
        let SandboxList { sandboxes, unreadable } = list;
        let present: Vec<_> = sandboxes.into_iter().map(|sandbox| (key(&sandbox), sandbox)).collect();
        let keys: BTreeSet<&String> = present.iter().map(|(key, _)| key).collect();
        let is_whole = unreadable.is_empty();
        let is_recent = |it: &Judged| now.duration_since(it.last) < 2 * SETTLED;
        self.sandboxes.retain(|key, it| keys.contains(key) || (!is_whole && is_recent(it)));
        let is_known = |key: &String| keys.contains(key) || self.sandboxes.contains_key(key);
        self.logged.retain(|key, _| is_known(key));
        self.drained.retain(|key, _| is_known(key));
        self.handed_over.retain(|key, at| is_known(key) && now.duration_since(*at) < SETTLED);
        for (key, sandbox) in &present {
            let is_new = uid(sandbox).and_then(|uid| self.due.get_mut(uid)).map(std::mem::take);
            if let (Some(true), Some(judged)) = (is_new, self.sandboxes.get_mut(key)) {
                (judged.since, judged.is_settled) = (now, false);
            }
        }
        let judged = |key: &String| self.sandboxes.get(key);
        let is_due = |(key, _): &(String, Sandbox)| judged(key).is_none_or(|it| it.is_due(now));
        let mut due: Vec<_> = present.into_iter().filter(is_due).collect();
        due.sort_by_key(|(key, _)| judged(key).map(|it| it.last));
        let is_long = |key: &String| judged(key).is_some_and(Judged::is_long);
        due.into_iter().map(|(key, sandbox)| (key.clone(), is_long(&key), sandbox)).collect()
    }

    /// Logs a problem when it begins and when its cause changes.
    pub(super) fn log_problem(&mut self, message: &'static str, why: Option<String>, log: &Log) {
        if self.problems.get(message) != why.as_ref() {
            match why {
                Some(why) => {
                    log.warn(message, json!({ "why": why }));
                    self.problems.insert(message, why);
                }
                None => {
                    self.problems.remove(message);
                }
            }
        }
    }

    /// Returns how long to wait for the next turn.
    pub(super) fn until_next(&self, now: Instant) -> Duration {
        let since = self.settled_since.map_or(Duration::ZERO, |since| now.duration_since(since));
        let all = SETTLED.saturating_sub(since).max(MIN_INTERVAL);
        self.sandboxes.values().filter_map(|it| it.until_next(now)).min().unwrap_or(all).min(all)
    }

    /// Records the report about a sandbox, and logs what is new.
    pub(super) fn record(
        &mut self,
        key: &str,
        report: &RepairReport,
        mode: RepairMode,
        now: Instant,
        log: &Log,
    ) {
        match (&report.repair, &report.ambient) {
            (Some(Ok(_)), _) | (_, Some(Ok(AmbientOutcome::Enrolled(Some(_))))) => self.repaired += 1,
            _ => self.failed += u64::from(report.has_failed()),
        }
        match report.ambient {
            Some(Ok(AmbientOutcome::Draining { is_announced: false, .. })) => {
                self.drained.entry(key.to_owned()).or_insert(now);
            }
            // An error may have come after the rules were changed.
            Some(Err(_)) => {}
            _ => drop(self.drained.remove(key)),
        }
        let since = self.sandboxes.get(key).map_or(now, |it| it.since);
        let (is_settled, is_well) = (is_settled(report), report.is_well());
        let has_failed = report.has_failed();
        let judged = Judged { since, last: now, is_settled, is_well, has_failed, took: report.took };
        self.sandboxes.insert(key.to_owned(), judged);
        if is_settled
            || report.repair.is_some()
            || report.ambient.is_some()
            || now.duration_since(since) >= GRACE
        {
            self.log_once(key, report, mode, log);
        }
    }

    pub(super) fn counts(&self) -> PodRepairs {
        let not_redirected = self.sandboxes.values().filter(|it| !it.is_well).count();
        let not_redirected = u64::try_from(not_redirected).unwrap_or(u64::MAX);
        PodRepairs { repaired: self.repaired, failed: self.failed, not_redirected, is_silent: false }
    }

    /// Queues what the agent has to know. It receives every repair, and once a minute that a pod is not redirected: it
    /// may not have been allowed to act on it.
    pub(super) fn hand_over(&mut self, key: &str, report: &RepairReport, mode: RepairMode) {
        let Some(finding) = RepairFinding::of(report, mode).filter(|_| self.unsent.len() < MAX_UNSENT) else {
            return;
        };
        if !matches!(finding.found, FindingKind::Repaired(_)) {
            let is_queued = self.unsent.iter().any(|other| other.pod == finding.pod);
            if is_queued || self.handed_over.contains_key(key) {
                return;
            }
            self.handed_over.insert(key.to_owned(), Instant::now());
        }
        self.unsent.push_back(finding);
    }

    /// Records whether an agent accepted a finding.
    pub(super) fn sent(&mut self, finding: &RepairFinding, sent: Result<(), Errno>, log: &Log) {
        let Err(why) = sent else {
            self.send_error = None;
            if self.unsent.front() == Some(finding) {
                self.unsent.pop_front();
            }
            return;
        };
        let why = why.to_string();
        if self.send_error.as_ref() != Some(&why) {
            log.warn("gybe repair: the agent accepts no findings yet", json!({ "why": why }));
        }
        self.send_error = Some(why);
        // A pod that is not redirected now may be when an agent accepts findings again: the next turn judges it.
        self.unsent.retain(|finding| matches!(finding.found, FindingKind::Repaired(_)));
        self.handed_over.clear();
    }

    fn log_once(&mut self, key: &str, report: &RepairReport, mode: RepairMode, log: &Log) {
        let Some(line) = RepairLine::of(report, mode) else {
            self.logged.remove(key);
            return;
        };
        if self.logged.get(key) == Some(&line.details) {
            return;
        }
        let sandbox = &report.before.sandbox;
        let mut fields =
            json!({ "pod": sandbox.to_string(), "uid": uid(sandbox), "verdict": report.before.line() });
        if let (Some(fields), Some(more)) = (fields.as_object_mut(), line.fields.as_object()) {
            fields.extend(more.clone());
        }
        log.log(line.level, line.message, fields);
        self.logged.insert(key.to_owned(), line.details);
    }
}

/// A sandbox in its desired state, as far as that is known. Another sandbox is judged again soon, and so is an ambient pod
/// that was changed: the agent may have reported it as due for another reason meanwhile, which is nothing new then.
fn is_settled(report: &RepairReport) -> bool {
    let is_known = report.before.unknown_because.is_none() && report.before.sandbox.ended_add.is_some();
    is_known && report.is_well() && matches!(report.ambient, None | Some(Ok(AmbientOutcome::NotServed)))
}

/// The uid of its pod.
fn uid(sandbox: &Sandbox) -> Option<&str> {
    sandbox.pod.as_ref().and_then(|pod| pod.uid.as_deref()).or(sandbox.uid.as_deref())
}

/// The runtime's id, or the name where the runtime cached nothing.
fn key(sandbox: &Sandbox) -> String {
    sandbox.container.clone().unwrap_or_else(|| sandbox.to_string())
}

/// A line for the log.
struct RepairLine {
    level: Level,
    message: &'static str,
    fields: serde_json::Value,
    /// What distinguishes it from the line before about the same sandbox.
    details: String,
}

impl RepairLine {
    /// None if there is nothing to log.
    fn of(report: &RepairReport, mode: RepairMode) -> Option<Self> {
        if let Some(outcome) = &report.ambient {
            return Self::of_ambient(outcome, report.decision.action);
        }
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
            (None, Action::Enrol | Action::Restart | Action::Leave) => Self {
                level: Level::Warn,
                message: match report.decision.action {
                    Action::Leave => "gybe repair: a running pod is no longer ambient, and is left as it is",
                    _ => "gybe repair: a running pod is ambient and not enrolled, and is left as it is",
                },
                fields: json!({ "action": report.decision.action.name(), "reason": reason }),
                details: reason.clone(),
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

    fn of_ambient(outcome: &Result<AmbientOutcome, String>, action: Action) -> Option<Self> {
        let (message, fields, details) = match outcome {
            Ok(AmbientOutcome::Enrolled(written)) => (
                "gybe repair: enrolled a running pod",
                json!({
                    "tool": written.as_ref().map(|it| it.backend),
                    "open_connections": written.as_ref().map(|it| it.open_connections),
                }),
                "enrolled",
            ),
            Ok(AmbientOutcome::Restarted(ports)) if !ports.is_empty() => (
                "gybe repair: ztunnel did not listen in a running pod, and does so again",
                json!({ "ports": ports }),
                "restarted",
            ),
            // The agent reports that ztunnel is away.
            Ok(AmbientOutcome::NotServed | AmbientOutcome::Restarted(_)) => return None,
            Ok(AmbientOutcome::Draining { open, is_announced }) => {
                let waits_for = match is_announced {
                    true => "the agent to remove its annotation",
                    false => "other proxies to learn of it, and its captured connections to end",
                };
                let fields = json!({ "waits_for": waits_for, "open_connections": open });
                ("gybe repair: a running pod leaves ambient mode", fields, waits_for)
            }
            Ok(AmbientOutcome::Left) => {
                ("gybe repair: took a running pod out of ambient mode", json!({}), "left")
            }
            Err(why) => {
                let message = match action {
                    Action::Leave => "gybe repair: cannot take a running pod out of ambient mode",
                    Action::Restart => "gybe repair: ztunnel does not listen in a running pod",
                    _ => "gybe repair: cannot enrol a running pod",
                };
                let fields = json!({ "why": why });
                return Some(Self { level: Level::Error, message, fields, details: why.clone() });
            }
        };
        Some(Self { level: Level::Info, message, fields, details: details.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandboxes::repair::{RepairDecision, RepairedPod};
    use crate::sandboxes::{EndedAdd, SandboxVerdict};
    use gybe_netfilter::inspect::verdict::NamespaceVerdict;
    use gybe_plugin::args::PodRef;
    use std::path::PathBuf;

    fn sandbox(id: &str) -> Sandbox {
        Sandbox { container: Some(id.to_owned()), ..Sandbox::in_namespace(PathBuf::new()) }
    }

    fn list(ids: &[&str], unreadable: &[&str]) -> SandboxList {
        SandboxList {
            sandboxes: ids.iter().map(|id| sandbox(id)).collect(),
            unreadable: unreadable.iter().map(|what| (*what).to_owned()).collect(),
        }
    }

    #[test]
    fn a_sandbox_that_is_missing_from_a_list_with_unread_parts_stays_counted_for_two_minutes() {
        let (mut memory, now) = (RepairMemory::default(), Instant::now());
        judged(&mut memory, "a", now, false, Duration::ZERO);
        assert_eq!(memory.due(list(&[], &["/run/netns cannot be read"]), now).len(), 0);
        assert_eq!(memory.counts().not_redirected, 1);
        for (unreadable, after) in [(&[][..], Duration::ZERO), (&["/run/netns cannot be read"], 2 * SETTLED)]
        {
            judged(&mut memory, "a", now, false, Duration::ZERO);
            memory.logged.insert("a".to_owned(), "x".to_owned());
            memory.handed_over.insert("a".to_owned(), now);
            assert_eq!(memory.due(list(&[], unreadable), now + after).len(), 0);
            assert_eq!(memory.counts().not_redirected, 0, "{unreadable:?}");
            assert!(memory.logged.is_empty() && memory.handed_over.is_empty(), "{unreadable:?}");
        }
    }

    fn due(memory: &mut RepairMemory, ids: &[&str], now: Instant) -> Vec<(String, bool)> {
        let due = memory.due(list(ids, &[]), now);
        due.into_iter().map(|(key, is_long, _)| (key, is_long)).collect()
    }

    fn judged(memory: &mut RepairMemory, id: &str, at: Instant, is_settled: bool, took: Duration) {
        let judged = Judged { since: at, last: at, is_settled, is_well: is_settled, has_failed: false, took };
        memory.sandboxes.insert(id.to_owned(), judged);
    }

    #[test]
    fn settled_sandboxes_are_judged_again_every_minute_however_often_adds_end() {
        let (mut memory, start) = (RepairMemory::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        memory.set_mode(None, start);
        judged(&mut memory, "a", start, true, Duration::ZERO);
        for second in 0..60 {
            memory.set_mode(None, after(second));
            assert!(due(&mut memory, &["a"], after(second)).is_empty(), "after {second} s");
        }
        memory.set_mode(None, after(60));
        assert_eq!(due(&mut memory, &["a"], after(60)), [("a".to_owned(), false)]);
        judged(&mut memory, "a", start, true, Duration::ZERO);
        memory.set_mode(None, after(61));
        assert!(due(&mut memory, &["a"], after(61)).is_empty());
        // An ADD that ends late in a minute does not delay the judgement.
        assert_eq!(memory.until_next(after(119)), Duration::from_secs(1));
    }

    #[test]
    fn new_sandboxes_are_judged_first_and_one_that_takes_long_pauses_twenty_times_as_long_or_a_minute() {
        let (mut memory, start) = (RepairMemory::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        memory.set_mode(None, start);
        judged(&mut memory, "later", after(2), false, Duration::ZERO);
        judged(&mut memory, "earlier", after(1), false, Duration::ZERO);
        judged(&mut memory, "slow", start, false, LONG);
        let keys = |due: Vec<(String, bool)>| due.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
        let all = ["later", "slow", "earlier", "new"];
        assert_eq!(keys(due(&mut memory, &all, after(19))), ["new", "earlier", "later"]);
        let found = due(&mut memory, &all, after(20));
        assert!(found.contains(&("slow".to_owned(), true)) && found.len() == 4, "{found:?}");
        assert_eq!(due(&mut memory, &["slow"], after(12)), []);
        assert_eq!(memory.until_next(after(12)), Duration::from_secs(8));
        // Never more than a minute.
        judged(&mut memory, "slow", start, false, LONG * 60);
        assert_eq!(keys(due(&mut memory, &["slow"], after(60))), ["slow"]);
    }

    #[test]
    fn one_that_cannot_be_changed_pauses_as_long_as_it_has_failed_whatever_begins_a_turn() {
        let (mut memory, start) = (RepairMemory::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        memory.set_mode(None, start);
        for (judged_after, due_after) in [(0, 2), (1, 3), (10, 20), (300, 360)] {
            judged(&mut memory, "a", start, false, Duration::ZERO);
            let it = memory.sandboxes.get_mut("a").unwrap();
            (it.last, it.has_failed) = (after(judged_after), true);
            let before = after(due_after) - Duration::from_millis(1);
            assert!(due(&mut memory, &["a"], before).is_empty(), "before {due_after} s");
            assert_eq!(due(&mut memory, &["a"], after(due_after)).len(), 1, "after {due_after} s");
        }
    }

    #[test]
    fn a_settled_sandbox_that_becomes_due_is_judged_at_once() {
        let (mut memory, now) = (RepairMemory::default(), Instant::now());
        let mut is_due = |uids: &[&str]| {
            judged(&mut memory, "a", now, true, Duration::ZERO);
            memory.set_due(uids.iter().map(|uid| (*uid).to_owned()).collect());
            let sandboxes = vec![Sandbox { uid: Some("u-a".to_owned()), ..sandbox("a") }];
            let due = memory.due(SandboxList { sandboxes, unreadable: Vec::new() }, now);
            !due.is_empty()
        };
        let steps: [(&[&str], bool); 5] =
            [(&[], false), (&["u-b"], false), (&["u-a", "u-b"], true), (&["u-a"], false), (&[], false)];
        for (uids, expected) in steps {
            assert_eq!(is_due(uids), expected, "{uids:?}");
        }
        assert!(is_due(&["u-a"]), "again");
    }

    fn report(ambient: Option<Result<AmbientOutcome, String>>) -> RepairReport {
        RepairReport {
            before: SandboxVerdict {
                sandbox: Sandbox { ended_add: Some(EndedAdd::default()), ..sandbox("a") },
                verdict: NamespaceVerdict::because(RedirectionState::Redirected, "as found"),
                unknown_because: None,
                proxy_faults: Vec::new(),
            },
            decision: RepairDecision { action: Action::None, reason: String::new() },
            repair: None,
            ambient,
            left_alone_by_add: None,
            took: Duration::ZERO,
        }
    }

    #[test]
    fn the_drain_of_a_pod_that_leaves_begins_when_it_has_no_annotation() {
        let (mut memory, start) = (RepairMemory::default(), Instant::now());
        let draining = |is_announced| Ok(AmbientOutcome::Draining { open: Some(0), is_announced });
        for (second, outcome, drained_for) in [
            (0, draining(true), 0),
            (5, draining(true), 0),
            (7, draining(false), 0),
            (9, draining(false), 2),
            (11, Err("no agent".to_owned()), 4),
            (12, draining(true), 0),
            (13, draining(false), 0),
            (14, Ok(AmbientOutcome::Left), 0),
        ] {
            let now = start + Duration::from_secs(second);
            memory.record("a", &report(Some(outcome)), RepairMode::Repair, now, &Log::default());
            let turn = memory.ambient_turn("a", &sandbox("a"), now);
            assert_eq!(turn.drained_for, Some(Duration::from_secs(drained_for)), "after {second} s");
        }
    }

    #[test]
    fn an_ambient_pod_that_was_changed_is_judged_again_soon() {
        for (outcome, expected) in [
            (None, true),
            (Some(AmbientOutcome::NotServed), true),
            (Some(AmbientOutcome::Enrolled(None)), false),
            (Some(AmbientOutcome::Restarted(vec![15008])), false),
            (Some(AmbientOutcome::Draining { open: Some(1), is_announced: false }), false),
            (Some(AmbientOutcome::Left), false),
        ] {
            let (mut memory, now) = (RepairMemory::default(), Instant::now());
            let report = report(outcome.clone().map(Ok));
            memory.record("a", &report, RepairMode::Repair, now, &Log::default());
            assert_eq!(memory.sandboxes["a"].is_settled, expected, "{outcome:?}");
            assert_eq!(due(&mut memory, &["a"], now).is_empty(), expected, "{outcome:?}");
        }
    }

    #[test]
    fn without_an_agent_only_repairs_wait_and_other_findings_are_made_again() {
        let pod = PodRef::from_args("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=5f1d")
            .unwrap()
            .unwrap();
        let repaired = FindingKind::Repaired(RepairedPod {
            backend: "nft".to_owned(),
            open_connections: 0,
            captures_dns: false,
            drops_invalid: false,
            since_add: None,
        });
        let why = || "x".to_owned();
        let others = [FindingKind::NotRepaired { why: why() }, FindingKind::NotRedirected { why: why() }];
        let mut memory = RepairMemory::default();
        let found = [repaired.clone()].into_iter().chain(others);
        memory.unsent.extend(found.map(|found| RepairFinding { pod: pod.clone(), found }));
        let first = memory.unsent.front().unwrap().clone();
        memory.handed_over.insert("a".to_owned(), Instant::now());
        memory.sent(&first, Err(Errno::ENOENT), &Log::default());
        let left: Vec<_> = memory.unsent.iter().map(|finding| &finding.found).collect();
        assert_eq!((left, memory.handed_over.is_empty()), (vec![&repaired], true));
        memory.sent(&first, Ok(()), &Log::default());
        assert!(memory.unsent.is_empty());
    }
}
