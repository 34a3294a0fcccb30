//! How long the plugin has to rest after the conf was changed. Read off the node, so that it holds for
//! the call repeated, for an agent that left a moment ago, and for whoever else took the entry out.

use crate::agent::REST;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The rest of it; none when it is over. Whatever is written there by renaming, as everybody does,
/// changes the time of its directory: of the conf directory, or of a network's own.
pub(super) fn left(conf: &Path, now: SystemTime) -> Option<Duration> {
    let networks = fs::read_dir(conf).into_iter().flatten().flatten();
    let networks = networks.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let all = networks.map(|entry| entry.path()).chain([conf.to_owned()]);
    let changed = all.filter_map(|path| path.metadata().ok()?.modified().ok()).max()?;
    // A clock that was set back makes it longer, and nobody's pod is worse for it.
    let over = changed.checked_add(REST)?;
    over.duration_since(now).ok().filter(|left| !left.is_zero())
}
