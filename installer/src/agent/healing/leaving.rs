//! When the last of us may go: some minutes after the conf, since an ADD that began under the old one
//! is in no cache until it ends.

use crate::host::settings::ProgramRemoval;
use std::time::{Duration, Instant};

/// The kubelet gives up on a sandbox after 4 minutes at the latest (docs/RULES.md, section 6.1).
pub const REST: Duration = Duration::from_secs(300);

/// Since when we are out of the chain.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) rest: Duration,
    out_since: Option<Instant>,
}

impl Leaving {
    pub(super) fn new(rest: Duration) -> Self {
        Self { rest, out_since: None }
    }

    /// What may go now.
    pub(super) fn burial(&self, now: Instant) -> ProgramRemoval {
        match self.rests(now) {
            Some(Duration::ZERO) => ProgramRemoval::Now,
            _ => ProgramRemoval::Deferred,
        }
    }

    /// How long it still has to stay; none while we are not out.
    pub(super) fn rests(&self, now: Instant) -> Option<Duration> {
        self.out_since.map(|since| self.rest.saturating_sub(now.saturating_duration_since(since)))
    }

    /// We are to be in.
    pub(super) fn stays(&mut self) {
        self.out_since = None;
    }

    /// After a pass: are we out? One that had to write the conf began it anew.
    pub(super) fn passed(&mut self, is_out: bool, wrote: bool, now: Instant) {
        self.out_since = match self.out_since {
            Some(since) if is_out && !wrote => Some(since),
            _ if is_out => Some(now),
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f29_the_plugin_outlives_the_conf_by_some_minutes() {
        let (mut leaving, start) = (Leaving::new(REST), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(leaving.burial(start), ProgramRemoval::Deferred, "not out yet");
        leaving.passed(true, true, start);
        assert_eq!(leaving.burial(after(299)), ProgramRemoval::Deferred);
        leaving.passed(true, false, after(299));
        assert_eq!(leaving.rests(after(299)), Some(Duration::from_secs(1)));
        assert_eq!(leaving.burial(after(300)), ProgramRemoval::Now);
        leaving.passed(true, true, after(400));
        assert_eq!(
            leaving.burial(after(699)),
            ProgramRemoval::Deferred,
            "somebody put the conf back, and it went again"
        );
        leaving.passed(false, false, after(800));
        assert_eq!(leaving.rests(after(9000)), None, "not out is not resting");
        leaving.passed(true, false, after(9000));
        leaving.stays();
        assert_eq!(leaving.burial(after(99_000)), ProgramRemoval::Deferred);
    }
}
