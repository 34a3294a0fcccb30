//! A histogram of durations, for the metrics.

use std::time::Duration;

/// The upper bounds of the buckets in microseconds: an ADD takes some milliseconds, or as long as it waits for its facts
/// and for ztunnel.
pub(crate) const CALL_BOUNDS: [u64; 12] =
    [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 500_000, 2_000_000, 10_000_000];

/// The same for what begins with a pod: the API server's times have whole seconds, and a repair takes some hundred
/// milliseconds, or as long as a pod ran before Gybe.
pub(crate) const POD_BOUNDS: [u64; 9] =
    [250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 15_000_000, 30_000_000, 60_000_000];

/// Durations by bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Microseconds.
    pub bounds: &'static [u64],
    /// The number of durations in the bucket of each bound, not cumulative.
    pub counts: Vec<u64>,
    pub count: u64,
    /// Microseconds.
    pub sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new(&CALL_BOUNDS)
    }
}

impl Histogram {
    fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], count: 0, sum: 0 }
    }

    /// Returns an empty histogram with the bounds of pods.
    pub(crate) fn of_pods() -> Self {
        Self::new(&POD_BOUNDS)
    }

    pub(crate) fn record(&mut self, took: Duration) {
        self.put(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    pub(crate) fn put(&mut self, micros: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(micros);
        let at = self.bounds.partition_point(|bound| *bound < micros);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
    }
}
