//! The pods as the server's threads and the callers of hand-overs share them: one lock around the state, waiting callers,
//! and what wakes the threads.

use super::{Connection, ConnectionId, Entry, PodState, Request, Rest, Snapshot, State, wake};
use crate::agent::ztunnel::status::ZtunnelStatus;
use gybe_netfilter::kernel::netns::Netns;
use gybe_plugin::facts::ambient::{AmbientPod, HandOverBy, LeaveStep, PodUid};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{RecvTimeoutError, channel};
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
    #[error(
        "the agent's limit of open files allows {0} ambient pods; raise LimitNOFILE of the container runtime"
    )]
    TooMany(usize),
    #[error("ztunnel has not acknowledged the pod, or less than 5 s ago")]
    Pending,
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
    pub(super) uid: PodUid,
    pub(super) generation: u64,
    pub(super) caller: u64,
    pub(super) by: HandOverBy,
    pub(super) is_complete: bool,
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

impl AmbientPods {
    /// Adds a pod, and waits until a ztunnel has acknowledged it. A ztunnel that connects before the deadline is waited
    /// for. After an error, as after a hand-over that is not completed, the pod is as it was before, except that a
    /// namespace that was replaced stays forgotten. Failures count as those of the node only by an ADD: a pod that runs
    /// may never be accepted, and pods that start may be.
    ///
    /// # Errors
    /// When no ztunnel acknowledges the pod before the deadline; at once for a pod whose proxy is to be started again, and
    /// that the newest ztunnel has not acknowledged.
    pub fn add(
        &self,
        pod: AmbientPod,
        netns: Netns,
        by: HandOverBy,
        deadline: Instant,
    ) -> Result<HandOver<'_>, AddError> {
        let uid = pod.uid.clone();
        let (sender, answer) = channel();
        let (hand_over, connected_before) = {
            let mut state = self.lock();
            if state.has_ended {
                return Err(AddError::NotServed);
            }
            if let Some(pods) = state.full(&uid) {
                let why = AddError::TooMany(pods);
                state.record_failure(by, &why);
                return Err(why);
            }
            if by == HandOverBy::Restart {
                state.restart(&uid, &netns)?;
            }
            state.put(pod, Some(netns), Rest::Nothing);
            let (generation, caller) = state.register(&uid, sender);
            let connected_before = state.counts.connections - u64::from(!state.connections.is_empty());
            (HandOver { pods: self, uid, generation, caller, by, is_complete: false }, connected_before)
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
        state.record_failure(by, &why);
        // It takes the lock.
        drop(state);
        drop(hand_over);
        Err(why)
    }

    /// Holds at most so many namespaces from now on; each is an open file.
    pub fn hold_at_most(&self, most: usize) {
        self.lock().most = Some(most);
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
        state.failing = None;
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

    /// Records that a pod that runs on leaves the mesh, and removes it when it has left. Reports whether this agent
    /// serves ztunnel; if it does not, another one has the pod.
    pub fn leave(&self, uid: &PodUid, step: LeaveStep) -> bool {
        let mut state = self.lock();
        match (step, state.pods.get_mut(uid)) {
            (LeaveStep::Draining, Some(entry)) if entry.has_rules => {
                entry.has_rules = false;
                wake(&state.subscribers);
            }
            (LeaveStep::Draining, _) => {}
            (LeaveStep::Left, _) => drop(state.remove(uid)),
        }
        !state.has_ended
    }

    /// Returns what is known of each pod.
    pub(crate) fn states(&self) -> BTreeMap<PodUid, PodState> {
        self.lock().pods.iter().map(|(uid, entry)| (uid.clone(), entry.state())).collect()
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
        let mut guard = self.lock();
        let state = &mut *guard;
        let is_gone = |entry: &Entry| entry.unlisted.is_some_and(|since| since.elapsed() >= after);
        let before = state.pods.len();
        state.pods.retain(|_, entry| !is_gone(entry));
        if state.pods.len() < before {
            state.wake_all();
        }
    }

    /// Returns what wakes a thread when the pods may have changed.
    pub(crate) fn subscribe(&self) -> Changes {
        let wake = wake_counter().ok();
        let mut state = self.lock();
        state.subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        state.subscribers.extend(wake.as_ref().map(Arc::downgrade));
        Changes(wake)
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
            failing: failing.map(|failing| (failing.since.elapsed(), failing.why.clone())),
            pending: pending.clone().count(),
            longest_pending: pending.min().map(|since| now.saturating_duration_since(since)),
            counts: state.counts.clone(),
        }
    }

    /// Registers a ztunnel whose hello was received; it is the newest now.
    pub(in crate::agent::ztunnel) fn connect(&self) -> Result<(ConnectionId, Arc<EventFd>), Errno> {
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
    pub(in crate::agent::ztunnel) fn disconnect(&self, id: ConnectionId) {
        let mut state = self.lock();
        state.connections.retain(|connection| connection.id != id);
        state.judge_pending();
        state.wake_all();
    }

    /// Returns the next request for a connection, which counts as sent from now on.
    pub(in crate::agent::ztunnel) fn next_request(&self, id: ConnectionId) -> Option<Request> {
        self.lock().next_request(id)
    }

    /// Returns when a pod that this ztunnel has refused is sent again.
    pub(in crate::agent::ztunnel) fn retry_at(&self, id: ConnectionId) -> Option<Instant> {
        let state = self.lock();
        let newest = state.connections.last().filter(|newest| newest.id == id)?;
        state.pods.values().filter_map(|entry| newest.retry_at(entry)).min()
    }

    /// Records the response to a request of [`AmbientPods::next_request`].
    pub(in crate::agent::ztunnel) fn answer(
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
    pub(in crate::agent::ztunnel) fn count_late(&self) {
        self.lock().counts.late += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes a thread when the ambient pods may have changed. Without an eventfd, which the kernel may lack, the thread looks
/// again and again.
#[derive(Debug)]
pub(crate) struct Changes(Option<Arc<EventFd>>);

impl Changes {
    /// Waits for a change, at most for `timeout`; reports whether `end` is readable.
    pub(crate) fn wait(&self, end: BorrowedFd<'_>, timeout: Duration) -> bool {
        let descriptors = [end].into_iter().chain(self.0.as_ref().map(AsFd::as_fd));
        let mut fds: Vec<_> = descriptors.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // poll(2) counts whole milliseconds. An interrupted wait is a turn that finds nothing new.
        let timeout = PollTimeout::try_from(timeout + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut fds, timeout);
        let has_ended = fds.first().and_then(PollFd::any) != Some(false);
        // A counter that is zero already was read before.
        let _ = self.0.as_ref().map(|changed| changed.read());
        has_ended
    }
}

/// Returns a counter that is readable once it was written.
fn wake_counter() -> Result<Arc<EventFd>, Errno> {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::super::{Failing, RECENT};
    use super::*;
    use gybe_test_support::PATIENCE;
    use std::thread;

    #[test]
    fn a_failure_of_long_ago_does_not_count_with_a_new_one() {
        let pods = AmbientPods::default();
        let long_ago = Instant::now().checked_sub(RECENT * 2).unwrap();
        pods.lock().failing = Some(Failing { since: long_ago, last: long_ago, why: "old".to_owned() });
        let pod = AmbientPod::parse("u-1", "shop", "cart-0", "default").unwrap();
        let add = |by| pods.add(pod.clone(), Netns::of_this_thread().unwrap(), by, Instant::now());
        assert!(add(HandOverBy::Enrolment).is_err());
        assert_eq!(pods.status().failing, None, "a pod that runs");
        assert!(add(HandOverBy::Add).is_err());
        let (failing, why) = pods.status().failing.unwrap();
        assert!(failing < RECENT && why != "old", "{failing:?} {why}");
    }

    /// Answers all requests of a connection.
    fn acknowledge(pods: &AmbientPods, id: ConnectionId) {
        while let Some(request) = pods.next_request(id) {
            pods.answer(id, &request, &Ok(()), Duration::ZERO);
        }
    }

    #[test]
    fn a_pod_that_is_handed_over_before_it_is_adopted_is_kept_when_its_hand_over_fails() {
        let pod = || AmbientPod::parse("u-1", "shop", "cart-0", "default").unwrap();
        for is_adopted in [true, false] {
            let pods = AmbientPods::default();
            let (first, _wake) = pods.connect().unwrap();
            acknowledge(&pods, first);
            let (netns, deadline) = (Netns::of_this_thread().unwrap(), Instant::now() + RECENT);
            thread::scope(|scope| {
                let adding = scope.spawn(|| pods.add(pod(), netns, HandOverBy::Repair, deadline).is_err());
                let request = loop {
                    if let Some(request) = pods.next_request(first) {
                        break request;
                    }
                    thread::yield_now();
                };
                if is_adopted {
                    pods.adopt(pod(), None);
                }
                let expected = if is_adopted { PodState::NotHeld } else { PodState::WithoutRules };
                assert_eq!(pods.states().get(&pod().uid), Some(&expected), "its rules may stand");
                pods.answer(first, &request, &Err("no room".to_owned()), Duration::ZERO);
                assert!(adding.join().unwrap());
            });
            let (second, _wake) = pods.connect().unwrap();
            let kept = pods.next_request(second);
            assert_eq!(matches!(kept, Some(Request::Keep { .. })), is_adopted, "{kept:?}");
        }
    }

    #[test]
    fn a_pod_is_enrolled_once_the_newest_ztunnel_has_acknowledged_it_and_its_rules_stand_until_it_leaves() {
        let pods = AmbientPods::default();
        let pod = || AmbientPod::parse("u-1", "shop", "cart-0", "default").unwrap();
        let state = || pods.states().get(&pod().uid).copied();
        let is_enrolled = || state() == Some(PodState::Enrolled);
        pods.adopt(pod(), None);
        let (first, _wake) = pods.connect().unwrap();
        acknowledge(&pods, first);
        assert!(!is_enrolled(), "ztunnel acknowledges a keep of any pod");
        let changed = pods.subscribe();
        pods.adopt(pod(), Some(Netns::of_this_thread().unwrap()));
        assert!(!is_enrolled(), "ztunnel has not acknowledged it");
        acknowledge(&pods, first);
        assert!(is_enrolled());
        let (second, _wake) = pods.connect().unwrap();
        assert!(!is_enrolled(), "the newest ztunnel has not acknowledged it");
        acknowledge(&pods, second);
        assert!(is_enrolled());
        for (step, expected) in [(LeaveStep::Draining, Some(PodState::WithoutRules)), (LeaveStep::Left, None)]
        {
            assert!(pods.leave(&pod().uid, step));
            assert_eq!(state(), expected);
        }
        let steps =
            [(HandOverBy::Enrolment, PodState::WithoutRules), (HandOverBy::Repair, PodState::Enrolled)];
        for (by, expected) in steps {
            let (netns, until) = (Netns::of_this_thread().unwrap(), Instant::now() + PATIENCE);
            thread::scope(|scope| {
                let handed_over = scope.spawn(|| pods.add(pod(), netns, by, until).unwrap().complete());
                while !handed_over.is_finished() {
                    acknowledge(&pods, second);
                }
            });
            assert_eq!(state(), Some(expected));
        }
        let (end, _open) = nix::unistd::pipe().unwrap();
        let start = Instant::now();
        assert!(
            !changed.wait(end.as_fd(), Duration::from_secs(60)) && start.elapsed() < Duration::from_secs(30)
        );
    }
}
