//! A histogram of durations, for the metrics.

/// The upper bounds of the buckets in microseconds: an ADD takes some milliseconds, or as long as it waits for its facts
/// and for ztunnel.
pub(crate) const BOUNDS: [u64; 12] =
    [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 500_000, 2_000_000, 10_000_000];

/// Durations by bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// The number of durations in the bucket of each of `BOUNDS`, not cumulative.
    pub counts: [u64; BOUNDS.len()],
    pub count: u64,
    /// Microseconds.
    pub sum: u64,
}

impl Histogram {
    pub(crate) fn put(&mut self, micros: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(micros);
        let at = BOUNDS.partition_point(|bound| *bound < micros);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
    }
}
