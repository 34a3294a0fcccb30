//! How long rules may be evaluated: a pod that may write rules can make them long.

use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Computing time of the calling thread. Other processes on a loaded node do not use it up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    until: Option<Duration>,
}

impl Budget {
    pub(crate) fn of(time: Duration) -> Self {
        Self { until: used().map(|used| used.saturating_add(time)) }
    }

    pub(crate) fn is_spent(self) -> bool {
        match (used(), self.until) {
            (Some(used), Some(until)) => used >= until,
            _ => true,
        }
    }
}

fn used() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from)
}
