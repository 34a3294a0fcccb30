//! The node's ambient pods with their open network namespaces, and which of them each connected ztunnel has. It decides
//! the next request for a connection by comparing the two, so a ztunnel that is slow, new, or takes the place of one
//! that ended receives what it lacks, and nothing waits in a queue.
//!
//! | | Receives |
//! |---|---|
//! | each ztunnel, first | its snapshot: every pod, with its namespace, or without one that is not known yet (keep) |
//! | the newest | every pod that is added or gets another namespace |
//! | each that has a pod | the pod's end; an older one also when the pod has got another namespace |

use super::status::{ZtunnelCounts, ZtunnelStatus};
use gybe_netfilter::kernel::netns::{Identity, Netns};
use gybe_plugin::facts::ambient::{AmbientPod, PodUid};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After how long a ztunnel is sent a pod again that it has refused, as often as ztunnel itself tries. ztunnel does
/// nothing if it has started the pod's proxy meanwhile.
const RETRY: Duration = Duration::from_secs(5);

/// For how long a hand-over that has failed counts: the kubelet tries again earlier.
const RECENT: Duration = Duration::from_secs(60);

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
    /// A response is of no use: the caller finds the agent that leads now at the same path.
    #[error("the agent no longer serves ztunnel")]
    NotServed,
}

/// One caller's hand-over of a pod. A value that is dropped before it is completed withdraws the pod, unless another
/// hand-over of the same namespace was completed or waits.
#[derive(Debug)]
#[must_use]
pub struct HandOver<'a> {
    pods: &'a AmbientPods,
    uid: PodUid,
    generation: u64,
    caller: u64,
    is_complete: bool,
}

impl HandOver<'_> {
    /// Keeps the pod.
    pub fn complete(mut self) {
        self.is_complete = true;
        self.pods.lock().failing = None;
    }
}

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        self.pods.lock().end(self);
    }
}

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<PodUid, Entry>,
    /// The connections whose hello was received; the last one is the newest.
    connections: Vec<Connection>,
    /// Written when the pods may have changed.
    subscriber: Option<Arc<EventFd>>,
    generations: u64,
    callers: u64,
    counts: ZtunnelCounts,
    /// Whether hand-overs are refused because this agent serves no ztunnel until it leads again.
    has_ended: bool,
    failing: Option<Failing>,
    /// The acknowledged snapshots.
    snapshots: u64,
}

/// The hand-overs that have failed since the last one that was completed.
#[derive(Debug)]
struct Failing {
    since: Instant,
    last: Instant,
    why: String,
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
    /// The hand-overs of this namespace that have not ended. Each uses the first answer.
    callers: BTreeMap<u64, Sender<Result<(), String>>>,
    rest: Rest,
    /// Since when the API server is not known to have it.
    unlisted: Option<Instant>,
}

/// What is left of a pod when all hand-overs of its namespace fail.
#[derive(Debug, Clone, Copy)]
enum Rest {
    Nothing,
    /// The pod without its namespace, with its former generation: the kernel showed it as enrolled before.
    Keep(u64),
    /// The pod: a hand-over was completed, or the kernel showed the pod with this namespace as enrolled.
    Everything,
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
    /// 0 when it has to be sent again.
    generation: u64,
    netns: Option<Identity>,
    answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Awaited,
    Acknowledged,
    Refused(Instant),
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
    /// for. After an error, as after a hand-over that is not completed, the pod is as it was before, except that a
    /// namespace that was replaced stays forgotten.
    ///
    /// # Errors
    /// When no ztunnel acknowledges the pod before the deadline.
    pub fn add(&self, pod: AmbientPod, netns: Netns, deadline: Instant) -> Result<HandOver<'_>, AddError> {
        let uid = pod.uid.clone();
        let (sender, answer) = channel();
        let (hand_over, connected_before) = {
            let mut state = self.lock();
            if state.has_ended {
                return Err(AddError::NotServed);
            }
            state.put(pod, Some(netns), Rest::Nothing);
            let (generation, caller) = state.register(&uid, sender);
            let connected_before = state.counts.connections - u64::from(!state.connections.is_empty());
            (HandOver { pods: self, uid, generation, caller, is_complete: false }, connected_before)
        };
        let answer = answer.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let mut state = self.lock();
        let why = match answer {
            Ok(Ok(())) => return Ok(hand_over),
            Ok(Err(text)) => AddError::Refused(text),
            Err(RecvTimeoutError::Disconnected) if state.has_ended => AddError::NotServed,
            Err(RecvTimeoutError::Disconnected) => AddError::Superseded,
            // One that was connected, and was closed because it hangs, counts.
            Err(RecvTimeoutError::Timeout) if state.counts.connections == connected_before => {
                AddError::NotConnected
            }
            Err(RecvTimeoutError::Timeout) => AddError::NoAnswer,
        };
        if !matches!(why, AddError::Superseded | AddError::NotServed) {
            let last = Instant::now();
            let since = state.recent_failures().map_or(last, |failing| failing.since);
            state.failing = Some(Failing { since, last, why: why.to_string() });
        }
        // It takes the lock.
        drop(state);
        drop(hand_over);
        Err(why)
    }

    /// Accepts hand-overs, until [`AmbientPods::end_hand_overs`].
    pub fn accept_hand_overs(&self) {
        self.lock().has_ended = false;
    }

    /// Refuses the hand-overs that wait and those that come, and closes all namespaces: no ztunnel connects to this agent
    /// before it leads again, and then the agent that led meanwhile may have got other namespaces of the same pods.
    pub fn end_hand_overs(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        state.pods.clear();
        (state.failing, state.snapshots) = (None, 0);
    }

    /// Adds a pod that the kernel shows as enrolled, without waiting for an acknowledgement. A ztunnel that connects
    /// later keeps the pod although its namespace is not known yet.
    pub fn adopt(&self, pod: AmbientPod, netns: Option<Netns>) {
        self.lock().put(pod, netns, Rest::Everything);
    }

    /// Removes a pod and closes its namespace; reports whether it was there.
    pub fn remove(&self, uid: &PodUid) -> bool {
        self.lock().remove(uid)
    }

    /// Records which pods a new list of the API server has.
    pub fn listed(&self, is_listed: impl Fn(&PodUid) -> bool) {
        for (uid, entry) in &mut self.lock().pods {
            entry.unlisted = (!is_listed(uid)).then(|| entry.unlisted.unwrap_or_else(Instant::now));
        }
    }

    /// Records that the API server may not have the pod; [`AmbientPods::present`] follows if it does.
    pub fn absent(&self, uid: &PodUid) {
        if let Some(entry) = self.lock().pods.get_mut(uid) {
            entry.unlisted.get_or_insert_with(Instant::now);
        }
    }

    /// Records that the API server has the pod.
    pub fn present(&self, uid: &PodUid) {
        if let Some(entry) = self.lock().pods.get_mut(uid) {
            entry.unlisted = None;
        }
    }

    /// Removes the pods that have been missing in the API server's list for this time.
    pub fn remove_unlisted(&self, after: Duration) {
        let mut state = self.lock();
        let is_gone = |entry: &Entry| entry.unlisted.is_some_and(|since| since.elapsed() >= after);
        let before = state.pods.len();
        state.pods.retain(|_, entry| !is_gone(entry));
        if state.pods.len() < before {
            state.wake_all();
        }
    }

    /// Returns a counter that is written when the pods may have changed. A later subscriber takes its place.
    ///
    /// # Errors
    /// When the kernel has no eventfd left.
    pub(crate) fn subscribe(&self) -> Result<Arc<EventFd>, Errno> {
        let wake = wake_counter()?;
        self.lock().subscriber = Some(Arc::clone(&wake));
        Ok(wake)
    }

    /// Returns the addresses of the pods that are known.
    pub(crate) fn addresses(&self) -> BTreeMap<PodUid, BTreeSet<IpAddr>> {
        let state = self.lock();
        let known = state.pods.iter().filter(|(_, entry)| !entry.pod.addresses.is_empty());
        known.map(|(uid, entry)| (uid.clone(), entry.pod.addresses.iter().copied().collect())).collect()
    }

    pub fn status(&self) -> ZtunnelStatus {
        let (state, now) = (self.lock(), Instant::now());
        let pending = state.pods.values().filter_map(|entry| entry.pending);
        let without_netns = state.pods.values().filter(|entry| entry.netns.is_none()).count();
        let failing = state.recent_failures();
        ZtunnelStatus {
            connected: state.connections.len(),
            is_snapshot_acknowledged: state
                .connections
                .last()
                .is_some_and(|newest| newest.snapshot == Snapshot::Acknowledged),
            pods: state.pods.len(),
            without_netns,
            // The first ztunnel of this term may be the one that serves them.
            lost: if state.snapshots > 1 { without_netns } else { 0 },
            failing: failing.map(|failing| (failing.since.elapsed(), failing.why.clone())),
            pending: pending.clone().count(),
            longest_pending: pending.min().map(|since| now.saturating_duration_since(since)),
            counts: state.counts.clone(),
        }
    }

    /// Registers a ztunnel whose hello was received; it is the newest now.
    pub(super) fn connect(&self) -> Result<(ConnectionId, Arc<EventFd>), Errno> {
        let wake = wake_counter()?;
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

    /// Returns when a pod that this ztunnel has refused is sent again.
    pub(super) fn retry_at(&self, id: ConnectionId) -> Option<Instant> {
        let state = self.lock();
        let newest = state.connections.last().filter(|newest| newest.id == id)?;
        state.pods.values().filter_map(|entry| newest.retry_at(entry)).min()
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
                state.snapshots += u64::from(response.is_ok());
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

/// Returns a counter that is readable once it was written.
fn wake_counter() -> Result<Arc<EventFd>, Errno> {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Arc::new)
}

impl State {
    fn recent_failures(&self) -> Option<&Failing> {
        self.failing.as_ref().filter(|failing| failing.last.elapsed() < RECENT)
    }

    /// Adds a pod or its namespace. A known pod without a new namespace stays as it is, and is sent again if the newest
    /// ztunnel has refused it.
    fn put(&mut self, pod: AmbientPod, netns: Option<Netns>, rest: Rest) {
        let before = self.pods.get(&pod.uid);
        let is_same = before.is_some_and(|entry| match (&entry.netns, &netns) {
            (Some(before), Some(now)) => before.is_same_as(now),
            (_, None) => true,
            (None, Some(_)) => false,
        });
        if is_same {
            if let Some(entry) = self.pods.get_mut(&pod.uid).filter(|_| netns.is_some()) {
                entry.pod = Arc::new(pod.clone());
            }
            let sent = self.connections.last_mut().and_then(|newest| newest.sent.get_mut(&pod.uid));
            if let Some(sent) = sent.filter(|sent| matches!(sent.answer, Answer::Refused(_))) {
                sent.generation = 0;
            }
            self.wake_all();
            return;
        }
        let rest = match (rest, before) {
            (
                Rest::Nothing,
                Some(Entry { netns: None, generation, .. } | Entry { rest: Rest::Keep(generation), .. }),
            ) => Rest::Keep(*generation),
            _ => rest,
        };
        self.generations += 1;
        let (generation, netns) = (self.generations, netns.map(Arc::new));
        let uid = pod.uid.clone();
        let (pod, callers) = (Arc::new(pod), BTreeMap::new());
        let entry = Entry { pod, netns, generation, pending: None, callers, rest, unlisted: None };
        self.pods.insert(uid, entry);
        self.judge_pending();
        self.wake_all();
    }

    /// Registers a caller, which receives the answer at once if the newest ztunnel has acknowledged the pod. Returns the
    /// pod's generation and the caller's number.
    fn register(&mut self, uid: &PodUid, sender: Sender<Result<(), String>>) -> (u64, u64) {
        self.callers += 1;
        let Some(entry) = self.pods.get_mut(uid) else { return (0, self.callers) };
        if entry.pending.is_none() {
            let _ = sender.send(Ok(()));
        }
        entry.callers.insert(self.callers, sender);
        (entry.generation, self.callers)
    }

    fn remove(&mut self, uid: &PodUid) -> bool {
        let was_there = self.pods.remove(uid).is_some();
        if was_there {
            self.wake_all();
        }
        was_there
    }

    /// Ends a hand-over, unless the pod has got another namespace since.
    fn end(&mut self, HandOver { uid, generation, caller, is_complete, .. }: &HandOver<'_>) {
        let entry = self.pods.get_mut(uid).filter(|entry| entry.generation == *generation);
        let Some(entry) = entry else { return };
        entry.callers.remove(caller);
        if *is_complete {
            entry.rest = Rest::Everything;
        }
        match entry.rest {
            Rest::Nothing if entry.callers.is_empty() => drop(self.remove(uid)),
            Rest::Keep(generation) if entry.callers.is_empty() => {
                (entry.netns, entry.generation, entry.rest) = (None, generation, Rest::Everything);
                self.judge_pending();
            }
            _ => {}
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
            if let Some(entry) =
                lacking.min_by_key(|entry| (Reverse(!entry.callers.is_empty()), entry.generation))
            {
                return Some(connection.send(entry));
            }
        }
        if is_unfinished {
            // A pod that is removed during the snapshot is ended after it: before, ztunnel only forgets its uid.
            connection.snapshot = Snapshot::Sent;
            return Some(Request::SnapshotSent);
        }
        let gone = connection.sent.iter().find(|(uid, sent)| match self.pods.get(uid) {
            None => true,
            // The newest was sent the other namespace.
            Some(Entry { netns: Some(now), .. }) => sent.netns.is_some_and(|sent| sent != now.identity()),
            Some(_) => false,
        });
        let gone = gone?.0.clone();
        connection.sent.remove(&gone);
        Some(Request::Del(gone))
    }

    fn answered(&mut self, id: ConnectionId, uid: &PodUid, generation: u64, response: &Result<(), String>) {
        let is_newest = self.connections.last().is_some_and(|newest| newest.id == id);
        let Some(connection) = self.connection(id) else { return };
        if let Some(sent) = connection.sent.get_mut(uid).filter(|sent| sent.generation == generation) {
            sent.answer =
                if response.is_ok() { Answer::Acknowledged } else { Answer::Refused(Instant::now()) };
        }
        let entry = self.pods.get_mut(uid).filter(|entry| entry.generation == generation);
        // A refusal counts if the newest refuses: another one may end soon.
        if let Some(entry) = entry.filter(|_| response.is_ok() || is_newest) {
            if response.is_ok() && is_newest {
                entry.pending = None;
            }
            entry.answer(response);
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
            if is_acknowledged {
                entry.answer(&Ok(()));
            }
        }
    }

    fn wake_all(&self) {
        let connections = self.connections.iter().map(|connection| &connection.wake);
        for wake in connections.chain(&self.subscriber) {
            // A full counter was written before, so the thread wakes anyway.
            let _ = wake.write(1);
        }
    }
}

impl Entry {
    fn answer(&self, response: &Result<(), String>) {
        for caller in self.callers.values() {
            // A caller whose deadline has passed receives nothing.
            let _ = caller.send(response.clone());
        }
    }
}

impl Connection {
    /// Reports whether this ztunnel can be sent the pod, and was not. Without its namespace a pod belongs only into a
    /// snapshot: ztunnel ends when it gets a keep after it.
    fn lacks(&self, entry: &Entry) -> bool {
        let is_sent = self.sent.get(&entry.pod.uid).is_some_and(|sent| sent.generation == entry.generation);
        let is_due = self.retry_at(entry).is_some_and(|at| at <= Instant::now());
        (!is_sent || is_due) && (entry.netns.is_some() || self.snapshot == Snapshot::Unfinished)
    }

    /// Returns when a pod that this ztunnel has refused is sent to it again. A snapshot ends first.
    fn retry_at(&self, entry: &Entry) -> Option<Instant> {
        let sent = self.sent.get(&entry.pod.uid)?;
        let is_sent = sent.generation == entry.generation && sent.netns.is_some();
        match sent.answer {
            Answer::Refused(at) if is_sent && self.snapshot != Snapshot::Unfinished => Some(at + RETRY),
            _ => None,
        }
    }

    fn send(&mut self, entry: &Entry) -> Request {
        let (pod, generation) = (Arc::clone(&entry.pod), entry.generation);
        let netns = entry.netns.as_ref().map(|netns| netns.identity());
        self.sent.insert(pod.uid.clone(), Sent { generation, netns, answer: Answer::Awaited });
        match &entry.netns {
            Some(netns) => Request::Add { pod, netns: Arc::clone(netns), generation },
            None => Request::Keep { pod, generation },
        }
    }
}
