//! Callers that wait: for a pod that is about to come, or because they take their answer in pieces. Each
//! has a thread and its own deadline, and there is a bound on the threads and on those behind them.

use super::caller::Caller;
use super::desk::Desk;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::{self, FactsResponse};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// So many are waited with at once.
const THREADS: usize = 64;

/// So many more have their turn when one of them is done, if they are still there.
const BEHIND: usize = 256;

/// Something that cannot be done at once.
pub(super) struct Errand {
    pub(super) caller: Caller,
    pub(super) task: Task,
}

pub(super) enum Task {
    /// To find out about a pod, and say so.
    Learn(PodRef),
    /// To say these words.
    Say(Vec<u8>),
}

/// Those that have no thread yet, and how many have one.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    errands: VecDeque<Errand>,
    threads: usize,
}

impl Desk<'_, '_> {
    /// Has an errand done in its turn. Where nobody will do it, the caller is told so, or hung up on where
    /// the kernel has no thread at all, and asks again.
    pub(super) fn wait(&self, errand: Errand) {
        let mut queue = self.waiting.lock();
        if queue.errands.len() >= BEHIND {
            let why = FactsResponse::Error("too many others wait for their pods".to_owned());
            let _ = errand.caller.say(wire::encode_response(&why).as_bytes());
            return;
        }
        queue.errands.push_back(errand);
        if queue.threads < THREADS {
            let desk = *self;
            match thread::Builder::new().spawn_scoped(self.scope, move || desk.perform_all()) {
                Ok(_) => queue.threads += 1,
                Err(why) => {
                    if queue.threads == 0 {
                        queue.errands.clear();
                    }
                    let more = json!({ "why": why.to_string() });
                    self.journal.tell("error", "gybe node: there is no thread for a caller", more);
                }
            }
        }
    }

    fn perform_all(&self) {
        while let Some(errand) = self.waiting.next() {
            self.perform(errand);
        }
    }
}

impl Waiting {
    /// The next errand; without one, the thread that asks is to end.
    fn next(&self) -> Option<Errand> {
        let mut queue = self.lock();
        let next = queue.errands.pop_front();
        queue.threads -= usize::from(next.is_none());
        next
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
