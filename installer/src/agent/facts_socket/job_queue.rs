//! Requests that wait: for a pod that the API server does not have yet, or for a client that reads slowly. Each has a
//! thread and a deadline of its own; the number of threads and the length of the queue are bounded.

use super::connection::Connection;
use super::dispatcher::Dispatcher;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::{self, FactsResponse};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

const MAX_THREADS: usize = 64;

/// The maximum number of jobs that wait for a thread.
const MAX_QUEUED: usize = 256;

/// A request that cannot be completed without waiting.
pub(super) struct Job {
    pub(super) connection: Connection,
    pub(super) task: Task,
}

pub(super) enum Task {
    /// Wait for a pod, and send its facts.
    LookUp(PodRef),
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
        let mut queue = self.queue.lock();
        if queue.jobs.len() >= MAX_QUEUED {
            let why = FactsResponse::Error("too many requests wait for a pod".to_owned());
            let _ = job.connection.send(wire::encode_response(&why).as_bytes());
            return;
        }
        queue.jobs.push_back(job);
        if queue.threads < MAX_THREADS {
            let dispatcher = *self;
            match thread::Builder::new().spawn_scoped(self.scope, move || dispatcher.perform_all()) {
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

    fn perform_all(&self) {
        while let Some(job) = self.queue.next() {
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
