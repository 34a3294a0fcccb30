//! When to try again: at once for findings that are gone, ever more seldom for those that stay doubtful. Pure.

use gybe_netfilter::choose::flawless;
use gybe_netfilter::probe::Capabilities;
use std::time::{Duration, Instant};

/// Between two trials, however often pods fail: each takes some tenths of a second of a processor.
const FLOOR: Duration = Duration::from_secs(5);
/// What does not work is asked again after as long as the plugin believes it.
const FIRST: Duration = Duration::from_secs(30);
/// A kernel that lacks something gets it by a module being loaded, and nobody waits for that.
const LONGEST: Duration = Duration::from_secs(600);

/// What others find in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// Every backend's findings, to be believed.
    Complete,
    /// With something that does not work, another kernel's or version's, or not of every backend.
    Doubtful,
    /// Nothing.
    Gone,
}

/// What was tried last, and how long it will do.
#[derive(Debug)]
pub(super) struct Rhythm {
    last: Instant,
    pause: Duration,
}

impl Rhythm {
    pub(super) fn start(found: &Capabilities, now: Instant) -> Self {
        let mut rhythm = Self { last: now, pause: FIRST };
        rhythm.tried(Some(found), now);
        rhythm
    }

    /// When the next trial is due; never, while all is well.
    pub(super) fn due(&self, kept: &Kept) -> Option<Instant> {
        match kept {
            Kept::Complete => None,
            Kept::Doubtful => Some(self.last + self.pause),
            Kept::Gone => Some(self.last + FLOOR),
        }
    }

    /// Takes in what was found; nothing, when it could not be tried.
    pub(super) fn tried(&mut self, found: Option<&Capabilities>, now: Instant) {
        let flawless = found.is_some_and(is_flawless);
        self.pause = if flawless { FIRST } else { (self.pause * 2).min(LONGEST) };
        self.last = now;
    }
}

/// Is there nothing to try again for?
pub(super) fn is_flawless(found: &Capabilities) -> bool {
    found.backends.values().all(flawless)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::backend::BackendKind;
    use gybe_netfilter::probe::{Finding, Profile, Refusal};

    fn found(finding: &Finding) -> Capabilities {
        let findings = [(Profile::V4, finding.clone())].into_iter().collect();
        Capabilities {
            backends: [(BackendKind::Nft, findings)].into_iter().collect(),
            ..Capabilities::default()
        }
    }

    #[test]
    fn what_is_forgotten_is_tried_again_soon_but_not_for_every_failing_pod() {
        let now = Instant::now();
        let rhythm = Rhythm::start(&found(&Finding::Works), now);
        assert_eq!(rhythm.due(&Kept::Complete), None);
        assert_eq!(rhythm.due(&Kept::Gone), Some(now + FLOOR));
    }

    #[test]
    fn what_stays_broken_is_tried_ever_more_seldom_until_it_works() {
        let now = Instant::now();
        let mut rhythm = Rhythm::start(&found(&Finding::Refused(Refusal::default())), now);
        let pauses = (0..6).map(|_| {
            let due = rhythm.due(&Kept::Doubtful).unwrap() - rhythm.last;
            rhythm.tried(None, now);
            due.as_secs()
        });
        assert_eq!(pauses.collect::<Vec<_>>(), [60, 120, 240, 480, 600, 600]);
        rhythm.tried(Some(&found(&Finding::Works)), now);
        assert_eq!(rhythm.due(&Kept::Doubtful), Some(now + FIRST));
    }
}
