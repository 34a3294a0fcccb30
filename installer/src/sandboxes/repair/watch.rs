//! Judges new sandboxes whenever an ADD has ended, and every sandbox every minute, on several threads; another thread
//! sends the findings to the agent.

use super::memory::{MIN_INTERVAL, RepairMemory, SETTLED, UNSETTLED};
use super::queue::{JudgementJob, JudgementQueue, THREADS};
use super::{PodRepairs, RepairNode, RepairPass, RepairSetting};
use crate::host::observe::NodeDirectories;
use crate::host::settings::RepairMode;
use crate::host::watch::{DirectoryWatch, WakeReason};
use crate::log::Log;
use crate::sandboxes::probe_exemption::ExemptedPods;
use crate::sandboxes::{PolicySources, Sandbox};
use gybe_plugin::conf::PluginConf;
use serde_json::json;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long until the node's entry and the agent's setting are looked for again, where no event announces them.
const NOT_YET: Duration = Duration::from_secs(1);

/// When pods are repaired.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Occasion<'a> {
    /// Always: an operator runs the command.
    Always,
    /// When the agent's setting in this directory requests it.
    AsTheAgentRequests(&'a Path),
}

impl Occasion<'_> {
    /// The directory that this process shares with the agent.
    fn shared(self) -> Option<PathBuf> {
        match self {
            Self::Always => None,
            Self::AsTheAgentRequests(directory) => Some(directory.to_owned()),
        }
    }
}

/// Repairs pods until `stop` is readable.
pub(crate) fn watch(node: &RepairNode, occasion: Occasion<'_>, stop: BorrowedFd<'_>, log: &Log) {
    let watch = RepairWatch {
        node,
        shared: occasion.shared(),
        log,
        memory: Mutex::default(),
        found: Condvar::new(),
        queue: JudgementQueue::default(),
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| watch.judge_sandboxes());
        }
        scope.spawn(|| watch.send_findings());
        watch.take_turns(stop);
        watch.queue.end();
        watch.memory().has_ended = true;
        watch.found.notify_all();
    });
}

/// What the threads share.
struct RepairWatch<'a> {
    node: &'a RepairNode,
    /// None for an operator's command.
    shared: Option<PathBuf>,
    log: &'a Log,
    memory: Mutex<RepairMemory>,
    /// Notified when the memory has a new finding, and at the end.
    found: Condvar,
    queue: JudgementQueue<Judging>,
}

/// A sandbox and the settings by which it is judged.
struct Judging {
    sandbox: Sandbox,
    settings: Arc<SettingsOfTurn>,
}

#[derive(Debug, PartialEq)]
struct SettingsOfTurn {
    conf: PluginConf,
    mode: RepairMode,
}

impl RepairWatch<'_> {
    fn memory(&self) -> MutexGuard<'_, RepairMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the agent's setting; none before the agent has written it.
    fn mode(&self) -> Option<RepairMode> {
        let Some(shared) = &self.shared else { return Some(RepairMode::Repair) };
        RepairSetting::kept_in(shared).map(|setting| setting.repair)
    }

    fn take_turns(&self, stop: BorrowedFd<'_>) {
        // Ended ADDs, the node's entry, the agent's setting.
        let NodeDirectories { results, conf, .. } = &self.node.directories;
        let directories = [results, conf].into_iter().cloned().chain(self.shared.clone());
        let mut watch = DirectoryWatch::new(directories);
        let mut nothing = DirectoryWatch::new([]);
        loop {
            let started = Instant::now();
            let wait = self.turn();
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

    /// Queues the sandboxes that are to be judged, if the node has an entry. Returns how long to wait for the next turn.
    fn turn(&self) -> Duration {
        let mode = self.mode();
        self.memory().set_mode(mode, Instant::now());
        let (wait, waits_for) = match (mode, self.node.conf()) {
            (Some(RepairMode::Off), _) => {
                self.queue.replace([]);
                (SETTLED, None)
            }
            (Some(mode @ (RepairMode::Repair | RepairMode::Delete | RepairMode::Label)), Some(conf)) => {
                (self.judge_due(SettingsOfTurn { conf, mode }), None)
            }
            (mode, _) => {
                self.queue.replace([]);
                let what = match mode {
                    None => "the agent has not written the setting `repair`",
                    Some(_) => "the node's conf file has no entry of gybe-cni",
                };
                (NOT_YET, Some(what))
            }
        };
        let mut memory = self.memory();
        if let Some(why) = waits_for.filter(|_| waits_for != memory.waits_for) {
            self.log.info("gybe repair: waiting", json!({ "why": why }));
        }
        memory.waits_for = waits_for;
        let counts = (mode != Some(RepairMode::Off)).then(|| memory.counts());
        if let Some(directory) = &self.shared {
            let failed = PodRepairs::keep_in(counts, directory).err().map(|why| why.to_string());
            memory.log_problem("gybe repair: the counts cannot be stored in /run/gybe", failed, self.log);
        }
        wait
    }

    /// Queues the sandboxes that are due, and waits for most of them. Returns how long to wait for the next turn.
    fn judge_due(&self, settings: SettingsOfTurn) -> Duration {
        let settings = Arc::new(settings);
        // A file that cannot be read delays only: all sandboxes are judged each minute.
        let shared = self.shared.as_deref().filter(|_| settings.conf.ambient.is_some());
        let pods = shared.and_then(|shared| ExemptedPods::kept_in(shared).ok().flatten());
        let list = self.node.sandboxes();
        let unreadable = (!list.unreadable.is_empty()).then(|| list.unreadable.join("; "));
        let due = {
            let mut memory = self.memory();
            memory.log_problem("gybe repair: sandboxes may be missing", unreadable, self.log);
            memory.set_due(pods.unwrap_or_default().due);
            memory.due(list, Instant::now())
        };
        let jobs = due.into_iter().map(|(key, is_long, sandbox)| {
            let work = Judging { sandbox, settings: Arc::clone(&settings) };
            JudgementJob { key, is_long, work }
        });
        self.queue.replace(jobs);
        let is_done = self.queue.wait(UNSETTLED);
        let wait = self.memory().until_next(Instant::now());
        if is_done { wait } else { wait.min(UNSETTLED) }
    }

    /// Judges the sandboxes of the queue, and acts on each.
    fn judge_sandboxes(&self) {
        while let Some(JudgementJob { key, work: Judging { sandbox, settings }, .. }) = self.queue.start() {
            let sources = PolicySources::of(settings.conf.clone());
            let in_force =
                || self.mode() == Some(settings.mode) && self.node.conf().as_ref() == Some(&settings.conf);
            let writes = settings.mode == RepairMode::Repair;
            let in_force = writes.then_some(&in_force as &(dyn Fn() -> bool + Sync));
            let pass = RepairPass { conf: &settings.conf, sources: &sources, in_force };
            let turn = self.memory().ambient_turn(&key, &sandbox, Instant::now());
            let report = pass.judge(sandbox, turn);
            let mut memory = self.memory();
            memory.record(&key, &report, settings.mode, Instant::now(), self.log);
            if self.shared.is_some() {
                memory.hand_over(&key, &report, settings.mode);
                self.found.notify_all();
            }
            drop(memory);
            self.queue.finish(&key);
        }
    }

    /// Sends the findings to the agent, one after the other: each is sent when the agent has acted on the one before.
    fn send_findings(&self) {
        let Some(directory) = &self.shared else { return };
        let mut retry_at = Instant::now();
        let mut memory = self.memory();
        while !memory.has_ended {
            let left = retry_at.saturating_duration_since(Instant::now());
            let finding = memory.unsent.front().filter(|_| left.is_zero()).cloned();
            let Some(finding) = finding else {
                let left = if left.is_zero() { SETTLED } else { left };
                memory = self.found.wait_timeout(memory, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            drop(memory);
            let sent = finding.send(directory, |pod| self.node.judge_pod(pod));
            retry_at = Instant::now() + if sent.is_ok() { Duration::ZERO } else { UNSETTLED };
            memory = self.memory();
            memory.sent(&finding, sent, self.log);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;
    use std::fs;

    #[test]
    fn counts_that_could_not_be_stored_are_stored_by_the_next_turn() {
        let (root, log) = (TestDir::new("repair-counts"), Log::default());
        let shared = root.join("run");
        // A file where the directory belongs.
        fs::write(&shared, "").unwrap();
        let watch = RepairWatch {
            node: &RepairNode::of_host(root.path(), None),
            shared: Some(shared.clone()),
            log: &log,
            memory: Mutex::default(),
            found: Condvar::new(),
            queue: JudgementQueue::default(),
        };
        watch.turn();
        assert_eq!(PodRepairs::kept_in(&shared), None);
        fs::remove_file(&shared).unwrap();
        fs::create_dir(&shared).unwrap();
        watch.turn();
        assert_eq!(PodRepairs::kept_in(&shared), Some(PodRepairs::default()));
    }
}
