//! Requests that wait, for a pod that is about to appear or for a client that reads slowly. PerDirectory has a thread and its own
//! deadline; both the threads and the queue behind them are bounded.

use super::connection::Connection;
use super::dispatcher::Dispatcher;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::{self, FactsResponse};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

const MAX_THREADS: usize = 64;

/// The number of jobs that wait for a thread.
const MAX_QUEUED: usize = 256;

/// Something that cannot be done at once.
pub(super) struct Job {
    pub(super) connection: Connection,
    pub(super) task: Task,
}

pub(super) enum Task {
    /// Wait for a pod, and send what is known about it.
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
    /// Enqueues a job. If the queue is full the client gets a fault; if the kernel has no thread at all its connection is
    /// closed, and the client tries again.
    pub(super) fn enqueue(&self, job: Job) {
        let mut queue = self.queue.lock();
        if queue.jobs.len() >= MAX_QUEUED {
            let why = FactsResponse::Error("too many others wait for their pods".to_owned());
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
