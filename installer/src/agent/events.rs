//! Events about this node and its pods: the queue into which the agent's threads post them, and the thread that writes
//! them to the API server. Posting never waits for a request.
//!
//! What an event contains is in `event`; which one is written next, and when, in `table`.

mod event;
mod table;

pub(crate) use event::{Event, PodEvent, Reason};

use crate::agent::pods::PodLookup;
use crate::cluster::{ClusterNode, QueryError, create_event, patch_event};
use crate::error::chain;
use crate::lead::process::{Role, Shared};
use crate::log::Log;
use event::{EventRequest, Regarding, Write, created, repeated};
use gybe_plugin::args::PodRef;
use serde_json::json;
use std::cell::RefCell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use table::{EventOutcome, EventTable};

/// The deadline of a request; the end of the agent is delayed by no more than it.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How often an agent that does not lead checks whether it does.
const ROLE_INTERVAL: Duration = Duration::from_secs(1);

/// The events that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    state: Mutex<EventQueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct EventQueueState {
    table: EventTable,
    /// Whether the settings switch events on, and there is a cluster.
    is_enabled: bool,
    is_closed: bool,
}

impl EventQueue {
    /// Adds an event; it is dropped while events are switched off, or the queue is full.
    pub(crate) fn post(&self, event: Event) {
        let mut state = self.state();
        if state.is_enabled && !state.is_closed {
            state.table.post(event, Instant::now());
            self.changed.notify_all();
        }
    }

    pub(crate) fn set_enabled(&self, is_enabled: bool) {
        let mut state = self.state();
        if state.is_enabled != is_enabled {
            state.is_enabled = is_enabled;
            state.table.clear();
        }
    }

    /// Returns how many events were dropped without being written.
    pub(crate) fn dropped(&self) -> u64 {
        self.state().table.dropped()
    }

    /// Ends [`Self::write_all`].
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    /// Writes events while this agent leads, until the queue is closed.
    pub(crate) fn write_all(&self, writer: &EventWriter<'_>) {
        let mut logged = String::new();
        while let Some(write) = self.next(writer.role) {
            let result = writer.send(&write);
            if let Err(why) = &result {
                let cause = chain(why);
                if logged != cause {
                    writer.log.warn("gybe node: an event cannot be written", json!({ "cause": cause }));
                }
                logged = cause;
            } else {
                logged.clear();
            }
            self.state().table.finish(&write, outcome(result.err().as_ref()), Instant::now());
        }
    }

    /// Waits for the next event that may be written; none when the queue is closed.
    fn next(&self, role: &Shared<Role>) -> Option<Write> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            let (now, leads) = (Instant::now(), matches!(role.read(), Role::Leads { .. }));
            if let Some(write) = leads.then(|| state.table.next(now)).flatten() {
                return Some(write);
            }
            let wait = if leads { state.table.wait(now) } else { Some(ROLE_INTERVAL) };
            state = match wait {
                Some(wait) => {
                    self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn state(&self) -> MutexGuard<'_, EventQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What writing an event needs.
pub(crate) struct EventWriter<'a> {
    pub(crate) home: &'a ClusterNode,
    /// The agent's pod; empty outside of a pod.
    pub(crate) instance: &'a str,
    pub(crate) pods: &'a dyn PodLookup,
    pub(crate) role: &'a Shared<Role>,
    pub(crate) log: &'a Log,
}

impl EventWriter<'_> {
    fn send(&self, write: &Write) -> Result<(), QueryError> {
        let (cluster, namespace) = (&self.home.cluster, write.event.namespace());
        let until = Instant::now() + TIMEOUT;
        match write.request {
            EventRequest::Create => {
                let event = self.identified(&write.event);
                let instance = if self.instance.is_empty() { &self.home.node } else { self.instance };
                create_event(cluster, namespace, &created(&event, write, &self.home.node, instance), until)
            }
            EventRequest::Repeat => patch_event(cluster, namespace, &write.name, &repeated(write), until),
        }
    }

    /// Adds the pod's uid from the pod cache where the runtime did not pass one: `kubectl describe` selects events by
    /// uid.
    fn identified(&self, event: &Event) -> Event {
        let Regarding::Pod(pod @ PodRef { uid: None, .. }) = &event.regarding else { return event.clone() };
        let uid = RefCell::new(None);
        self.pods.has_pod(&|facts| {
            let is_it = facts.namespace == pod.namespace.as_str() && facts.name == pod.name.as_str();
            if is_it {
                *uid.borrow_mut() = Some(facts.uid.clone());
            }
            is_it
        });
        let pod = PodRef { uid: uid.into_inner(), ..pod.clone() };
        Event { regarding: Regarding::Pod(pod), ..event.clone() }
    }
}

fn outcome(error: Option<&QueryError>) -> EventOutcome {
    let Some(error) = error else { return EventOutcome::Written };
    match error {
        QueryError::Api(error) => match error.status() {
            // The first attempt arrived, and its response was lost.
            Some(409) => EventOutcome::Written,
            Some(404) => EventOutcome::Missing,
            Some(408 | 429 | 500..) | None => EventOutcome::Failed,
            // Events cannot be created while their namespace is being deleted, or without the right to do so.
            Some(_) => EventOutcome::Refused,
        },
        QueryError::Cluster(_) => EventOutcome::Failed,
    }
}
