//! When to probe again: soon after the report was removed, with growing pauses while a finding does not work. Pure.

use crate::retry::Backoff;
use gybe_netfilter::probe::Capabilities;
use gybe_netfilter::probe::choose::flawless;
use std::time::{Duration, Instant};

/// The shortest pause, however often pods fail: a probe takes some tenths of a second of a processor.
const SHORTEST_PAUSE: Duration = Duration::from_secs(5);
/// How long after a probe with a finding that does not work the loop probes again; until then the plugin relies on
/// that finding.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause while a finding does not work: only a loaded kernel module changes it, and no pod waits for that.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The state of the stored report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportState {
    /// Findings about every backend, and all of them work.
    Complete,
    /// A finding does not work, a backend is missing, or the report is another kernel's or version's.
    Doubtful,
    Missing,
}

/// The last probe, and the pause after it.
#[derive(Debug)]
pub(super) struct Schedule {
    last: Instant,
    backoff: Backoff,
    pause: Duration,
}

impl Schedule {
    pub(super) fn new(found: &Capabilities, now: Instant) -> Self {
        let backoff = Backoff::new(FIRST_PAUSE);
        let mut schedule = Self { last: now, backoff, pause: FIRST_PAUSE };
        // Counted as a failure: the next pause after a finding that does not work is twice the first one.
        schedule.backoff.failed(LONGEST_PAUSE);
        schedule.probed(Some(found), now);
        schedule
    }

    /// Returns when the next probe is due; none while the report is complete.
    pub(super) fn due(&self, state: ReportState) -> Option<Instant> {
        match state {
            ReportState::Complete => None,
            ReportState::Doubtful => Some(self.last + self.pause),
            ReportState::Missing => Some(self.last + SHORTEST_PAUSE),
        }
    }

    /// Records the findings of a probe; none if the probe could not run.
    pub(super) fn probed(&mut self, found: Option<&Capabilities>, now: Instant) {
        if found.is_some_and(is_flawless) {
            self.backoff.succeeded();
        }
        self.pause = self.backoff.failed(LONGEST_PAUSE);
        self.last = now;
    }
}

/// Reports whether all findings work.
pub(super) fn is_flawless(found: &Capabilities) -> bool {
    found.backends.values().all(flawless)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::apply::backend::BackendKind;
    use gybe_netfilter::probe::{Finding, Profile, Refusal};

    fn found(finding: &Finding) -> Capabilities {
        let findings = [(Profile::V4, finding.clone())].into_iter().collect();
        Capabilities {
            backends: [(BackendKind::Nft, findings)].into_iter().collect(),
            ..Capabilities::default()
        }
    }

    #[test]
    fn a_removed_report_is_replaced_soon_but_not_for_every_failing_pod() {
        let now = Instant::now();
        let schedule = Schedule::new(&found(&Finding::Works), now);
        assert_eq!(schedule.due(ReportState::Complete), None);
        assert_eq!(schedule.due(ReportState::Missing), Some(now + SHORTEST_PAUSE));
    }

    #[test]
    fn pauses_grow_while_a_finding_does_not_work() {
        let now = Instant::now();
        let mut schedule = Schedule::new(&found(&Finding::Refused(Refusal::default())), now);
        let pauses = (0..6).map(|_| {
            let due = schedule.due(ReportState::Doubtful).unwrap() - schedule.last;
            schedule.probed(None, now);
            due.as_secs()
        });
        assert_eq!(pauses.collect::<Vec<_>>(), [60, 120, 240, 480, 600, 600]);
        schedule.probed(Some(&found(&Finding::Works)), now);
        assert_eq!(schedule.due(ReportState::Doubtful), Some(now + FIRST_PAUSE));
    }
}
