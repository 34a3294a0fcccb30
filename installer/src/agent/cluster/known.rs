//! What is known of this node's pods, and how well: filled by the watch, read by who asks, who may wait
//! here for what is not known yet. When the API server is away all stays as it was.

mod awaited;
mod held;

pub(super) use awaited::{Patience, late};
pub(super) use held::Held;

use super::error::ApiError;
use crate::agent::Part;
use awaited::{Awaited, life};
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::matches;
use gybe_plugin::facts::wire::FactsResponse;
use gybe_plugin::pod::PodFacts;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How the watch is, for health and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchState {
    /// Whether the list was whole at least once: from then on it answers, however old it is.
    pub synced: bool,
    /// How long ago the API server last told of pods: a list, an opened watch, an event, a bookmark. A
    /// server sends a bookmark about every minute; before the first it counts from the start. A refusal
    /// is none of them: with it, nobody hears of new pods.
    pub silent: Duration,
    /// What stands in the way of the watch now; none while it is open.
    pub trouble: Option<Trouble>,
    /// How many pods are known.
    pub pods: usize,
    /// How often the watch was opened again.
    pub reconnects: u64,
    /// How often a request about pods failed, by HTTP status; none is no answer, or one that cannot be read.
    pub errors: BTreeMap<Option<u16>, u64>,
}

/// What stands in the way of the watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// HTTP's status code, where the server answered.
    pub status: Option<u16>,
    /// In words; never a credential.
    pub sentence: String,
}

/// By `<namespace>/<name>`, of which there is only one at any time.
pub(super) type Pods = BTreeMap<String, Held>;

/// What is known, shared between the watch and who asks.
#[derive(Debug)]
pub(super) struct Known {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Debug)]
struct Now {
    pods: Pods,
    /// Pods that somebody waits for. Gone with the last who does.
    awaited: BTreeMap<String, Awaited>,
    synced: bool,
    heard: Instant,
    trouble: Option<Trouble>,
    openings: u64,
    errors: BTreeMap<Option<u16>, u64>,
}

impl Default for Known {
    fn default() -> Self {
        let now = Now {
            pods: Pods::new(),
            awaited: BTreeMap::new(),
            synced: false,
            heard: Instant::now(),
            trouble: None,
            openings: 0,
            // A counter that is not there cannot be told from one that never counted.
            errors: BTreeMap::from([(None, 0)]),
        };
        Self { now: Mutex::new(now), changed: Condvar::new() }
    }
}

pub(super) fn key(facts: &PodFacts) -> String {
    format!("{}/{}", facts.namespace, facts.name)
}

impl Known {
    /// The pod that is meant, if it is known.
    pub(super) fn find(&self, pod: &PodRef) -> Option<FactsResponse> {
        self.lock().find(&pod.to_string(), pod)
    }

    /// The pod that is meant. One of that name with another uid is an earlier life, or a later one, and
    /// as good as none: then it is waited for, and asked for once however many wait.
    pub(super) fn learn(&self, pod: &PodRef, patience: Patience, ask: impl FnOnce()) -> FactsResponse {
        let (name, life) = (pod.to_string(), life(pod));
        let (mut now, mut ask) = (self.lock(), Some(ask));
        if let Some(facts) = now.find(&name, pod) {
            return facts;
        }
        let awaited = now.awaited.entry(life.clone()).or_insert_with(Awaited::new);
        awaited.waiting = awaited.waiting.saturating_add(1);
        loop {
            let step = now.awaited.get_mut(&life).map_or(Err(late()), |pod| pod.wait(patience, &mut ask));
            let left = match step {
                Ok(left) => left,
                Err(answer) => return now.leave(&life, answer),
            };
            now = self.changed.wait_timeout(now, left).unwrap_or_else(PoisonError::into_inner).0;
            if let Some(facts) = now.find(&name, pod) {
                return now.leave(&life, facts);
            }
        }
    }

    /// What came of the question that was asked for it.
    pub(super) fn answer(&self, pod: &PodRef, answer: FactsResponse) {
        if let Some(awaited) = self.lock().awaited.get_mut(&life(pod)) {
            awaited.answer = Some(answer);
        }
        self.changed.notify_all();
    }

    /// The list is whole: nothing else is there. Says whether it is the first.
    pub(super) fn replace(&self, pods: Pods) -> bool {
        self.change(|now| {
            now.pods = pods;
            !std::mem::replace(&mut now.synced, true)
        })
    }

    /// A pod of a list that is not whole yet: until the first is, it is better than nothing.
    pub(super) fn hold_first(&self, facts: &PodFacts) {
        self.change(|now| {
            if !now.synced {
                now.pods.insert(key(facts), Held::of(facts.clone()));
            }
        });
    }

    /// A pod is there, or another than before.
    pub(super) fn hold(&self, facts: PodFacts) {
        self.change(|now| drop(now.pods.insert(key(&facts), Held::of(facts))));
    }

    /// A pod is gone. A later life of its name is not.
    pub(super) fn forget(&self, facts: &PodFacts) {
        self.change(|now| {
            let name = key(facts);
            if now.pods.get(&name).is_some_and(|known| known.names().uid == facts.uid) {
                now.pods.remove(&name);
            }
        });
    }

    /// The server told something of pods.
    pub(super) fn heard(&self) {
        self.lock().heard = Instant::now();
    }

    /// The watch is open. Says whether it had not been well.
    pub(super) fn open(&self) -> bool {
        let mut now = self.lock();
        now.openings = now.openings.saturating_add(1);
        now.heard = Instant::now();
        now.trouble.take().is_some()
    }

    /// A request failed.
    pub(super) fn count_error(&self, fault: &ApiError) {
        *self.lock().errors.entry(fault.status()).or_default() += 1;
    }

    /// The watch is not open. Says whether that is news.
    pub(super) fn lost(&self, fault: &ApiError) -> bool {
        let trouble = Trouble { status: fault.status(), sentence: fault.to_string() };
        let mut now = self.lock();
        let news = now.trouble.as_ref() != Some(&trouble);
        now.trouble = Some(trouble);
        news
    }

    /// Whether a pod of this part of Istio is known; none as long as the list was never whole.
    pub(super) fn has_pod_of(&self, part: &Part) -> Option<bool> {
        let now = self.lock();
        now.synced.then(|| now.pods.values().map(Held::names).any(|facts| part.contains(facts)))
    }

    pub(super) fn state(&self) -> WatchState {
        let now = self.lock();
        WatchState {
            synced: now.synced,
            silent: now.heard.elapsed(),
            trouble: now.trouble.clone(),
            pods: now.pods.len(),
            reconnects: now.openings.saturating_sub(1),
            errors: now.errors.clone(),
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Now) -> T) -> T {
        let mut now = self.lock();
        let changed = change(&mut now);
        now.heard = Instant::now();
        drop(now);
        self.changed.notify_all();
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    fn find(&self, name: &str, pod: &PodRef) -> Option<FactsResponse> {
        let facts = self.pods.get(name)?.whole().filter(|facts| matches(facts, pod))?;
        Some(FactsResponse::Pod(Box::new(facts.clone())))
    }

    fn leave(&mut self, life: &str, answer: FactsResponse) -> FactsResponse {
        if let Some(awaited) = self.awaited.get_mut(life) {
            awaited.waiting = awaited.waiting.saturating_sub(1);
        }
        self.awaited.retain(|_, awaited| awaited.waiting > 0);
        answer
    }
}

#[cfg(test)]
mod tests;
