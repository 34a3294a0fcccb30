//! A token bucket: a burst at once, after that a steady rate.

use std::time::{Duration, Instant};

/// How many writes are allowed, kept as the time at which the bucket is full again.
#[derive(Debug)]
pub struct RateLimit {
    burst: u32,
    every: Duration,
    full_at: Option<Instant>,
}

impl RateLimit {
    /// Full: `burst` writes are allowed at once, and one more each time `every` has passed.
    #[must_use]
    pub fn new(burst: u32, every: Duration) -> Self {
        Self { burst, every, full_at: None }
    }

    /// How long until a write is allowed; zero when one is allowed now.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        let until_full = self.full_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        until_full.saturating_sub(self.every * self.burst.saturating_sub(1))
    }

    /// Counts a write. One that was made though none was allowed leaves the bucket empty.
    pub fn count(&mut self, now: Instant) {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.every;
        self.full_at = Some(full_at.min(now + self.every * self.burst));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(limit.wait(after(100)), Duration::from_secs(2), "and no fuller than full");
        limit.count(after(100));
        assert_eq!(limit.wait(after(100)), Duration::from_secs(2), "and no emptier than empty");
    }
}
