//! Responds to a request at once if the pod is in the cache, and makes a job of any other request, because its
//! response waits for a pod that the API server does not have yet, or for a client that reads slowly. Each job has a thread
//! and a deadline of its own; the number of threads and the length of the queue are bounded. Hand-overs of ambient
//! pods, which wait for ztunnel, have a queue of their own: without ztunnel they would delay the others.

use super::{ClientRequest, FactsConnection, ReceivedBytes, RequestError};
use crate::agent::pods::PodLookup;
use crate::agent::ztunnel::{AddError, AmbientPods};
use crate::agent_status::{self, AgentStatus};
use crate::error::chain;
use crate::log::Log;
use gybe_netfilter::kernel::netns::Netns;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::ambient::{self, AmbientPod, HandOverBy, HandOverCause, HandOverFault, PodUid};
use gybe_plugin::facts::wire::{self, FactsRequest, FactsResponse};
use gybe_plugin::pod::{Ambient, PodFacts};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};

/// What requests need.
#[derive(Clone, Copy)]
pub(super) struct Dispatcher<'scope, 'env> {
    pub(super) pods: &'scope dyn PodLookup,
    pub(super) ambient: Option<&'scope AmbientPods>,
    pub(super) status: &'scope (dyn Fn() -> AgentStatus + Sync),
    pub(super) log: &'scope Log,
    pub(super) lookups: &'scope JobQueue,
    pub(super) hand_overs: &'scope JobQueue,
    pub(super) scope: &'scope Scope<'scope, 'env>,
}

impl Dispatcher<'_, '_> {
    /// Reads from a connection, and responds to its request or enqueues it. Returns the connection while its request is
    /// incomplete.
    pub(super) fn receive(&self, mut connection: FactsConnection) -> Option<FactsConnection> {
        match connection.receive() {
            ReceivedBytes::Incomplete => return Some(connection),
            ReceivedBytes::Request(request) => self.dispatch(connection, request),
            ReceivedBytes::Nothing => {}
        }
        None
    }

    fn dispatch(&self, connection: FactsConnection, request: Result<ClientRequest, RequestError>) {
        match request {
            Ok(ClientRequest::Pod(FactsRequest { pod, knows_ambient, .. })) => match self.pods.find(&pod) {
                Some(response) => self.respond(connection, &fit_for(knows_ambient, response)),
                None => self.enqueue(Job { connection, task: Task::LookUp { pod, knows_ambient } }),
            },
            Ok(ClientRequest::Ambient(pod, netns, by)) => match self.ambient {
                Some(_) => self.enqueue(Job { connection, task: Task::Ambient(pod, netns, by) }),
                None => self.respond(connection, &FactsResponse::Error(AMBIENT_OFF.to_owned())),
            },
            Ok(ClientRequest::AmbientLeaves(pod, step)) => match self.ambient {
                Some(pods) if pods.leave(&pod, step) => {
                    self.send(ambient::encode_response(&Ok(())), connection);
                }
                // Closed without a response, as a hand-over to an agent that serves no ztunnel.
                Some(_) => {}
                None => self.respond(connection, &FactsResponse::Error(AMBIENT_OFF.to_owned())),
            },
            Ok(ClientRequest::Status) => {
                self.send(agent_status::encode_response(&(self.status)()), connection);
            }
            Err(why) => self.respond(connection, &FactsResponse::Error(chain(&why))),
        }
    }

    fn respond(&self, connection: FactsConnection, response: &FactsResponse) {
        self.send(wire::encode_response(response), connection);
        self.log_fault(response);
    }

    /// A response has a few hundred bytes, which a socket takes at once.
    fn send(&self, response: String, connection: FactsConnection) {
        let mut bytes = response.into_bytes();
        // An error means that the client closed the connection: it has decided without a response.
        if let Ok(sent) = connection.send(&bytes)
            && sent < bytes.len()
        {
            bytes.drain(..sent);
            self.enqueue(Job { connection, task: Task::Send(bytes) });
        }
    }

    /// Performs a job. It may block, so it runs on a thread of the queue.
    pub(super) fn perform(&self, Job { connection, task }: Job) {
        let bytes = match task {
            Task::LookUp { .. } | Task::Ambient(..) if connection.is_closed() => return,
            Task::LookUp { pod, knows_ambient } => {
                let response = self.pods.wait_for(&pod, connection.ready_by());
                let response = fit_for(knows_ambient, response);
                self.log_fault(&response);
                wire::encode_response(&response).into_bytes()
            }
            Task::Ambient(pod, netns, by) => {
                let Some(pods) = self.ambient else { return };
                let (name, uid) = (pod.to_string(), pod.uid.clone());
                let added = pods.add(pod, netns, by, connection.ready_by());
                let response = match added.as_ref().map_err(fault) {
                    Ok(_) => Ok(()),
                    Err(Some(fault)) => Err(fault),
                    // Closed without a response.
                    Err(None) => return,
                };
                // While ztunnel is away that would be a line for each pod; ztunnel's refusal has a line of its own.
                if by != HandOverBy::Restart
                    && let Err(HandOverFault { text, .. }) = &response
                {
                    let fields = json!({ "pod": name, "cause": text });
                    self.log.warn("gybe node: an ambient pod was refused", fields);
                }
                let bytes = ambient::encode_response(&response).into_bytes();
                let is_sent = !connection.is_closed() && connection.send_all(&bytes).is_ok();
                // For a client that is gone the hand-over has failed.
                if is_sent && let Ok(hand_over) = added {
                    hand_over.complete();
                    self.note_absence(pods, &uid);
                }
                return;
            }
            Task::Send(bytes) => bytes,
        };
        let _ = connection.send_all(&bytes);
    }

    /// Notes an ambient pod that the API server does not have: it was deleted, or has ended, before it was handed over,
    /// or the watch is yet to deliver it. The watch changes the pods first, so that it never delivers between the two.
    fn note_absence(&self, pods: &AmbientPods, uid: &PodUid) {
        let is_present = |facts: &PodFacts| {
            let has_ended = matches!(&facts.ambient, Ambient::Undecided(it) if it.has_ended);
            facts.uid == uid.as_str() && !has_ended
        };
        pods.absent(uid);
        if self.pods.has_pod(&is_present) == Some(true) {
            pods.present(uid);
        }
    }

    fn log_fault(&self, response: &FactsResponse) {
        let (message, cause) = match response {
            FactsResponse::Pod(_) | FactsResponse::Unknown => return,
            FactsResponse::Error(cause) => ("gybe node: a query failed", cause),
            FactsResponse::BrokenManifest(cause) => ("gybe node: a manifest cannot be used", cause),
        };
        self.log.warn(message, json!({ "cause": cause }));
    }
}

/// Returns the response for a client. One that does not evaluate whether a pod is ambient would leave it alone.
fn fit_for(knows_ambient: bool, response: FactsResponse) -> FactsResponse {
    let is_ambient =
        matches!(&response, FactsResponse::Pod(facts) if matches!(facts.ambient, Ambient::Yes { .. }));
    match is_ambient && !knows_ambient {
        true => FactsResponse::Error(OLDER_ENTRY.to_owned()),
        false => response,
    }
}

/// The agent writes the entry within a second after its start.
const OLDER_ENTRY: &str = "the pod is ambient, but the plugin or its entry on this node is from a release or a time \
                           without ambient mode; the agent rewrites it within a second";

/// Returns the response to a hand-over that has failed; none when the client has to hand over again.
fn fault(why: &AddError) -> Option<HandOverFault> {
    let cause = match why {
        AddError::NotServed => return None,
        AddError::NotConnected => HandOverCause::NotConnected,
        AddError::NoAnswer | AddError::Pending => HandOverCause::NoAnswer,
        AddError::Refused(_) => HandOverCause::Refused,
        AddError::Superseded | AddError::TooMany(_) => HandOverCause::Other,
    };
    Some(HandOverFault { cause, text: why.to_string() })
}

/// The response to a hand-over on a node without ambient mode.
const AMBIENT_OFF: &str = "ambient mode is off on this node";

/// The bounds of a queue.
struct Bounds {
    threads: usize,
    /// The maximum number of jobs that wait for a thread.
    jobs: usize,
    /// The response when they are exceeded.
    text: &'static str,
}

const LOOKUPS: Bounds = Bounds { threads: 64, jobs: 256, text: "too many requests wait for a pod" };

/// ztunnel receives one pod after the other, so more threads would not make hand-overs faster. A node that starts may
/// have 500 pods at once.
const HAND_OVERS: Bounds = Bounds { threads: 64, jobs: 512, text: "too many pods wait for ztunnel" };

/// The most files of requests that wait or are worked on: each has its connection, and a hand-over the namespace.
pub(in crate::agent) const MAX_REQUEST_FILES: usize =
    LOOKUPS.threads + LOOKUPS.jobs + 2 * (HAND_OVERS.threads + HAND_OVERS.jobs);

/// A request that cannot be completed without waiting.
pub(super) struct Job {
    pub(super) connection: FactsConnection,
    pub(super) task: Task,
}

pub(super) enum Task {
    /// Wait for a pod, and send its facts.
    LookUp { pod: PodRef, knows_ambient: bool },
    /// Wait until ztunnel has acknowledged a pod.
    Ambient(AmbientPod, Netns, HandOverBy),
    /// Send the rest of a response.
    Send(Vec<u8>),
}

#[derive(Default)]
pub(super) struct JobQueue(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
}

impl Dispatcher<'_, '_> {
    /// Enqueues a job. If the queue is full, the client receives an error. If no thread runs and the kernel creates
    /// none, the connections of all queued jobs are closed, and the clients retry.
    pub(super) fn enqueue(&self, job: Job) {
        let (jobs, bounds) = match job.task {
            Task::Ambient(..) => (self.hand_overs, HAND_OVERS),
            Task::LookUp { .. } | Task::Send(_) => (self.lookups, LOOKUPS),
        };
        let mut queue = jobs.lock();
        if queue.jobs.len() >= bounds.jobs {
            let why = FactsResponse::Error(bounds.text.to_owned());
            let _ = job.connection.send(wire::encode_response(&why).as_bytes());
            return;
        }
        queue.jobs.push_back(job);
        if queue.threads < bounds.threads {
            let dispatcher = *self;
            match thread::Builder::new().spawn_scoped(self.scope, move || dispatcher.perform_all(jobs)) {
                Ok(_) => queue.threads += 1,
                Err(why) => {
                    if queue.threads == 0 {
                        queue.jobs.clear();
                    }
                    let fields = json!({ "why": why.to_string() });
                    self.log.error("gybe node: cannot start a thread for a query", fields);
                }
            }
        }
    }

    fn perform_all(&self, jobs: &JobQueue) {
        while let Some(job) = jobs.next() {
            self.perform(job);
        }
    }
}

impl JobQueue {
    /// Returns the next job; without one, the calling thread has to end.
    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        let next = queue.jobs.pop_front();
        queue.threads -= usize::from(next.is_none());
        next
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
