//! When something counts: a token or a certificate that is good now, or off by two days. The clock is
//! never set; what differs is what stands in the token or the certificate.

use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// From when until when something is good, seen from now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// Since yesterday, for a month.
    Now,
    /// From the day after tomorrow on, for a month: whoever reads it has a clock that is behind.
    InTwoDays,
    /// For a month, until the day before yesterday: a clock that is ahead, or nobody renewed it.
    UntilTwoDaysAgo,
}

impl Validity {
    /// The first and the last moment.
    pub fn window(self) -> (SystemTime, SystemTime) {
        let now = SystemTime::now();
        match self {
            Self::Now => (now - DAY, now + 30 * DAY),
            Self::InTwoDays => (now + 2 * DAY, now + 32 * DAY),
            Self::UntilTwoDaysAgo => (now - 32 * DAY, now - 2 * DAY),
        }
    }
}
