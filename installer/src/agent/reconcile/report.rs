//! The report of a pass, what is logged about it, and when the next turn is due.

use super::{Reconciler, Turn};
use crate::agent::status::{PassReport, Phase, TurnReport};
use crate::host::change::Change;
use crate::host::conflict::RewriteCounts;
use crate::host::directory::{Directory, PerDirectory};
use crate::host::image::PLUGIN;
use crate::host::observe::{CachedPlugins, cached_plugins};
use crate::host::pass::{Pass, RESYNC};
use crate::host::problem::Problem;
use crate::host::settings::Mode;
use crate::host::uninstall::KeptReason;
use crate::log::Level;
use serde_json::json;
use std::time::{Duration, Instant};

/// Measures how long another program's rewrites in a directory last until they are repaired.
#[derive(Debug, Default)]
pub(super) struct RepairTimer {
    before: RewriteCounts,
    undone_since: Option<Instant>,
}

impl RepairTimer {
    /// Records the counts after a pass of the turn that began at `woken`; returns how long the repaired rewrite lasted.
    fn observe(&mut self, counts: RewriteCounts, woken: Instant) -> Option<Duration> {
        let before = std::mem::replace(&mut self.before, counts);
        if counts.rewrites > before.rewrites {
            self.undone_since.get_or_insert(woken);
        }
        let is_repaired = counts.repairs > before.repairs;
        let took = self.undone_since.filter(|_| is_repaired).map(|since| since.elapsed());
        if took.is_some() || !counts.is_undone {
            // A rewrite after the repair starts a new measurement.
            self.undone_since = counts.is_undone.then(Instant::now);
        }
        took
    }
}

impl Reconciler<'_> {
    /// Returns the report of a pass, and logs it. `woken` is when the turn began.
    pub(super) fn report(&mut self, pass: &Pass, woken: Instant) -> Turn {
        let rewrites = PerDirectory::made(|directory| self.memory.rewrite_counts(directory));
        let repaired_in = PerDirectory::made(|directory| {
            self.timers.of_mut(directory).observe(*rewrites.of(directory), woken)
        });
        self.log_pass(pass, repaired_in.conf.max(repaired_in.programs));
        let settings = &self.settings.current;
        let (missing, notes) = sentences(self.is_as_desired(pass), pass);
        let mut problems = pass.left.problems.iter();
        let deleted = problems.find(|it| matches!(it, Problem::Deleted(_))).map(ToString::to_string);
        let has_failed = |directory| pass.refused().any(|failed| failed.change.directory() == directory);
        let conflict = |directory| pass.conflicts.of(directory).as_ref().map(ToString::to_string);
        let report = TurnReport {
            missing,
            is_redirected: (settings.options.mode == Mode::Install)
                .then(|| pass.left.judgement.is_redirected()),
            notes: notes.into_iter().chain(settings.notes.iter().cloned()).collect(),
            deleted_directory: deleted,
            rewrite_expected_until: self.memory.rewrite_expected_until(Directory::Conf),
            conflicts: PerDirectory::made(conflict),
            pass: Some(PassReport {
                is_done: pass.left.is_done(),
                has_changed: pass.applied.done > 0,
                programs_failed: has_failed(Directory::Programs),
                conf_failed: has_failed(Directory::Conf),
                rewrites,
                repaired_in,
            }),
            phase: self.phase(pass),
            ..TurnReport::default()
        };
        let remaining = self.grace_period.left(Instant::now()).filter(|left| !left.is_zero());
        Turn { report, next: pass.next_turn(remaining.map_or(RESYNC, |left| left.min(RESYNC))) }
    }

    /// In mode install: a pod that starts now is redirected. In mode leave: nothing is left to remove.
    fn is_as_desired(&self, pass: &Pass) -> bool {
        match self.settings.current.options.mode {
            Mode::Install => pass.left.judgement.is_redirected(),
            Mode::Leave => pass.left.is_done(),
        }
    }

    fn log_pass(&mut self, pass: &Pass, repaired_in: Option<Duration>) {
        if pass.applied.done > 0 {
            let micros = |took: Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.log.changes(pass, repaired_in.map(micros));
        }
        self.log.failures(pass);
        self.log.problems(&pass.left.problems);
        self.log.conflicts(&pass.conflicts);
    }

    /// Returns the phase after a pass; starts the grace period when our entry has been removed.
    fn phase(&mut self, pass: &Pass) -> Phase {
        let settings = &self.settings.current;
        if settings.options.mode == Mode::Install {
            self.grace_period.cancel();
            return Phase::Installed;
        }
        let is_out = pass.left.is_done();
        let conf_changed = pass.plan.changes.iter().any(|change| change.directory() == Directory::Conf);
        self.grace_period.passed(is_out, conf_changed, Instant::now());
        let plugin_stays = settings.environment.directories.programs.join(PLUGIN).symlink_metadata().is_ok();
        let (phase, why) = match (is_out, plugin_stays) {
            (true, true) => {
                let kept = Some(self.kept_reason());
                (Phase::Uninstalled { kept }, Some("the plugin stays for existing sandboxes"))
            }
            (true, false) => (Phase::Uninstalled { kept: None }, Some("no program stays")),
            (false, _) => (Phase::Uninstalling, None),
        };
        self.log.condition(Level::Info, "gybe node: uninstalled", why.map(str::to_owned), json!({}));
        phase
    }

    fn kept_reason(&self) -> KeptReason {
        let left = self.grace_period.left(Instant::now()).filter(|left| !left.is_zero());
        let results = &self.settings.current.environment.directories.results;
        match (left, cached_plugins(results)) {
            (Some(left), _) => KeptReason::GracePeriod { seconds: left.as_secs() + 1 },
            (None, CachedPlugins::Unknown) => KeptReason::Unknown,
            (None, named) if named.may_name(PLUGIN) => KeptReason::Named,
            (None, _) => KeptReason::Failed,
        }
    }
}

/// Returns what keeps the node from its desired state, and what else an operator should know, in sentences.
fn sentences(is_as_desired: bool, pass: &Pass) -> (Vec<String>, Vec<String>) {
    let left = &pass.left;
    let reasons = left.judgement.reasons.iter().filter(|reason| !left.problems.contains(reason));
    let (blocking, notes): (Vec<_>, Vec<_>) = left.problems.iter().partition(|problem| problem.blocks());
    let blocking = blocking.into_iter().chain(reasons).map(ToString::to_string);
    let blocking = blocking.chain(left.changes.iter().map(|change| still_to_do(change, pass)));
    let notes = notes.into_iter().map(ToString::to_string);
    match is_as_desired {
        true => (Vec::new(), blocking.chain(notes).collect()),
        false => (blocking.collect(), notes.collect()),
    }
}

/// Returns a change that is left, with the error of its last attempt and what to do about it.
fn still_to_do(change: &Change, pass: &Pass) -> String {
    match pass.failed().find(|failed| failed.change == *change) {
        Some(failed) => format!("still to do: {change}: {}", failed.with_hint()),
        None => format!("still to do: {change}"),
    }
}
