//! Responds to a request at once if the pod is in the cache, and makes a job of any other request.

use super::connection::{Connection, Received, Request};
use super::job_queue::{Job, JobQueue, Task};
use crate::agent::pods::PodLookup;
use crate::agent_status::{self, AgentStatus};
use crate::log::Log;
use gybe_plugin::facts::wire::{self, FactsRequest, FactsResponse, WireError};
use serde_json::json;
use std::thread::Scope;
use std::time::Duration;

/// The part of a request's time that is reserved for sending the response.
const SEND_TIME: Duration = Duration::from_millis(50);

/// What requests need.
#[derive(Clone, Copy)]
pub(super) struct Dispatcher<'scope, 'env> {
    pub(super) pods: &'scope dyn PodLookup,
    pub(super) status: &'scope (dyn Fn() -> AgentStatus + Sync),
    pub(super) log: &'scope Log,
    pub(super) queue: &'scope JobQueue,
    pub(super) scope: &'scope Scope<'scope, 'env>,
}

impl Dispatcher<'_, '_> {
    /// Reads from a connection, and responds to its request or enqueues it. Returns the connection while its request is
    /// incomplete.
    pub(super) fn receive(&self, mut connection: Connection) -> Option<Connection> {
        match connection.receive() {
            Received::Incomplete => return Some(connection),
            Received::Request(request) => self.dispatch(connection, request),
            Received::Nothing => {}
        }
        None
    }

    fn dispatch(&self, connection: Connection, request: Result<Request, WireError>) {
        match request {
            Ok(Request::Pod(FactsRequest { pod, .. })) => match self.pods.find(&pod) {
                Some(response) => self.respond(connection, &response),
                None => self.enqueue(Job { connection, task: Task::LookUp(pod) }),
            },
            Ok(Request::Status) => self.send(agent_status::encode_response(&(self.status)()), connection),
            Err(why) => self.respond(connection, &FactsResponse::Error(why.to_string())),
        }
    }

    fn respond(&self, connection: Connection, response: &FactsResponse) {
        self.send(wire::encode_response(response), connection);
        self.log_fault(response);
    }

    /// A response has a few hundred bytes, which a socket takes at once.
    fn send(&self, response: String, connection: Connection) {
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
            Task::LookUp(_) if connection.is_closed() => return,
            Task::LookUp(pod) => {
                let response = self.pods.wait_for(&pod, connection.until() - SEND_TIME);
                self.log_fault(&response);
                wire::encode_response(&response).into_bytes()
            }
            Task::Send(bytes) => bytes,
        };
        let _ = connection.send_all(&bytes);
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
