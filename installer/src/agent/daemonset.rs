//! Whether our DaemonSet is there. That it is gone is believed only of one that was there: it may have
//! another name than ours, and then it never is.

use super::label::Home;
use crate::agent::cluster::{Fate, daemonset_fate};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Its name, as the manifests and our rights have it.
const NAME: &str = "gybe-node";
/// The kubelet gives us thirty seconds to end, and there may be two questions in them, before we leave.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two questions while nobody answers. Milliseconds.
const MINUTE: u16 = 60_000;

/// Ours, and whether this process has seen it.
#[derive(Debug)]
pub(super) struct DaemonSet<'a> {
    home: Option<&'a Home>,
    namespace: String,
    was_there: AtomicBool,
}

impl<'a> DaemonSet<'a> {
    pub(super) fn new(home: Option<&'a Home>, namespace: &str) -> Self {
        Self { home, namespace: namespace.to_owned(), was_there: AtomicBool::new(false) }
    }

    /// Asks until somebody has answered, or `stop` is readable. Who is refused may be let in yet.
    pub(super) fn look(&self, stop: BorrowedFd<'_>) {
        while let Some(Fate::Unknown(_) | Fate::Refused(_)) = self.ask() {
            match poll(&mut [PollFd::new(stop, PollFlags::POLLIN)], PollTimeout::from(MINUTE)) {
                Ok(0) | Err(_) => {}
                Ok(_) => return,
            }
        }
    }

    /// What has become of it; none where there is no cluster.
    pub(super) fn fate(&self) -> Option<Fate> {
        let fate = self.ask()?;
        if fate == Fate::Gone && !self.was_there.load(Ordering::Acquire) {
            return Some(Fate::Unknown(format!("{NAME} was not there while the agent ran, either")));
        }
        Some(fate)
    }

    fn ask(&self) -> Option<Fate> {
        let fate = daemonset_fate(&self.home?.cluster, &self.namespace, NAME, Instant::now() + PATIENCE);
        if fate == Fate::Present {
            self.was_there.store(true, Ordering::Release);
        }
        Some(fate)
    }
}
