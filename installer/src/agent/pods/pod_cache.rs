//! The cache of this node's pods and the state of the watch that fills it. Queries may wait here for a pod that is not
//! known yet. While the API server is down the cache stays as it is.
//!
//! Of a pod larger than `MAX_SIZE` the cache has only the identity, so that no pod's owner can fill the agent's memory; for
//! each query about it the agent requests the pod from the API server.

use crate::agent::histogram::Histogram;
use crate::cluster::error::ApiError;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::matches;
use gybe_plugin::facts::wire::FactsResponse;
use gybe_plugin::pod::{Ambient, Container, ISTIO_COMPONENTS, PodFacts};
use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The state of the watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchState {
    /// Whether a list was complete once: from then on queries are answered, however old the cache is.
    pub synced: bool,
    /// The time since the API server last sent something about pods: a list, the start of a watch, an event or a
    /// bookmark. A server sends a bookmark about every minute. A refusal does not count: it delivers no new pods.
    pub silent: Duration,
    /// Why the watch is not open; none while it is.
    pub problem: Option<WatchProblem>,
    pub pods: usize,
    pub reconnects: u64,
    /// Failed requests about pods by HTTP status; none stands for no response, or for one that cannot be read.
    pub errors: BTreeMap<Option<u16>, u64>,
    /// The time from the assignment of each new pod until it was in the cache.
    pub latency: Histogram,
}

/// Why the watch is not open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchProblem {
    /// The HTTP status, if the server responded.
    pub status: Option<u16>,
    /// The reason in words; never a credential.
    pub sentence: String,
}

/// Pods by `<namespace>/<name>`, which is unique at any time.
pub(super) type PodsByName = BTreeMap<String, CachedPod>;

/// The cache, shared between the watch and the queries.
#[derive(Debug)]
pub(super) struct PodCache {
    state: Mutex<CacheState>,
    changed: Condvar,
}

#[derive(Debug)]
struct CacheState {
    pods: PodsByName,
    /// The pods that queries wait for, by name and uid; removed with the last query.
    pending: BTreeMap<String, PendingPod>,
    synced: bool,
    last_event: Instant,
    problem: Option<WatchProblem>,
    openings: u64,
    errors: BTreeMap<Option<u16>, u64>,
    latency: Histogram,
}

impl Default for PodCache {
    fn default() -> Self {
        let state = CacheState {
            pods: PodsByName::new(),
            pending: BTreeMap::new(),
            synced: false,
            last_event: Instant::now(),
            problem: None,
            openings: 0,
            // This counter exists from the start, so that its first increase is visible in a rate.
            errors: BTreeMap::from([(None, 0)]),
            latency: Histogram::of_pods(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

pub(super) fn key(facts: &PodFacts) -> String {
    format!("{}/{}", facts.namespace, facts.name)
}

impl PodCache {
    /// Returns the pod, if it is known.
    pub(super) fn find(&self, pod: &PodRef) -> Option<FactsResponse> {
        self.lock().find(&pod.to_string(), pod)
    }

    /// Returns the pod, and waits for one that is unknown. A pod of that name with another uid is an earlier or a later
    /// one, and counts as unknown. `look_up` is called for the first of all queries that wait for the same pod.
    pub(super) fn wait_for(&self, pod: &PodRef, limits: WaitLimits, look_up: impl FnOnce()) -> FactsResponse {
        let (name, key) = (pod.to_string(), key_with_uid(pod));
        let (mut state, mut look_up) = (self.lock(), Some(look_up));
        if let Some(facts) = state.find(&name, pod) {
            return facts;
        }
        let pending = state.pending.entry(key.clone()).or_insert_with(PendingPod::new);
        pending.waiting = pending.waiting.saturating_add(1);
        loop {
            let pending = state.pending.get_mut(&key);
            let left = match pending.map_or(Err(timed_out()), |pod| pod.wait(limits, &mut look_up)) {
                Ok(left) => left,
                Err(response) => return state.leave(&key, response),
            };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            if let Some(facts) = state.find(&name, pod) {
                return state.leave(&key, facts);
            }
        }
    }

    /// Records the result of a lookup.
    pub(super) fn record_lookup(&self, pod: &PodRef, response: FactsResponse) {
        if let Some(pending) = self.lock().pending.get_mut(&key_with_uid(pod)) {
            pending.response = Some(response);
        }
        self.changed.notify_all();
    }

    /// Replaces all pods by those of a complete list; reports whether it is the first list.
    pub(super) fn replace(&self, pods: PodsByName) -> bool {
        self.change(|state| {
            let (mut before, is_first) = (std::mem::take(&mut state.pods), !state.synced);
            state.synced = true;
            for (name, pod) in pods {
                let before = before.remove(&name);
                state.put(name, pod, before, is_first);
            }
            is_first
        })
    }

    /// Adds a pod of a list that is not complete, while no list has been complete yet.
    pub(super) fn insert_before_sync(&self, facts: &PodFacts, assigned: Option<SystemTime>) {
        self.change(|state| {
            if !state.synced {
                state.pods.insert(key(facts), CachedPod::new(facts.clone(), assigned));
            }
        });
    }

    /// Adds or replaces a pod.
    pub(super) fn insert(&self, facts: PodFacts, assigned: Option<SystemTime>) {
        self.change(|state| {
            let name = key(&facts);
            let before = state.pods.remove(&name);
            state.put(name, CachedPod::new(facts, assigned), before, false);
        });
    }

    /// Takes the time at which the pod `NAMESPACE/NAME` was assigned to the node; the next call returns none. None also
    /// for a pod that is not in the cache, or has had a sandbox.
    pub(super) fn take_assigned(&self, pod: &str) -> Option<SystemTime> {
        self.lock().pods.get_mut(pod)?.assigned.take()
    }

    /// Removes a pod, but not a later one of the same name.
    pub(super) fn remove(&self, facts: &PodFacts) {
        self.change(|state| {
            let name = key(facts);
            if state.pods.get(&name).is_some_and(|cached| cached.identity().uid == facts.uid) {
                state.pods.remove(&name);
            }
        });
    }

    /// Records that the API server sent something about pods.
    pub(super) fn record_event(&self) {
        self.lock().last_event = Instant::now();
    }

    /// Records that the watch is open; reports whether it had a problem before.
    pub(super) fn opened(&self) -> bool {
        let mut state = self.lock();
        state.openings = state.openings.saturating_add(1);
        state.last_event = Instant::now();
        state.problem.take().is_some()
    }

    pub(super) fn count_error(&self, fault: &ApiError) {
        *self.lock().errors.entry(fault.status()).or_default() += 1;
    }

    /// Records why the watch is not open; reports whether the problem differs from the one before.
    pub(super) fn failed(&self, fault: &ApiError) -> bool {
        let problem = Some(WatchProblem { status: fault.status(), sentence: fault.to_string() });
        let mut state = self.lock();
        let is_new = state.problem != problem;
        state.problem = problem;
        is_new
    }

    /// Reports whether such a pod is known; none before the first complete list.
    pub(super) fn has_pod(&self, is_such: &dyn Fn(&PodFacts) -> bool) -> Option<bool> {
        let state = self.lock();
        state.synced.then(|| state.pods.values().map(CachedPod::identity).any(is_such))
    }

    pub(super) fn state(&self) -> WatchState {
        let state = self.lock();
        WatchState {
            synced: state.synced,
            silent: state.last_event.elapsed(),
            problem: state.problem.clone(),
            pods: state.pods.len(),
            reconnects: state.openings.saturating_sub(1),
            errors: state.errors.clone(),
            latency: state.latency.clone(),
        }
    }

    /// Changes the state, and wakes the waiting queries.
    fn change<T>(&self, change: impl FnOnce(&mut CacheState) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state);
        state.last_event = Instant::now();
        drop(state);
        self.changed.notify_all();
        changed
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheState {
    /// Adds a pod in the place of `before`. A new one was assigned just now, unless the list is the agent's first.
    fn put(&mut self, name: String, mut pod: CachedPod, before: Option<CachedPod>, is_first_list: bool) {
        match (before.filter(|before| before.uid() == pod.uid()), pod.assigned) {
            (Some(before), now) => pod.assigned = before.assigned.filter(|_| now.is_some()),
            (None, Some(assigned)) if !is_first_list => {
                self.latency.record(assigned.elapsed().unwrap_or_default());
            }
            (None, _) => {}
        }
        self.pods.insert(name, pod);
    }

    fn find(&self, name: &str, pod: &PodRef) -> Option<FactsResponse> {
        let facts = self.pods.get(name)?.whole().filter(|facts| matches(facts, pod))?;
        Some(FactsResponse::Pod(Box::new(facts.clone())))
    }

    /// Ends one query's wait.
    fn leave(&mut self, key: &str, response: FactsResponse) -> FactsResponse {
        if let Some(pending) = self.pending.get_mut(key) {
            pending.waiting = pending.waiting.saturating_sub(1);
        }
        self.pending.retain(|_, pending| pending.waiting > 0);
        response
    }
}

/// Enough for 3,000 ports or 800 networks in annotations. An ordinary injected pod has less than 2 KiB.
const MAX_SIZE: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct CachedPod {
    facts: PodFacts,
    is_whole: bool,
    /// When it was assigned to the node; none once it has had a sandbox, and once taken.
    assigned: Option<SystemTime>,
}

impl CachedPod {
    pub(super) fn new(mut facts: PodFacts, assigned: Option<SystemTime>) -> Self {
        if size(&facts) > MAX_SIZE {
            let PodFacts { namespace, name, uid, mut labels, .. } = facts;
            labels.retain(|key, value| ISTIO_COMPONENTS.contains(&(key, value)));
            let facts = PodFacts { namespace, name, uid, labels, ..PodFacts::default() };
            return Self { facts, is_whole: false, assigned };
        }
        facts.containers.shrink_to_fit();
        facts.init_containers.shrink_to_fit();
        Self { facts, is_whole: true, assigned }
    }

    /// Returns namespace, name, uid and the labels of Istio's components, which every cached pod has.
    fn identity(&self) -> &PodFacts {
        &self.facts
    }

    pub(super) fn uid(&self) -> &str {
        &self.facts.uid
    }

    /// Returns the pod, if it is cached whole.
    fn whole(&self) -> Option<&PodFacts> {
        Some(&self.facts).filter(|_| self.is_whole)
    }
}

/// Returns the size in bytes, without the allocator's overhead.
fn size(facts: &PodFacts) -> usize {
    let all_labels = match &facts.ambient {
        Ambient::Undecided(selectable) => Some(&selectable.labels),
        _ => None,
    };
    let texts = facts.annotations.iter().chain(&facts.labels).chain(all_labels.into_iter().flatten());
    let texts: usize = texts.map(|(key, value)| key.len() + value.len() + 2 * size_of::<String>()).sum();
    let containers = facts.containers.iter().chain(&facts.init_containers);
    texts + containers.map(container_size).sum::<usize>()
}

fn container_size(container: &Container) -> usize {
    let env: usize = container.env.iter().map(|(key, value)| key.len() + value.len()).sum();
    let args: usize = container.args.iter().map(String::len).sum();
    size_of::<Container>() + container.name.len() + 2 * container.tcp_ports.len() + env + args
}

/// How long a query waits for a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitLimits {
    /// How long it waits for the watch alone, before the API server is queried for the pod.
    pub(super) watch_lag: Duration,
    /// The deadline.
    pub(super) until: Instant,
}

/// A pod that queries wait for.
#[derive(Debug)]
struct PendingPod {
    since: Instant,
    /// The number of waiting queries.
    waiting: usize,
    lookup_started: bool,
    /// The result of the lookup.
    response: Option<FactsResponse>,
}

impl PendingPod {
    fn new() -> Self {
        Self { since: Instant::now(), waiting: 0, lookup_started: false, response: None }
    }

    /// Returns how long to wait for a change, or, as an error, the response. The first query that has waited long
    /// enough for the watch starts the lookup.
    fn wait(
        &mut self,
        limits: WaitLimits,
        look_up: &mut Option<impl FnOnce()>,
    ) -> Result<Duration, FactsResponse> {
        let (now, lookup_at) = (Instant::now(), self.since + limits.watch_lag);
        if let Some(response) = self.response.clone() {
            return Err(response);
        }
        if now >= limits.until {
            return Err(timed_out());
        }
        if !self.lookup_started && now >= lookup_at {
            self.lookup_started = true;
            look_up.take().into_iter().for_each(|look_up| look_up());
        }
        let next = if self.lookup_started { limits.until } else { limits.until.min(lookup_at) };
        Ok(next.saturating_duration_since(now))
    }
}

/// Identifies one pod among all that have had its name.
fn key_with_uid(pod: &PodRef) -> String {
    format!("{pod}/{}", pod.uid.as_deref().unwrap_or_default())
}

pub(super) fn timed_out() -> FactsResponse {
    FactsResponse::Error("not in the agent's cache yet, and the API server did not answer in time".to_owned())
}

#[cfg(test)]
mod tests;
