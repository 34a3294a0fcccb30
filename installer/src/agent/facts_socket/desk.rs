//! Who is answered now, and who has to wait.

use super::caller::{Caller, Heard, Request};
use super::waiting::{Errand, Task, Waiting};
use crate::agent::Pods;
use crate::agent::agent_status::{self, AgentStatus};
use crate::log::Journal;
use gybe_plugin::facts::wire::{self, FactsRequest, FactsResponse, WireError};
use serde_json::json;
use std::thread::Scope;
use std::time::Duration;

/// What is left of a caller's time for the answer's way back.
const WAY_BACK: Duration = Duration::from_millis(50);

/// What it takes to answer.
#[derive(Clone, Copy)]
pub(super) struct Desk<'scope, 'env> {
    pub(super) pods: &'scope dyn Pods,
    pub(super) status: &'scope (dyn Fn() -> AgentStatus + Sync),
    pub(super) journal: &'scope Journal,
    pub(super) waiting: &'scope Waiting,
    pub(super) scope: &'scope Scope<'scope, 'env>,
}

impl Desk<'_, '_> {
    /// Hears a caller, and answers it or has it wait. Given back when it has not said all.
    pub(super) fn hear(&self, mut caller: Caller) -> Option<Caller> {
        match caller.hear() {
            Heard::Part => return Some(caller),
            Heard::Request(asked) => self.answer(caller, asked),
            Heard::Nothing => {}
        }
        None
    }

    fn answer(&self, caller: Caller, asked: Result<Request, WireError>) {
        match asked {
            Ok(Request::Pod(FactsRequest { pod, .. })) => match self.pods.at_once(&pod) {
                Some(answer) => self.say(caller, &answer),
                None => self.wait(Errand { caller, task: Task::Learn(pod) }),
            },
            Ok(Request::Status) => self.say_words(agent_status::answer(&(self.status)()), caller),
            Err(why) => self.say(caller, &FactsResponse::Error(why.to_string())),
        }
    }

    fn say(&self, caller: Caller, answer: &FactsResponse) {
        self.say_words(wire::encode_response(answer), caller);
        self.tell(answer);
    }

    /// An answer is a few hundred bytes, which a socket takes at once.
    fn say_words(&self, words: String, caller: Caller) {
        let mut words = words.into_bytes();
        // A caller that went away has decided without us.
        if let Ok(said) = caller.say(&words)
            && said < words.len()
        {
            words.drain(..said);
            self.wait(Errand { caller, task: Task::Say(words) });
        }
    }

    /// Does on a thread of its own what cannot be done at once.
    pub(super) fn perform(&self, Errand { caller, task }: Errand) {
        let words = match task {
            Task::Learn(_) if caller.has_left() => return,
            Task::Learn(pod) => {
                let answer = self.pods.answer(&pod, caller.until() - WAY_BACK);
                self.tell(&answer);
                wire::encode_response(&answer).into_bytes()
            }
            Task::Say(words) => words,
        };
        let _ = caller.say_all(&words);
    }

    fn tell(&self, answer: &FactsResponse) {
        if let FactsResponse::Error(why) = answer {
            self.journal.tell("warn", "gybe node: a question could not be answered", json!({ "cause": why }));
        }
    }
}
