//! Which requests are answered at once, and which become jobs.

use super::connection::{Connection, Received, Request};
use super::job_queue::{Job, JobQueue, Task};
use crate::agent::PodLookup;
use crate::host::agent_status::{self, AgentStatus};
use crate::log::Log;
use gybe_plugin::facts::wire::{self, FactsRequest, FactsResponse, WireError};
use serde_json::json;
use std::thread::Scope;
use std::time::Duration;

/// The part of a request's time that is reserved for sending the response.
const SEND_TIME: Duration = Duration::from_millis(50);

/// What requests are answered from.
#[derive(Clone, Copy)]
pub(super) struct Dispatcher<'scope, 'env> {
    pub(super) pods: &'scope dyn PodLookup,
    pub(super) status: &'scope (dyn Fn() -> AgentStatus + Sync),
    pub(super) log: &'scope Log,
    pub(super) queue: &'scope JobQueue,
    pub(super) scope: &'scope Scope<'scope, 'env>,
}

impl Dispatcher<'_, '_> {
    /// Reads from a connection, and answers its request or enqueues it. Returns the connection while its request is incomplete.
    pub(super) fn receive(&self, mut connection: Connection) -> Option<Connection> {
        match connection.receive() {
            Received::Incomplete => return Some(connection),
            Received::Request(request) => self.answer(connection, request),
            Received::Nothing => {}
        }
        None
    }

    fn answer(&self, connection: Connection, request: Result<Request, WireError>) {
        match request {
            Ok(Request::Pod(FactsRequest { pod, .. })) => match self.pods.find(&pod) {
                Some(answer) => self.respond(connection, &answer),
                None => self.enqueue(Job { connection, task: Task::LookUp(pod) }),
            },
            Ok(Request::Status) => self.send(agent_status::answer(&(self.status)()), connection),
            Err(why) => self.respond(connection, &FactsResponse::Error(why.to_string())),
        }
    }

    fn respond(&self, connection: Connection, answer: &FactsResponse) {
        self.send(wire::encode_response(answer), connection);
        self.log_fault(answer);
    }

    /// A response has a few hundred bytes, which a socket takes at once.
    fn send(&self, response: String, connection: Connection) {
        let mut bytes = response.into_bytes();
        // A client that closed the connection has decided without us.
        if let Ok(sent) = connection.send(&bytes)
            && sent < bytes.len()
        {
            bytes.drain(..sent);
            self.enqueue(Job { connection, task: Task::Send(bytes) });
        }
    }

    /// Does a job, on a thread of its own.
    pub(super) fn perform(&self, Job { connection, task }: Job) {
        let bytes = match task {
            Task::LookUp(_) if connection.is_closed() => return,
            Task::LookUp(pod) => {
                let answer = self.pods.wait_for(&pod, connection.until() - SEND_TIME);
                self.log_fault(&answer);
                wire::encode_response(&answer).into_bytes()
            }
            Task::Send(bytes) => bytes,
        };
        let _ = connection.send_all(&bytes);
    }

    fn log_fault(&self, answer: &FactsResponse) {
        if let FactsResponse::Error(why) = answer {
            self.log.warn("gybe node: a query could not be answered", json!({ "cause": why }));
        }
    }
}
