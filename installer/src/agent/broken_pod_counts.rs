//! How often the agent has deleted and labelled pods, for its metrics.

use crate::cluster::PodChange;
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BrokenPodCounts {
    pub(crate) deleted: ResultCounts,
    pub(crate) labelled: ResultCounts,
}

/// The results that istio-cni's metrics distinguish.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ResultCounts {
    pub(crate) success: u64,
    /// The pod was left alone.
    pub(crate) skip: u64,
    pub(crate) fail: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SharedBrokenPodCounts(Mutex<BrokenPodCounts>);

impl SharedBrokenPodCounts {
    pub(crate) fn read(&self) -> BrokenPodCounts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, change: &PodChange<'_>, count: impl FnOnce(&mut ResultCounts)) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        count(match change {
            PodChange::Delete => &mut counts.deleted,
            PodChange::Label(_) => &mut counts.labelled,
        });
    }
}
