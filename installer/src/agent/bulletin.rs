//! What the healing loop posts after each turn, for health and metrics to read: a value behind a lock
//! that nobody holds for longer than a copy takes.

use super::incumbent::IstioAgent;
use crate::host::conflict::RewriteCounts;
use crate::host::desired::Confirmed;
use crate::host::directory::PerDirectory;
use crate::probe::node_backend::NodeBackend;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The last posted.
#[derive(Debug, Default)]
pub(crate) struct Bulletin(Mutex<Posted>);

/// How the node stands, and what was done to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Posted {
    /// When the last turn ended.
    pub(crate) turned: Option<Instant>,
    /// In or out.
    pub(crate) stage: Stage,
    /// What is not as wanted, in sentences.
    pub(crate) missing: Vec<String>,
    /// Since when something is not; none before all was as wanted once.
    pub(crate) missing_since: Option<Instant>,
    /// Whether all was as wanted once.
    pub(crate) was_well: bool,
    /// A directory that is mounted here and was deleted on the host, in a sentence.
    pub(crate) cut_off: Option<String>,
    /// What stands in nobody's way, and should be known.
    pub(crate) notes: Vec<String>,
    /// What is wrong with the ConfigMap, while that from before holds.
    pub(crate) settings: Option<String>,
    /// The setting of that name.
    pub(crate) plugin_dir: Confirmed,
    /// Where somebody keeps undoing it, and who, in sentences.
    pub(crate) fights: PerDirectory<Option<String>>,
    /// Whether the kernel tells of changes; if not, they are looked for.
    pub(crate) is_told: bool,
    /// When the token in the kubeconfig ends.
    pub(crate) token_ends: Option<SystemTime>,
    /// What is known of istio-cni's agent.
    pub(crate) istio: Option<IstioAgent>,
    /// What writes the rules here.
    pub(crate) backend: Option<NodeBackend>,
    /// What was done, since the start.
    pub(crate) counts: Counts,
}

/// In or out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stage {
    /// Nothing is known yet.
    #[default]
    Starting,
    /// To be in the chain.
    In,
    /// On the way out.
    Leaving,
    /// Out of the chain; what stays is there for sandboxes that live.
    Left {
        /// Whether the plugin's program stays.
        plugin_stays: bool,
    },
}

/// What was done, since the start.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Counts {
    /// Turns of the loop.
    pub(crate) turns: u64,
    /// Passes that brought the node to what is wanted, or found it so at the start.
    pub(crate) successes: u64,
    /// Passes in which a program could not be placed.
    pub(crate) program_failures: u64,
    /// Turns in which the kubeconfig could not be kept.
    pub(crate) kubeconfig_failures: u64,
    /// Passes in which the conf could not be written.
    pub(crate) conf_failures: u64,
    /// What others undid in each directory, and we put back.
    pub(crate) healing: PerDirectory<Healed>,
}

/// What others undid in one directory, and we put back, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Healed {
    /// How often they did, as far as it was seen, and how often we did.
    pub(crate) tally: RewriteCounts,
    /// How long it took from the wake-up on, all together.
    pub(crate) took: Duration,
    /// The longest of them.
    pub(crate) longest: Duration,
    /// How often it became a fight.
    pub(crate) fights: u64,
}

/// A single rewrite is repaired in a fraction of it, and does not make the agent unready.
const PASSING: Duration = Duration::from_secs(1);

impl Posted {
    /// Notes since when it is as it is, to be called when `missing` is.
    pub(crate) fn stamp(&mut self, now: Instant) {
        self.was_well |= self.missing.is_empty();
        self.missing_since = match self.missing_since {
            _ if self.missing.is_empty() || !self.was_well => None,
            Some(since) => Some(since),
            None => Some(now),
        };
    }

    /// What is not as wanted. Outside a conflict, what has been so for a moment only is left out; in a
    /// conflict such moments follow each other, and pods start in each of them.
    pub(crate) fn lacks(&self) -> &[String] {
        let is_conflict = self.fights != PerDirectory::default();
        let is_passing = !is_conflict && self.missing_since.is_some_and(|since| since.elapsed() < PASSING);
        if is_passing { &[] } else { &self.missing }
    }
}

impl Bulletin {
    pub(crate) fn read(&self) -> Posted {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn post(&self, posted: &Posted) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(posted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f05_in_a_conflict_there_is_no_grace_period() {
        let now = Instant::now();
        let mut status = Posted::default();
        status.stamp(now);
        status.missing = vec!["still to do: write 10.conflist".to_owned()];
        status.stamp(now);
        assert!(status.lacks().is_empty(), "a single rewrite");
        status.fights.conf = Some("our entry is undone again and again".to_owned());
        assert_eq!(status.lacks(), status.missing);
        status.missing.clear();
        status.stamp(now);
        assert!(status.lacks().is_empty(), "the entry stands");
    }
}
