//! Whether somebody has to answer under istio-cni's name: its agent takes its program away when it
//! goes, and sandboxes that were made with it still ask it for their DEL. Pure.

use crate::image::Image;
use crate::install::conflist::{Chain, ISTIO};
use crate::install::seen::{Cached, ORIGINAL, Snapshot};
use crate::settings::{PLUGIN, StandIn};
use std::ffi::OsStr;

/// What to do under istio-cni's name. The look must have included that program, ours, and the living
/// sandboxes.
#[must_use]
pub(crate) fn stand_in(seen: &Snapshot, image: &Image) -> StandIn {
    let program = |name: &str| seen.programs.files.get(OsStr::new(name)).and_then(|it| it.hash.as_ref().ok());
    let there = seen.programs.files.contains_key(OsStr::new(ISTIO));
    // Ours of this version, or of the one that is about to be replaced.
    let ours = program(ISTIO).is_some_and(|hash| image.is_plugin(hash) || program(PLUGIN) == Some(hash));
    match (program(ISTIO).filter(|_| ours), is_needed(seen)) {
        (Some(_), true) => StandIn::Ours,
        (Some(hash), false) => StandIn::Over(*hash),
        (None, true) if !there => StandIn::IfAbsent,
        _ => StandIn::None,
    }
}

/// Where the cache cannot be read it is needed as long as there are traces of istio-cni: a chain that
/// names it, or one that did before it was replaced.
fn is_needed(seen: &Snapshot) -> bool {
    match &seen.cached {
        Cached::Named(plugins) => plugins.contains(ISTIO),
        Cached::Unknown => seen.conf.files.iter().any(|(name, file)| {
            let chain = file.content.as_ref().ok().and_then(|bytes| Chain::read(bytes).ok());
            let names_it = chain.is_some_and(|chain| chain.entry(ISTIO).is_some());
            names_it && (name.ends_in(ORIGINAL) || name.ends_in(".conflist"))
        }),
    }
}
