//! What the node's probe had found out when the installer wrote the entry: where to begin when nothing
//! is known, and never a decision. A kernel is changed by a reboot, an entry only once the agent runs
//! again: an answer that were taken at its word would fail every pod of the time between.

use super::entry::Entry;
use gybe_netfilter::backend::BackendKind;
use serde_json::{Value, json};

/// Which backend, on which kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probed {
    /// None for a word of a version to come.
    pub backend: Option<BackendKind>,
    /// `uname -r`.
    pub kernel: String,
}

impl Probed {
    pub(super) fn read(entry: &mut Entry<'_>) -> Self {
        let word = entry.text("backend");
        let backend = BackendKind::ALL.into_iter().find(|kind| kind.name() == word);
        Self { backend, kernel: entry.text("kernel") }
    }

    /// As an entry has it; nothing when nothing is known.
    pub(super) fn to_json(&self) -> Option<Value> {
        let backend = self.backend?.name();
        Some(json!({ "backend": backend, "kernel": self.kernel }))
    }

    /// The backend to try first on this kernel.
    #[must_use]
    pub fn on(&self, kernel: &str) -> Option<BackendKind> {
        self.backend.filter(|_| !kernel.is_empty() && self.kernel == kernel)
    }
}
