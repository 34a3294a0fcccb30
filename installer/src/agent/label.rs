//! The node's label, asked for now and then: there is a right to get the node, and none to watch it.

use crate::agent::cluster::{Cluster, node_labels};
use crate::error::chain;
use crate::log::Journal;
use crate::probe::node_backend::LABEL;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An operator sets a label and looks a minute later. Milliseconds.
const MINUTE: u16 = 60_000;
/// Until an answer comes; also how much longer the agent may take to end.
const PATIENCE: Duration = Duration::from_secs(3);

/// The cluster the agent is part of, and which part.
#[derive(Debug, Clone)]
pub struct Home {
    /// Whom to ask.
    pub cluster: Cluster,
    /// This node.
    pub node: String,
}

/// What the label says.
#[derive(Debug, Default)]
pub(crate) struct Label {
    known: Mutex<Known>,
    told: Condvar,
}

/// What is known of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Known {
    /// Nobody has answered yet.
    #[default]
    Nothing,
    /// There is none, or it says this.
    Says(Option<String>),
}

impl Label {
    /// What is known of it now.
    pub(crate) fn read(&self) -> Known {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, waited for as long as nothing is.
    pub(crate) fn wait(&self, at_most: Duration) -> Known {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.told.wait_timeout_while(known, at_most, |known| *known == Known::Nothing);
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    fn says(&self, label: Option<String>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Known::Says(label);
        self.told.notify_all();
    }

    /// Asks until `stop` is readable. While nobody answers, the last answer holds.
    pub(crate) fn follow(&self, home: &Home, stop: BorrowedFd<'_>, journal: &Journal) {
        let mut fault = String::new();
        loop {
            match node_labels(&home.cluster, &home.node, Instant::now() + PATIENCE) {
                Ok(mut labels) => {
                    fault.clear();
                    self.says(labels.remove(LABEL));
                }
                Err(why) => {
                    let cause = chain(&why);
                    if fault != cause {
                        let more = json!({ "cause": cause, "label": LABEL });
                        journal.tell("warn", "gybe node: the node's label cannot be read", more);
                    }
                    fault = cause;
                }
            }
            match poll(&mut [PollFd::new(stop, PollFlags::POLLIN)], PollTimeout::from(MINUTE)) {
                Ok(0) | Err(_) => {}
                Ok(_) => return,
            }
        }
    }
}
