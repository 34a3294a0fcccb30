//! A socket of the agent's, and that it goes on standing: without them every ADD of a meshed pod is
//! refused, and an uninstall, or whoever cleans up `/run`, may take them away at any time.

use super::NodeError;
use super::place::{Place, PlaceError};
use crate::error::chain;
use crate::log::Journal;
use nix::sys::socket::{Backlog, SockType, listen};
use serde_json::json;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long nobody comes before it is looked whether the socket stands.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// A socket in its place. Each has one thread, which hears and keeps it.
#[derive(Debug)]
pub(crate) struct Socket<S> {
    pub(crate) open: S,
    place: Place,
    path: PathBuf,
    kind: SockType,
}

impl<S: From<OwnedFd>> Socket<S> {
    /// One that blocks nobody; of a stream's it listens.
    pub(crate) fn open(path: &Path, kind: SockType) -> Result<Self, PlaceError> {
        let (place, socket) = Place::take(path, kind, |socket| match kind {
            // 110 pods may start at once; the kernel bounds this by net.core.somaxconn.
            SockType::Stream => listen(socket, Backlog::MAXCONN),
            _ => Ok(()),
        })?;
        Ok(Self { open: socket.into(), place, path: path.to_owned(), kind })
    }

    /// Makes it anew where it was taken away. To be called when nobody has come for a while: who comes,
    /// comes through the place, and who is still in the old socket's queue is lost with it. Where it
    /// cannot be made, because the directory that is mounted here was deleted on the host, only another
    /// start helps; what stands in the way may go by itself, so it is tried each time.
    pub(crate) fn keep(&mut self, unserved: &UnsupportedPolicy, journal: &Journal) {
        let socket = self.path.display().to_string();
        let mut why = None;
        if !self.place.stands() {
            unserved.count_lost(&self.path, self.kind);
            match Self::open(&self.path, self.kind) {
                Ok(made) => {
                    *self = made;
                    let more = json!({ "socket": socket });
                    journal.tell("warn", "gybe node: its socket had been taken away; serving again", more);
                }
                Err(source) => why = Some(chain(&NodeError::Serve { path: self.path.clone(), source })),
            }
        }
        if unserved.note(&self.path, why.as_ref())
            && let Some(why) = why
        {
            let more = json!({ "socket": socket, "why": why });
            journal.tell("error", "gybe node: its socket does not stand, and cannot be made anew", more);
        }
    }
}

impl<S: AsFd> AsFd for Socket<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.open.as_fd()
    }
}

/// Why a socket does not stand, each by its path, and how often one was taken away, for who is asked about
/// the agent's health.
#[derive(Debug, Default)]
pub(crate) struct UnsupportedPolicy {
    why: Mutex<BTreeMap<PathBuf, String>>,
    facts_lost: AtomicU64,
    log_lost: AtomicU64,
}

impl UnsupportedPolicy {
    pub(crate) fn read(&self) -> Vec<String> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// How often each socket was taken away since the start.
    pub(crate) fn lost(&self) -> [(&'static str, u64); 2] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [("facts", count(&self.facts_lost)), ("log", count(&self.log_lost))]
    }

    /// Counts a socket that is gone, once until it stands again.
    fn count_lost(&self, socket: &Path, kind: SockType) {
        let is_known = self.why.lock().unwrap_or_else(PoisonError::into_inner).contains_key(socket);
        let counter = if kind == SockType::Stream { &self.facts_lost } else { &self.log_lost };
        if !is_known {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether that is news.
    fn note(&self, socket: &Path, why: Option<&String>) -> bool {
        let mut noted = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match why {
            Some(why) => noted.insert(socket.to_owned(), why.clone()),
            None => noted.remove(socket),
        };
        before.as_ref() != why
    }
}
