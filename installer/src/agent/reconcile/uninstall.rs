//! The uninstall by the agent: the grace period of the plugin, and the uninstall as the agent ends.

use super::{Reconciler, Turn};
use crate::agent::status::Phase;
use crate::host::settings::{NodeMode, ProgramRemoval};
use crate::log::Level;
use serde_json::json;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long the agent tries to remove its entry at its end, also during a conflict. Its pod has 360 s
/// (`terminationGracePeriodSeconds`), of which up to 8 s may have passed by then: the agent responds to queries that wait
/// for a pod, and queries the API server for the DaemonSet. The rest is for the grace period of the programs.
const END_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the agent waits after the grace period for the last sandbox that needs the plugin.
const SANDBOX_TIMEOUT: Duration = Duration::from_secs(20);

/// The time for which the plugin stays installed after its entry has been removed: an ADD that began with the entry has
/// no cached result until it ends.
#[derive(Debug)]
pub(super) struct GracePeriod {
    pub(super) length: Duration,
    /// When our entry was removed.
    out_since: Option<Instant>,
}

impl GracePeriod {
    pub(super) fn new(length: Duration) -> Self {
        Self { length, out_since: None }
    }

    /// Returns whether the programs may be removed now.
    pub(super) fn programs(&self, now: Instant) -> ProgramRemoval {
        match self.left(now) {
            Some(Duration::ZERO) => ProgramRemoval::Now,
            _ => ProgramRemoval::Deferred,
        }
    }

    /// Returns the remaining time; none while our entry is installed.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.out_since.map(|since| self.length.saturating_sub(now.saturating_duration_since(since)))
    }

    /// Ends the period without removing programs, because the settings request an installation.
    pub(super) fn cancel(&mut self) {
        self.out_since = None;
    }

    /// Records a pass. A pass that changed a conf file starts the period again.
    pub(super) fn passed(&mut self, is_out: bool, conf_changed: bool, now: Instant) {
        self.out_since = match self.out_since {
            Some(since) if is_out && !conf_changed => Some(since),
            _ if is_out => Some(now),
            _ => None,
        };
    }
}

impl Reconciler<'_> {
    /// Removes our entry before the agent ends, and then the programs, in as many turns as the time allows.
    /// Returns at once when `stop` is readable. Reports whether nothing stays.
    pub(crate) fn uninstall(&mut self, stop: BorrowedFd<'_>) -> bool {
        self.settings.current.options.mode = NodeMode::Leave;
        let started = Instant::now();
        loop {
            let turn: Turn = self.reconcile(Instant::now());
            let next = self.publish(turn);
            let (phase, passed) = (self.published.status.report.phase, started.elapsed());
            let left = match phase {
                Phase::Uninstalled { kept: None } => return true,
                Phase::Uninstalled { .. } => END_TIMEOUT + self.grace_period.length + SANDBOX_TIMEOUT,
                _ => END_TIMEOUT,
            };
            let left = left.saturating_sub(passed);
            if left.is_zero() {
                self.log_what_stays(phase);
                return false;
            }
            if self.wait(next.within(left), Some(stop)) {
                return false;
            }
        }
    }

    fn log_what_stays(&self, phase: Phase) {
        if let Phase::Uninstalled { kept: Some(why) } = phase {
            let hint = "run gybe uninstall on the node when it has been drained, or when these pods are gone";
            let fields = json!({ "why": why.to_string(), "hint": hint });
            return self.log.event(Level::Warn, "gybe node: programs stay on this node", fields);
        }
        let hint = "to take the node out of the chain, run gybe uninstall on it";
        let fields = json!({ "missing": self.published.status.report.missing, "hint": hint });
        self.log.event(Level::Error, "gybe node: no time left to remove the entry from the chain", fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::settings::GRACE_PERIOD;

    #[test]
    fn f29_the_plugin_outlives_the_conf_by_the_grace_period() {
        let (mut period, start) = (GracePeriod::new(GRACE_PERIOD), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(period.programs(start), ProgramRemoval::Deferred, "not out yet");
        period.passed(true, true, start);
        assert_eq!(period.programs(after(299)), ProgramRemoval::Deferred);
        period.passed(true, false, after(299));
        assert_eq!(period.left(after(299)), Some(Duration::from_secs(1)));
        assert_eq!(period.programs(after(300)), ProgramRemoval::Now);
        period.passed(true, true, after(400));
        assert_eq!(
            period.programs(after(699)),
            ProgramRemoval::Deferred,
            "another program restored the conf, and it was removed again"
        );
        period.passed(false, false, after(800));
        assert_eq!(period.left(after(9000)), None, "the period runs only while our entry is out");
        period.passed(true, false, after(9000));
        period.cancel();
        assert_eq!(period.programs(after(99_000)), ProgramRemoval::Deferred);
    }
}
