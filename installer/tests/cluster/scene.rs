//! A healthy watch, and the check that it has recovered.

use crate::ground::{Ground, becomes, knows};
use gybe_installer::agent::cluster::{WatchState, WatchedPods};

pub(crate) fn well(state: &WatchState) -> bool {
    state.problem.is_none()
}

pub(crate) fn status(state: &WatchState) -> Option<u16> {
    state.problem.as_ref().and_then(|trouble| trouble.status)
}

/// Returns a cluster with one pod, and an open watch.
pub(crate) fn scene(test: &str) -> (Ground, WatchedPods) {
    let ground = Ground::new(test);
    ground.put("cart-0", "u0");
    let watched = ground.watched();
    ground.asked(|requests| requests.iter().any(|request| request.is_watch() && request.code == Some(200)));
    knows(&watched, "cart-0", "u0");
    (ground, watched)
}

/// Asserts that the watch has recovered: it reports a new pod.
pub(crate) fn is_back(ground: &Ground, watched: &WatchedPods, name: &str) {
    becomes(watched, well);
    ground.put(name, "new");
    knows(watched, name, "new");
    knows(watched, "cart-0", "u0");
}
