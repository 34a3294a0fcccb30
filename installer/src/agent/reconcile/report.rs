//! The report of a turn, what is logged about its pass, and when the next turn is due.

use super::environment::EnvironmentFacts;
use super::{Reconciler, Turn};
use crate::agent::kubeconfig::Kubeconfig;
use crate::agent::status::{PassReport, Phase, TurnReport};
use crate::host::change::Change;
use crate::host::conflict::RewriteCounts;
use crate::host::image::PLUGIN;
use crate::host::observe::{CachedPlugins, Directory, PerDirectory, cached_plugins};
use crate::host::pass::{Pass, RESYNC};
use crate::host::problem::Problem;
use crate::host::settings::{NodeMode, Settings};
use crate::host::uninstall::KeptReason;
use crate::host::watch::WatchMode;
use crate::log::Level;
use crate::probe::node_backend::NodeBackend;
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
    /// Logs a pass, and returns its turn. `woken` is when the turn began.
    pub(super) fn passed(&mut self, pass: &Pass, known: Option<&Known>, woken: Instant) -> Turn {
        let rewrites = PerDirectory::made(|directory| self.memory.rewrite_counts(directory));
        let repaired_in = PerDirectory::made(|directory| {
            self.timers.of_mut(directory).observe(*rewrites.of(directory), woken)
        });
        self.log_pass(pass, repaired_in.conf.max(repaired_in.programs));
        let rewrite_expected_for = self.memory.rewrite_expected_for();
        let result = TurnResult::Passed {
            pass,
            phase: self.phase(pass),
            settings: &self.settings.current,
            is_rewrite_expected: rewrite_expected_for.is_some(),
            rewrites,
            repaired_in,
        };
        let report = report(result, known, self.watch.mode());
        let remaining = self.grace_period.left(Instant::now()).filter(|left| !left.is_zero());
        let due = [remaining, rewrite_expected_for].into_iter().flatten();
        let next = pass.next_turn(due.fold(RESYNC, Duration::min));
        Turn { report, in_force: None, next }
    }

    fn log_pass(&mut self, pass: &Pass, repaired_in: Option<Duration>) {
        if pass.applied.done > 0 {
            let micros = |took: Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            self.log.changes(pass, repaired_in.map(micros));
        }
        self.log.failures(pass);
        self.log.condition(Level::Info, "gybe node: chose where the entry is", auto(pass), json!({}));
        self.log.problems(&pass.left.problems);
        self.log.conflicts(&pass.conflicts);
    }

    /// Returns the phase after a pass; starts the grace period when our entry has been removed.
    fn phase(&mut self, pass: &Pass) -> Phase {
        let settings = &self.settings.current;
        if settings.options.mode == NodeMode::Install {
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

/// What a turn found out before its pass.
pub(super) struct Known {
    pub(super) kubeconfig: Result<Option<Kubeconfig>, String>,
    pub(super) environment: EnvironmentFacts,
    pub(super) backend: NodeBackend,
}

/// What became of a turn.
pub(super) enum TurnResult<'a> {
    Passed {
        pass: &'a Pass,
        phase: Phase,
        settings: &'a Settings,
        is_rewrite_expected: bool,
        rewrites: PerDirectory<RewriteCounts>,
        repaired_in: PerDirectory<Option<Duration>>,
    },
    /// It could not observe the node: the report before it holds, with `why` as what is missing.
    Unchanged { before: &'a TurnReport, why: String, phase: Option<Phase> },
}

/// Returns the report of a turn; `known` is none if it ended before it observed anything.
pub(super) fn report(result: TurnResult<'_>, known: Option<&Known>, watch: WatchMode) -> TurnReport {
    let (is_pass, of_result) = match result {
        TurnResult::Passed { pass, phase, settings, is_rewrite_expected, rewrites, repaired_in } => {
            let is_install = settings.options.mode == NodeMode::Install;
            let is_redirected = pass.left.judgement.is_redirected();
            // In mode leave: nothing is left to remove.
            let is_as_desired = if is_install { is_redirected } else { pass.left.is_done() };
            let (missing, notes) = sentences(is_as_desired, pass);
            let mut problems = pass.left.problems.iter();
            let deleted = problems.find(|it| matches!(it, Problem::Deleted(_)));
            let has_failed = |directory| pass.refused().any(|failed| failed.change.directory() == directory);
            let conflict = |directory| pass.conflicts.of(directory).as_ref().map(ToString::to_string);
            let report = TurnReport {
                missing,
                is_redirected: is_install.then_some(is_redirected),
                notes: notes.into_iter().chain(settings.notes.iter().cloned()).collect(),
                shape: auto(pass),
                deleted_directory: deleted.map(ToString::to_string),
                is_rewrite_expected,
                conflicts: PerDirectory::made(conflict),
                pass: Some(PassReport {
                    is_done: pass.left.is_done(),
                    has_changed: pass.applied.done > 0,
                    programs_failed: has_failed(Directory::Programs),
                    conf_failed: has_failed(Directory::Conf),
                    rewrites,
                    repaired_in,
                }),
                phase,
                ..TurnReport::default()
            };
            (true, report)
        }
        TurnResult::Unchanged { before, why, phase } => {
            let phase = phase.unwrap_or(before.phase);
            let (missing, before) = (vec![why], before.clone());
            (
                false,
                TurnReport {
                    missing,
                    phase,
                    pass: None,
                    is_redirected: None,
                    kubeconfig_failed: false,
                    ..before
                },
            )
        }
    };
    let report = TurnReport { is_notified: watch == WatchMode::Inotify, ..of_result };
    let Some(Known { kubeconfig, environment, backend }) = known else { return report };
    let failed = kubeconfig.as_ref().err().filter(|_| is_pass).cloned();
    TurnReport {
        missing: report.missing.into_iter().chain(failed).collect(),
        token_expires: kubeconfig.as_ref().ok().and_then(|it| it.as_ref()?.expires),
        kubeconfig_failed: kubeconfig.is_err(),
        istio: Some(environment.istio),
        backend: Some(backend.clone()),
        notes: environment.notes(report.notes),
        ..report
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

/// Returns where `shape: auto` puts the entry, and why.
fn auto(pass: &Pass) -> Option<String> {
    pass.left.auto.as_ref().map(|auto| format!("shape: auto: {}", auto.reason))
}

/// Returns a change that is left, with the error of its last attempt and what to do about it.
fn still_to_do(change: &Change, pass: &Pass) -> String {
    match pass.failed().find(|failed| failed.change == *change) {
        Some(failed) => format!("still to do: {change}: {}", failed.with_hint()),
        None => format!("still to do: {change}"),
    }
}
