//! The node's ambient pods with their open network namespaces, and which of them each connected ztunnel has. It decides
//! the next request for a connection by comparing the two, so a ztunnel that is slow, new, or takes the place of one
//! that ended receives what it lacks, and nothing waits in a queue.
//!
//! | | Receives |
//! |---|---|
//! | each ztunnel, first | its snapshot: every pod, with its namespace, or without one that is not known yet (keep) |
//! | the newest | every pod that is added or gets another namespace |
//! | each that has a pod | the pod's end |

use super::status::{ZtunnelCounts, ZtunnelStatus};
use gybe_netfilter::kernel::netns::Netns;
use gybe_plugin::facts::ambient::{AmbientPod, PodUid};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The ambient pods of the node. The server's threads and the callers share it.
#[derive(Debug, Default)]
pub struct AmbientPods(Mutex<State>);

/// Why a pod is not served by ztunnel.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    #[error("no ztunnel is connected; check the ztunnel pod of this node")]
    NotConnected,
    #[error("ztunnel did not answer in time")]
    NoAnswer,
    /// The text is ztunnel's.
    #[error("ztunnel refused the pod: {0:?}")]
    Refused(String),
    #[error("the pod was removed, or got another network namespace, before ztunnel answered")]
    Superseded,
}

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<PodUid, Entry>,
    /// The connections whose hello was received; the last one is the newest.
    connections: Vec<Connection>,
    generations: u64,
    counts: ZtunnelCounts,
}

/// A connected ztunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionId(u64);

/// A pod and one network namespace of it. Another namespace has another generation.
#[derive(Debug)]
struct Entry {
    pod: Arc<AmbientPod>,
    netns: Option<Arc<Netns>>,
    generation: u64,
    /// Since when the newest ztunnel has not acknowledged it.
    pending: Option<Instant>,
    waiters: Vec<Sender<Result<(), String>>>,
}

#[derive(Debug)]
struct Connection {
    id: ConnectionId,
    sent: BTreeMap<PodUid, Sent>,
    snapshot: Snapshot,
    /// Written when the pods have changed.
    wake: Arc<EventFd>,
}

/// What a ztunnel received about a pod.
#[derive(Debug, Clone, Copy)]
struct Sent {
    generation: u64,
    answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Awaited,
    Acknowledged,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Snapshot {
    Unfinished,
    /// The end was sent.
    Sent,
    Acknowledged,
}

/// A request to a ztunnel.
#[derive(Debug)]
pub(super) enum Request {
    Add { pod: Arc<AmbientPod>, netns: Arc<Netns>, generation: u64 },
    Keep { pod: Arc<AmbientPod>, generation: u64 },
    SnapshotSent,
    Del(PodUid),
}

impl AmbientPods {
    /// Adds a pod, and waits until a ztunnel has acknowledged it. A ztunnel that connects before the deadline is waited
    /// for. After an error the pod is as it was before, except that a namespace that was replaced stays forgotten.
    ///
    /// # Errors
    /// When no ztunnel acknowledges the pod before the deadline.
    pub fn add(&self, pod: AmbientPod, netns: Netns, deadline: Instant) -> Result<(), AddError> {
        let uid = pod.uid.clone();
        let (answer, added) = {
            let mut state = self.lock();
            let added = state.put(pod, Some(netns));
            (state.answer(&uid), added)
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let outcome = answer.recv_timeout(left).or_else(|why| match why {
            // It may have come since.
            RecvTimeoutError::Timeout => answer.try_recv().map_err(|_| why),
            RecvTimeoutError::Disconnected => Err(why),
        });
        let why = match outcome {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(text)) => AddError::Refused(text),
            Err(RecvTimeoutError::Disconnected) => return Err(AddError::Superseded),
            Err(RecvTimeoutError::Timeout) if self.lock().connections.is_empty() => AddError::NotConnected,
            Err(RecvTimeoutError::Timeout) => AddError::NoAnswer,
        };
        if let Some(generation) = added {
            self.lock().withdraw(&uid, generation);
        }
        Err(why)
    }

    /// Adds a pod that the kernel shows as enrolled, without waiting for an acknowledgement. A ztunnel that connects
    /// later keeps the pod although its namespace is not known yet.
    pub fn adopt(&self, pod: AmbientPod, netns: Option<Netns>) {
        self.lock().put(pod, netns);
    }

    /// Removes a pod and closes its namespace; reports whether it was there.
    pub fn remove(&self, uid: &PodUid) -> bool {
        self.lock().remove(uid)
    }

    pub fn status(&self) -> ZtunnelStatus {
        let (state, now) = (self.lock(), Instant::now());
        let pending = state.pods.values().filter_map(|entry| entry.pending);
        ZtunnelStatus {
            connected: state.connections.len(),
            is_snapshot_acknowledged: state
                .connections
                .last()
                .is_some_and(|newest| newest.snapshot == Snapshot::Acknowledged),
            pods: state.pods.len(),
            without_netns: state.pods.values().filter(|entry| entry.netns.is_none()).count(),
            pending: pending.clone().count(),
            longest_pending: pending.min().map(|since| now.saturating_duration_since(since)),
            counts: state.counts.clone(),
        }
    }

    /// Registers a ztunnel whose hello was received; it is the newest now.
    pub(super) fn connect(&self) -> Result<(ConnectionId, Arc<EventFd>), Errno> {
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let wake = Arc::new(wake);
        let mut state = self.lock();
        state.counts.connections += 1;
        let id = ConnectionId(state.counts.connections);
        let snapshot = Snapshot::Unfinished;
        state.connections.push(Connection { id, sent: BTreeMap::new(), snapshot, wake: Arc::clone(&wake) });
        state.judge_pending();
        Ok((id, wake))
    }

    /// Forgets a ztunnel. If it was the newest, the one before it receives what it lacks.
    pub(super) fn disconnect(&self, id: ConnectionId) {
        let mut state = self.lock();
        state.connections.retain(|connection| connection.id != id);
        state.judge_pending();
        state.wake_all();
    }

    /// Returns the next request for a connection, which counts as sent from now on.
    pub(super) fn next_request(&self, id: ConnectionId) -> Option<Request> {
        self.lock().next_request(id)
    }

    /// Records the response to a request of [`AmbientPods::next_request`].
    pub(super) fn answer(
        &self,
        id: ConnectionId,
        request: &Request,
        response: &Result<(), String>,
        took: Duration,
    ) {
        let mut state = self.lock();
        state.counts.answered(response.is_ok(), took);
        match request {
            Request::Add { pod, generation, .. } | Request::Keep { pod, generation } => {
                state.answered(id, &pod.uid, *generation, response);
            }
            Request::SnapshotSent => {
                if let Some(connection) = state.connection(id) {
                    connection.snapshot = Snapshot::Acknowledged;
                }
            }
            Request::Del(_) => {}
        }
    }

    /// Counts a connection that was closed because a response did not come in time.
    pub(super) fn count_late(&self) {
        self.lock().counts.late += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds a pod or its namespace; returns the generation of a new namespace. A known pod without a new namespace
    /// stays as it is, and is sent again if the newest ztunnel has refused it.
    fn put(&mut self, pod: AmbientPod, netns: Option<Netns>) -> Option<u64> {
        let uid = pod.uid.clone();
        let is_same = self.pods.get(&uid).is_some_and(|entry| match (&entry.netns, &netns) {
            (Some(before), Some(now)) => before.is_same_as(now),
            (_, None) => true,
            (None, Some(_)) => false,
        });
        if is_same {
            let newest = self.connections.last_mut();
            if let Some(newest) = newest
                && newest.sent.get(&uid).is_some_and(|sent| sent.answer == Answer::Refused)
            {
                newest.sent.remove(&uid);
            }
            self.wake_all();
            return None;
        }
        self.generations += 1;
        let (generation, netns) = (self.generations, netns.map(Arc::new));
        let entry = Entry { pod: Arc::new(pod), netns, generation, pending: None, waiters: Vec::new() };
        self.pods.insert(uid, entry);
        self.judge_pending();
        self.wake_all();
        Some(generation)
    }

    /// Returns where the answer about a pod arrives; it is there at once if the newest ztunnel has acknowledged the pod.
    fn answer(&mut self, uid: &PodUid) -> Receiver<Result<(), String>> {
        let (sender, receiver) = channel();
        if let Some(entry) = self.pods.get_mut(uid) {
            match entry.pending {
                None => drop(sender.send(Ok(()))),
                Some(_) => entry.waiters.push(sender),
            }
        }
        receiver
    }

    fn remove(&mut self, uid: &PodUid) -> bool {
        let was_there = self.pods.remove(uid).is_some();
        if was_there {
            self.wake_all();
        }
        was_there
    }

    /// Removes a pod unless it has got another namespace since this generation.
    fn withdraw(&mut self, uid: &PodUid, generation: u64) {
        if self.pods.get(uid).is_some_and(|entry| entry.generation == generation) {
            self.remove(uid);
        }
    }

    fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.id == id)
    }

    fn next_request(&mut self, id: ConnectionId) -> Option<Request> {
        let is_newest = self.connections.last().is_some_and(|newest| newest.id == id);
        let connection = self.connections.iter_mut().find(|connection| connection.id == id)?;
        let is_unfinished = connection.snapshot == Snapshot::Unfinished;
        if is_newest || is_unfinished {
            // First the pods for which a caller waits, then the others, in the order in which they came.
            let lacking = self.pods.values().filter(|entry| connection.lacks(entry));
            if let Some(entry) = lacking.min_by_key(|entry| (Reverse(entry.has_waiters()), entry.generation))
            {
                return Some(connection.send(entry));
            }
        }
        if is_unfinished {
            // A pod that is removed during the snapshot is ended after it: before, ztunnel only forgets its uid.
            connection.snapshot = Snapshot::Sent;
            return Some(Request::SnapshotSent);
        }
        let gone = connection.sent.keys().find(|uid| !self.pods.contains_key(uid)).cloned()?;
        connection.sent.remove(&gone);
        Some(Request::Del(gone))
    }

    fn answered(&mut self, id: ConnectionId, uid: &PodUid, generation: u64, response: &Result<(), String>) {
        let is_newest = self.connections.last().is_some_and(|newest| newest.id == id);
        let Some(connection) = self.connection(id) else { return };
        if let Some(sent) = connection.sent.get_mut(uid).filter(|sent| sent.generation == generation) {
            sent.answer = if response.is_ok() { Answer::Acknowledged } else { Answer::Refused };
        }
        let entry = self.pods.get_mut(uid).filter(|entry| entry.generation == generation);
        // A refusal counts if the newest refuses: another one may end soon.
        if let Some(entry) = entry.filter(|_| response.is_ok() || is_newest) {
            if response.is_ok() && is_newest {
                entry.pending = None;
            }
            for waiter in entry.waiters.drain(..) {
                // A waiter whose deadline has passed receives nothing.
                let _ = waiter.send(response.clone());
            }
        }
    }

    /// Judges for each pod whether the newest ztunnel has acknowledged it.
    fn judge_pending(&mut self) {
        let (newest, now) = (self.connections.last(), Instant::now());
        for (uid, entry) in &mut self.pods {
            let sent = newest.and_then(|newest| newest.sent.get(uid));
            let is_acknowledged = sent.is_some_and(|sent| {
                sent.generation == entry.generation && sent.answer == Answer::Acknowledged
            });
            entry.pending = (!is_acknowledged).then(|| entry.pending.unwrap_or(now));
        }
    }

    fn wake_all(&self) {
        for connection in &self.connections {
            // A full counter was written before, so the thread wakes anyway.
            let _ = connection.wake.write(1);
        }
    }
}

impl Entry {
    fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }
}

impl Connection {
    /// Reports whether this ztunnel can be sent the pod, and was not. Without its namespace a pod belongs only into a
    /// snapshot: ztunnel ends when it gets a keep after it.
    fn lacks(&self, entry: &Entry) -> bool {
        let is_sent = self.sent.get(&entry.pod.uid).is_some_and(|sent| sent.generation == entry.generation);
        !is_sent && (entry.netns.is_some() || self.snapshot == Snapshot::Unfinished)
    }

    fn send(&mut self, entry: &Entry) -> Request {
        let (pod, generation) = (Arc::clone(&entry.pod), entry.generation);
        self.sent.insert(pod.uid.clone(), Sent { generation, answer: Answer::Awaited });
        match &entry.netns {
            Some(netns) => Request::Add { pod, netns: Arc::clone(netns), generation },
            None => Request::Keep { pod, generation },
        }
    }
}
