//! Which directories wake the loop.

use crate::host::desired::Shape;
use crate::host::settings::Settings;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// The host's directories may come yet; the other two are mounts, there from the start or never.
pub(super) fn watched(settings: &Settings) -> Vec<PathBuf> {
    let ground = &settings.ground;
    let mounts = [&ground.config, &ground.api.service_account];
    let mounts = mounts.into_iter().filter(|path| path.is_dir());
    let all = [&ground.places.conf, &ground.places.programs].into_iter().chain(mounts).cloned();
    all.chain(networks(settings)).collect()
}

/// A drop-in is in a directory below that of the conf files, where another's events are.
fn networks(settings: &Settings) -> BTreeSet<PathBuf> {
    let conf = &settings.ground.places.conf;
    let entries = (settings.choices.shape == Shape::DropIn).then(|| fs::read_dir(conf).ok()).flatten();
    let entries = entries.into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}
