//! The state of the conflist, and which states containerd has loaded at which time.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use gybe_containerd_tests::conflist::REVISION;
use gybe_containerd_tests::{Cri, Node};
use serde_json::Value;

use crate::fixture::wait_for;

/// Between two observations: containerd 2.x runs a STATUS of each plugin for one.
const INTERVAL: Duration = Duration::from_millis(150);

/// The state of a conflist. The order is that of time: the primary plugin writes a revision, then the agent adds
/// Gybe to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConflistState {
    pub(crate) revision: u64,
    pub(crate) has_gybe: bool,
}

impl ConflistState {
    pub(crate) fn of(conflist: &Value) -> ConflistState {
        let plugins = conflist["plugins"].as_array().unwrap();
        ConflistState {
            revision: conflist[REVISION].as_u64().unwrap(),
            has_gybe: plugins.iter().any(|plugin| plugin["type"] == "gybe-cni"),
        }
    }
}

/// A state that containerd had loaded at `since` at the latest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observation {
    pub(crate) since: Instant,
    pub(crate) state: ConflistState,
}

/// Observes the loaded conflist while `work` runs.
pub(crate) fn while_observing<T>(node: &Node, work: impl FnOnce() -> T) -> (T, Vec<Observation>) {
    let cri = node.connect().unwrap();
    thread::scope(|scope| {
        let (end, is_over) = channel::<()>();
        let observer = scope.spawn(move || {
            let mut observations: Vec<Observation> = Vec::new();
            loop {
                let state = loaded_state(&cri);
                if observations.last().is_none_or(|last| last.state != state) {
                    observations.push(Observation { since: Instant::now(), state });
                }
                if is_over.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return observations;
                }
            }
        });
        let result = work();
        drop(end);
        (result, observer.join().unwrap())
    })
}

/// Returns the state of the loaded conflist. Asserts that one is loaded and that the last attempt succeeded.
pub(crate) fn loaded_state(cri: &Cri) -> ConflistState {
    let loaded = cri.loaded_network().unwrap();
    assert_eq!(loaded.outcome, "OK", "containerd cannot load the conf directory");
    ConflistState::of(&loaded.conflist.expect("a network for pods"))
}

/// Waits until containerd has loaded this state or a later one.
pub(crate) fn wait_until_loaded(node: &Node, state: ConflistState) {
    wait_for("loading the conflist", || (loaded_state(&node.cri) >= state).then_some(()));
}

/// Asserts that no attempt of containerd to load the conf directory failed.
pub(crate) fn assert_every_load_succeeded(node: &Node) {
    let log = node.containerd_log().unwrap();
    let failure =
        log.lines().find(|line| line.contains("failed to load cni") || line.contains("failed to reload cni"));
    assert_eq!(failure, None);
}
