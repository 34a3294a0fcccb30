//! Whether somebody has to answer under istio-cni's name: its agent takes its program away when it
//! goes, and sandboxes that were made with it still ask it for their DEL. Pure, but for the look at
//! whose program it is.

use crate::host::conflist::{ISTIO, PluginChain};
use crate::host::image::PLUGIN;
use crate::host::observe::{CachedPlugins, Hash, ORIGINAL, ObservedState};
use crate::host::settings::StandIn;
use crate::pod::inside::holds;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Seek;
use std::path::Path;

/// Ours is two megabytes, and ten times that when it is built to be debugged.
const LARGEST: u64 = 64 << 20;

/// What stands under istio-cni's name, if it is our plugin, of whatever version: it is told from theirs
/// by its own name, which no other program has inside.
pub(crate) fn ours(programs: &Path) -> Option<Hash> {
    let path = programs.join(ISTIO);
    // Theirs is a hundred megabytes, and need not be read.
    let small = path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= LARGEST);
    let mut program = small.then(|| File::open(&path).ok()).flatten()?;
    if !holds(&program, PLUGIN.as_bytes()).ok()? {
        return None;
    }
    program.rewind().ok()?;
    Hash::of_all(program).ok()
}

/// What to do under istio-cni's name, where `ours` stands there. The look must have included the
/// living sandboxes.
#[must_use]
pub(crate) fn stand_in(seen: &ObservedState, ours: Option<Hash>) -> StandIn {
    let there = seen.programs.names.contains(OsStr::new(ISTIO));
    match (ours, is_needed(seen)) {
        (Some(hash), true) => StandIn::Ours(hash),
        (Some(hash), false) => StandIn::Obsolete(hash),
        (None, true) if !there => StandIn::IfAbsent,
        _ => StandIn::None,
    }
}

/// Where the cache cannot be read it is needed as long as there are traces of istio-cni: a chain that
/// names it, or one that did before it was replaced.
fn is_needed(seen: &ObservedState) -> bool {
    match &seen.cached {
        CachedPlugins::Named(plugins) => plugins.contains(ISTIO),
        CachedPlugins::Unknown => seen.conf.files.iter().any(|(name, file)| {
            let chain = file.content.as_ref().ok().and_then(|bytes| PluginChain::read(bytes).ok());
            let names_it = chain.is_some_and(|chain| chain.entry(ISTIO).is_some());
            names_it && (name.ends_in(ORIGINAL) || name.ends_in(".conflist"))
        }),
    }
}
