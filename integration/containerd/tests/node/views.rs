//! What containerd has loaded, looked at all the time: when each conf was known to be in force.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use gybe_containerd_tests::{Cri, Node};

use crate::ground::until;
use crate::state::State;

/// A look costs 2.x a STATUS of each plugin.
const PAUSE: Duration = Duration::from_millis(150);

/// At that time at the latest, this conf was in force.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) since: Instant,
    pub(crate) state: State,
}

/// Looks while `work` goes on.
pub(crate) fn watched<T>(node: &Node, work: impl FnOnce() -> T) -> (T, Vec<View>) {
    let cri = node.connect().unwrap();
    thread::scope(|scope| {
        let (over, is_over) = channel::<()>();
        let looking = scope.spawn(move || {
            let mut views: Vec<View> = Vec::new();
            loop {
                let state = loaded(&cri);
                if views.last().is_none_or(|last| last.state != state) {
                    views.push(View { since: Instant::now(), state });
                }
                if is_over.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                    return views;
                }
            }
        });
        let done = work();
        drop(over);
        (done, looking.join().unwrap())
    })
}

/// What is in force now. There is always something, and the last load went well.
pub(crate) fn loaded(cri: &Cri) -> State {
    let loaded = cri.loaded().unwrap();
    assert_eq!(loaded.outcome, "OK", "a conf directory that does not load");
    State::of(&loaded.conflist.expect("a network for pods"))
}

/// Returns when this conf, or one after it, is in force.
pub(crate) fn until_loaded(node: &Node, state: State) {
    until("the conf's loading", || (loaded(&node.cri) >= state).then_some(()));
}

/// Nothing that containerd ever tried to load failed to.
pub(crate) fn assert_always_loadable(node: &Node) {
    let log = node.containerds_log().unwrap();
    let complaint =
        log.lines().find(|line| line.contains("failed to load cni") || line.contains("failed to reload cni"));
    assert_eq!(complaint, None);
}
