//! Whether this agent leads (`leader`), shared by its threads.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// It has not led yet.
    #[default]
    Waits,
    Leads {
        since: Instant,
    },
    /// It has led, and a newer agent leads now; this one still knows the node's pods, and leads again when that one
    /// ends.
    HandedOver {
        /// Whether it was ready then.
        was_ready: bool,
    },
}

impl Role {
    pub(crate) fn leads() -> Self {
        Self::Leads { since: Instant::now() }
    }
}

#[derive(Debug, Default)]
pub(crate) struct SharedRole(Mutex<Role>);

impl SharedRole {
    pub(crate) fn read(&self) -> Role {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, role: Role) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = role;
    }
}
