//! The node's ambient pods with their open network namespaces, and which of them each connected ztunnel has. It decides
//! the next request for a connection by comparing the two, so a ztunnel that is slow, new, or takes the place of one
//! that ended receives what it lacks, and nothing waits in a queue.
//!
//! | | Receives |
//! |---|---|
//! | each ztunnel, first | its snapshot: every pod, with its namespace, or without one that is not known yet (keep) |
//! | the newest | every pod that is added or gets another namespace |
//! | each that has a pod | the pod's end; an older one also when the pod has got another namespace |

mod shared;

pub use shared::{AddError, AmbientPods, HandOver};

use super::status::ZtunnelCounts;
use gybe_netfilter::kernel::netns::{Identity, Netns};
use gybe_plugin::facts::ambient::{AmbientPod, HandOverBy, PodUid};
use nix::sys::eventfd::EventFd;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// After how long a ztunnel is sent a pod again that it has refused, as often as ztunnel itself tries. ztunnel does
/// nothing if it has started the pod's proxy meanwhile.
const RETRY: Duration = Duration::from_secs(5);

/// For how long a hand-over that has failed counts: the kubelet tries again earlier.
const RECENT: Duration = Duration::from_secs(60);

/// What is known of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodState {
    /// Its namespace is not known, or its hand-over waits, and its rules may stand: an earlier agent may have had it.
    NotHeld,
    /// Its rules are yet to be written, or were replaced because it leaves.
    WithoutRules,
    /// Its rules stand, and the newest ztunnel has not acknowledged it.
    Redirected,
    /// It is in the mesh.
    Enrolled,
}

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<PodUid, Entry>,
    /// The connections whose hello was received; the last one is the newest.
    connections: Vec<Connection>,
    /// Written when the pods may have changed.
    subscribers: Vec<Weak<EventFd>>,
    generations: u64,
    callers: u64,
    counts: ZtunnelCounts,
    /// The most namespaces that are held; none without a limit.
    most: Option<usize>,
    /// Whether hand-overs are refused because this agent serves no ztunnel until it leads again.
    has_ended: bool,
    failing: Option<Failing>,
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
    /// Whether its rules stand in this namespace, as far as hand-overs have shown; true while the namespace is not known.
    has_rules: bool,
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
    Acknowledged(Instant),
    Refused(Instant),
    /// It was acknowledged, and ztunnel does not listen in the pod: the pod is ended before it is sent again.
    NotServed,
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
            if let Some(entry) = self.pods.get_mut(&pod.uid) {
                if netns.is_some() {
                    entry.pod = Arc::new(pod.clone());
                } else if matches!((rest, entry.rest), (Rest::Everything, Rest::Nothing)) {
                    // It is handed over before it was known that an earlier agent had it.
                    self.generations += 1;
                    entry.rest = Rest::Keep(self.generations);
                }
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
        let (pending, unlisted) = (None, None);
        let has_rules = matches!(rest, Rest::Everything);
        let entry = Entry { pod, netns, generation, pending, callers, rest, has_rules, unlisted };
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

    /// Returns the number of namespaces that are held, if that leaves no room for that of this pod.
    fn full(&self, uid: &PodUid) -> Option<usize> {
        let others = self.pods.iter().filter(|(other, entry)| *other != uid && entry.netns.is_some()).count();
        self.most.is_some_and(|most| others >= most).then_some(others)
    }

    /// Records a hand-over that has failed, unless the pod runs: such a pod may never be accepted.
    fn record_failure(&mut self, by: HandOverBy, why: &AddError) {
        if by == HandOverBy::Add && !matches!(why, AddError::Superseded | AddError::NotServed) {
            let last = Instant::now();
            let since = self.recent_failures().map_or(last, |failing| failing.since);
            self.failing = Some(Failing { since, last, why: why.to_string() });
        }
    }

    /// Lets the newest ztunnel start its proxy of the pod again, which it does only after it has ended it.
    ///
    /// # Errors
    /// When the pod is sent anyway, or was acknowledged less than 5 s ago: the caller may have read the listeners before
    /// that.
    fn restart(&mut self, uid: &PodUid, netns: &Netns) -> Result<(), AddError> {
        let newest = self.connections.last_mut().ok_or(AddError::NotConnected)?;
        let generation = self.pods.get(uid).map(|entry| entry.generation);
        let sent = newest.sent.get_mut(uid).filter(|sent| {
            let is_old = matches!(sent.answer, Answer::Acknowledged(at) if at.elapsed() >= RETRY);
            is_old && Some(sent.generation) == generation && sent.netns == Some(netns.identity())
        });
        sent.ok_or(AddError::Pending)?.answer = Answer::NotServed;
        self.judge_pending();
        Ok(())
    }

    fn remove(&mut self, uid: &PodUid) -> bool {
        let was_there = self.pods.remove(uid).is_some();
        if was_there {
            self.wake_all();
        }
        was_there
    }

    /// Ends a hand-over, unless the pod has got another namespace since.
    fn end(&mut self, HandOver { uid, generation, caller, by, is_complete, .. }: &HandOver<'_>) {
        let entry = self.pods.get_mut(uid).filter(|entry| entry.generation == *generation);
        let Some(entry) = entry else { return };
        entry.callers.remove(caller);
        if *is_complete {
            entry.rest = Rest::Everything;
            entry.has_rules |= *by != HandOverBy::Enrolment;
            wake(&self.subscribers);
        }
        match entry.rest {
            Rest::Nothing if entry.callers.is_empty() => drop(self.remove(uid)),
            Rest::Keep(generation) if entry.callers.is_empty() => {
                (entry.netns, entry.generation, entry.rest) = (None, generation, Rest::Everything);
                entry.has_rules = true;
                // One whose snapshot is unfinished gets the keep in it.
                let connections =
                    self.connections.iter_mut().filter(|it| it.snapshot != Snapshot::Unfinished);
                for sent in connections.filter_map(|connection| connection.sent.get_mut(uid)) {
                    // The keep was acknowledged, and none is sent after the snapshot.
                    (sent.generation, sent.answer) = (generation, Answer::Acknowledged(Instant::now()));
                }
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
            Some(_) if sent.answer == Answer::NotServed => true,
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
            let now = Instant::now();
            sent.answer = if response.is_ok() { Answer::Acknowledged(now) } else { Answer::Refused(now) };
        }
        let entry = self.pods.get_mut(uid).filter(|entry| entry.generation == generation);
        // A refusal counts if the newest refuses: another one may end soon.
        if let Some(entry) = entry.filter(|_| response.is_ok() || is_newest) {
            if response.is_ok() && is_newest {
                entry.pending = None;
                wake(&self.subscribers);
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
                sent.generation == entry.generation && matches!(sent.answer, Answer::Acknowledged(_))
            });
            entry.pending = (!is_acknowledged).then(|| entry.pending.unwrap_or(now));
            if is_acknowledged {
                entry.answer(&Ok(()));
            }
        }
    }

    fn wake_all(&self) {
        for connection in &self.connections {
            // A full counter was written before, so the thread wakes anyway.
            let _ = connection.wake.write(1);
        }
        wake(&self.subscribers);
    }
}

fn wake(subscribers: &[Weak<EventFd>]) {
    for subscriber in subscribers.iter().filter_map(Weak::upgrade) {
        // As above.
        let _ = subscriber.write(1);
    }
}

impl Entry {
    fn state(&self) -> PodState {
        match (self.rest, self.netns.is_some(), self.has_rules) {
            (Rest::Keep(_), ..) | (_, false, true) => PodState::NotHeld,
            (.., false) => PodState::WithoutRules,
            (.., true) if self.pending.is_some() => PodState::Redirected,
            (.., true) => PodState::Enrolled,
        }
    }

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
