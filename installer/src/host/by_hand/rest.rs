//! The grace period: how long the plugin has to stay after the conf was changed. It is computed from the node's
//! files, so it also holds for a repeated call, for an agent that ended a moment ago, and for an entry that
//! another program removed.

use crate::host::settings::GRACE_PERIOD;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The remaining time; none when it is over. A file written by renaming changes the modification time of its
/// directory: of the conf directory, or of a network's own.
pub(super) fn left(conf: &Path, now: SystemTime) -> Option<Duration> {
    let networks = fs::read_dir(conf).into_iter().flatten().flatten();
    let networks = networks.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let all = networks.map(|entry| entry.path()).chain([conf.to_owned()]);
    let changed = all.filter_map(|path| path.metadata().ok()?.modified().ok()).max()?;
    // A clock that was set back makes it longer, which harms no pod.
    let over = changed.checked_add(GRACE_PERIOD)?;
    over.duration_since(now).ok().filter(|left| !left.is_zero())
}
