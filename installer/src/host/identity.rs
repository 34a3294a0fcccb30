//! The identity of a file and of its last change: while both are equal, the file does not have to be read again.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Device, inode and time of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    file: (u64, u64),
    changed: (i64, i64),
}

impl Identity {
    pub(crate) fn of(there: &Metadata) -> Self {
        Self { file: (there.dev(), there.ino()), changed: (there.ctime(), there.ctime_nsec()) }
    }
}
