//! How long to wait before the API server is tried again. Pure, but for the dice.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The first wait, and the longest.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);

/// A server may ask for more than we would wait, and for so much at the most: an agent that sleeps
/// longer misses that the server is back.
const OBEYED: Duration = Duration::from_secs(60);

/// A watch that was open for less did not go well, however it ended.
const STEADY: Duration = Duration::from_secs(5);

/// How often in a row it went wrong.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// A watch has ended that was open for so long, or was never opened: however long that took to be
    /// refused, it did not go well.
    pub(super) fn ended(&mut self, open: Option<Duration>) {
        if open.is_some_and(|open| open >= STEADY) {
            self.failures = 0;
        }
    }

    /// How often it went wrong since it last went well.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// It went wrong: how long to wait. Thousands of agents lose the same server at the same moment, so
    /// each waits somewhere between the half and the whole of its time.
    pub(super) fn next(&mut self, asked_for: Option<Duration>) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let ours = whole.mul_f64(0.5 + dice() / 2.0);
        asked_for.map_or(ours, |theirs| theirs.min(OBEYED).mul_f64(1.0 + dice() / 10.0).max(ours))
    }
}

/// A number from 0 to 1. The keys of std's hash maps are drawn at random; nobody is to guess or to
/// gain anything here.
pub(super) fn dice() -> f64 {
    let drawn = RandomState::new().build_hasher().finish() >> 32;
    f64::from(u32::try_from(drawn).unwrap_or_default()) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_are_never_nothing() {
        let mut backoff = Backoff::default();
        for failure in 0..40 {
            let (wait, whole) = (backoff.next(None), FIRST * 2u32.pow(failure.min(8)));
            assert!(wait >= whole.min(LONGEST) / 2 && wait <= whole.min(LONGEST), "{failure}: {wait:?}");
        }
        for open in [None, Some(Duration::ZERO), Some(Duration::from_millis(4_999))] {
            backoff.ended(open);
            assert!(backoff.failures() >= 40, "{open:?} is no success");
        }
        backoff.ended(Some(STEADY));
        assert!(backoff.next(None) <= FIRST);
    }

    #[test]
    fn agents_do_not_come_back_all_at_once() {
        let waits: std::collections::BTreeSet<_> = (0..50).map(|_| Backoff::default().next(None)).collect();
        assert!(waits.len() > 25, "{waits:?}");
    }

    #[test]
    fn a_server_that_asks_for_time_gets_it_up_to_a_bound() {
        for (asked, least, most) in [(0, 0, 1), (1, 1, 2), (10, 10, 11), (86_400, 60, 66)] {
            let wait = Backoff::default().next(Some(Duration::from_secs(asked)));
            assert!(wait >= Duration::from_secs(least) && wait <= Duration::from_secs(most), "{wait:?}");
        }
    }
}
