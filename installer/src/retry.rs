//! When to try again: a rate limit, an exponential backoff, and the time of a loop's next turn. Pure, but for the
//! jitter; and the clock that all processes of the node share.

use nix::time::{ClockId, clock_gettime};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

/// A token bucket: a burst of writes at once, after that a steady rate. Kept as the time at which the bucket is full
/// again.
#[derive(Debug)]
pub struct RateLimit {
    burst: u32,
    period: Duration,
    full_at: Option<Instant>,
}

impl RateLimit {
    /// A full bucket: allows `burst` writes at once, and one more each time `period` has passed.
    #[must_use]
    pub fn new(burst: u32, period: Duration) -> Self {
        Self { burst, period, full_at: None }
    }

    /// Returns how long it is until a write is allowed; zero when one is allowed now.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        let until_full = self.full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        until_full.saturating_sub(self.period * self.burst.saturating_sub(1))
    }

    /// Counts a write. A write that was not allowed leaves the bucket empty.
    pub fn count(&mut self, now: Instant) {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.period;
        self.full_at = Some(full_at.min(now + self.period * self.burst));
    }
}

/// An exponential backoff: each wait is twice as long as the one before, up to a bound.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    failures: u32,
}

/// A server may request a longer wait than the backoff's, but not more than this: an agent that waits longer notices
/// too late that the server is back.
const MAX_REQUESTED: Duration = Duration::from_secs(60);

impl Backoff {
    pub(crate) const fn new(first: Duration) -> Self {
        Self { first, failures: 0 }
    }

    /// Returns how many failures were counted since the last success.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure and returns how long to wait, `longest` at most.
    pub(crate) fn failed(&mut self, longest: Duration) -> Duration {
        let wait = self.first.saturating_mul(1 << self.failures.min(10)).min(longest);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// Counts a failure of a server and returns how long to wait: a random time between half the backoff's and the
    /// whole, since thousands of agents lose the same server at the same moment. `requested` is the server's
    /// `Retry-After`.
    pub(crate) fn failed_at_server(&mut self, longest: Duration, requested: Option<Duration>) -> Duration {
        let wait = self.failed(longest).mul_f64(0.5 + random() / 2.0);
        requested
            .map_or(wait, |requested| requested.min(MAX_REQUESTED).mul_f64(1.0 + random() / 10.0).max(wait))
    }
}

/// Returns a number from 0 to 1, drawn as std draws the keys of its hash maps; good enough for jitter.
pub(crate) fn random() -> f64 {
    let drawn = RandomState::new().build_hasher().finish() >> 32;
    f64::from(u32::try_from(drawn).unwrap_or_default()) / f64::from(u32::MAX)
}

/// Returns the time since the boot: the same in every process of the node, and never set back.
pub(crate) fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// When a loop takes its next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextTurn {
    /// When something changes, and after this time at the latest.
    OnChange(Duration),
    /// After this time, whatever changes meanwhile.
    After(Duration),
}

impl NextTurn {
    /// Returns the longest time until the turn.
    #[must_use]
    pub fn wait(self) -> Duration {
        match self {
            Self::OnChange(wait) | Self::After(wait) => wait,
        }
    }

    /// Returns the same turn, `limit` from now at the latest.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        match self {
            Self::OnChange(wait) => Self::OnChange(wait.min(limit)),
            Self::After(wait) => Self::After(wait.min(limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const FIRST: Duration = Duration::from_millis(200);
    const LONGEST: Duration = Duration::from_secs(30);

    #[test]
    fn a_burst_is_allowed_at_once_and_then_one_write_each_period() {
        let (mut limit, start) = (RateLimit::new(3, Duration::from_secs(2)), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        for n in 0..3 {
            assert_eq!(limit.wait(start), Duration::ZERO, "{n}");
            limit.count(start);
        }
        assert_eq!(limit.wait(start), Duration::from_secs(2));
        assert_eq!(limit.wait(after(1)), Duration::from_secs(1));
        assert_eq!(limit.wait(after(2)), Duration::ZERO);
        limit.count(after(2));
        assert_eq!(limit.wait(after(2)), Duration::from_secs(2));
        for n in 0..3 {
            assert_eq!(limit.wait(after(100)), Duration::ZERO, "full again: {n}");
            limit.count(after(100));
        }
        assert_eq!(limit.wait(after(100)), Duration::from_secs(2), "the bucket holds no more than the burst");
        limit.count(after(100));
        assert_eq!(limit.wait(after(100)), Duration::from_secs(2), "the bucket does not go below empty");
    }

    #[test]
    fn waits_double_up_to_a_bound_and_start_again_after_a_success() {
        let mut backoff = Backoff::new(FIRST);
        for failure in 0..40 {
            let whole = (FIRST * 2u32.pow(failure.min(8))).min(LONGEST);
            let wait = backoff.failed_at_server(LONGEST, None);
            assert!(wait >= whole / 2 && wait <= whole, "{failure}: {wait:?}");
        }
        backoff.succeeded();
        assert_eq!(backoff.failed(LONGEST), FIRST);
    }

    #[test]
    fn agents_do_not_all_return_to_a_server_at_the_same_time() {
        let waits: BTreeSet<_> =
            (0..50).map(|_| Backoff::new(FIRST).failed_at_server(LONGEST, None)).collect();
        assert!(waits.len() > 25, "{waits:?}");
    }

    #[test]
    fn a_server_that_requests_time_gets_it_up_to_a_bound() {
        for (requested, least, most) in [(0, 0, 1), (1, 1, 2), (10, 10, 11), (86_400, 60, 66)] {
            let wait = Backoff::new(FIRST).failed_at_server(LONGEST, Some(Duration::from_secs(requested)));
            assert!(wait >= Duration::from_secs(least) && wait <= Duration::from_secs(most), "{wait:?}");
        }
    }
}
