//! Single questions about pods that the watch has not told of: put once however many want to know,
//! answered on the runtime's thread, and forgotten as soon as they are answered.

use super::error::ApiError;
use super::line;
use super::pods::{self, Pod};
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::Answer;
use kube::Client;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// The questions that are open, by what is asked.
#[derive(Debug, Default)]
pub(super) struct Asks(Mutex<BTreeMap<String, Arc<Ask>>>);

/// Where an answer is waited for.
#[derive(Debug, Default)]
struct Ask {
    answer: Mutex<Option<Answer>>,
    given: Condvar,
}

/// A question on its way to the runtime's thread. There are never more than callers.
#[derive(Debug)]
pub(super) struct Errand {
    pod: PodRef,
    until: Instant,
    ask: Arc<Ask>,
}

impl Asks {
    /// Asks, or joins those who have asked already, and waits until then.
    pub(super) fn ask(&self, pod: &PodRef, until: Instant, to: &UnboundedSender<Errand>) -> Answer {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = Arc::clone(open.entry(name(pod)).or_insert_with(|| {
            let ask = Arc::<Ask>::default();
            let errand = Errand { pod: pod.clone(), until, ask: Arc::clone(&ask) };
            // The thread ends after the last who could ask.
            let _ = to.send(errand);
            ask
        }));
        drop(open);
        ask.wait(until)
    }

    /// Answers what is asked until nobody can ask any more.
    pub(super) async fn serve(self: Arc<Self>, client: Client, mut asked: UnboundedReceiver<Errand>) {
        while let Some(errand) = asked.recv().await {
            let (asks, client) = (Arc::clone(&self), client.clone());
            tokio::spawn(async move {
                let answer = tokio::time::timeout_at(errand.until.into(), get(&client, &errand.pod)).await;
                let answer = answer.unwrap_or_else(|_| late());
                asks.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&name(&errand.pod));
                errand.ask.give(answer);
            });
        }
    }
}

impl Ask {
    fn give(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.given.notify_all();
    }

    fn wait(&self, until: Instant) -> Answer {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.given.wait_timeout_while(answer, left, |answer| answer.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone().unwrap_or_else(late)
    }
}

fn name(pod: &PodRef) -> String {
    format!("{pod}/{}", pod.uid.as_deref().unwrap_or_default())
}

fn late() -> Answer {
    Answer::Fault("not seen yet, and the API server did not answer in time".to_owned())
}

async fn get(client: &Client, pod: &PodRef) -> Answer {
    let asked = match pods::one(pod) {
        Ok(request) => line::object::<Pod>(client, request).await,
        Err(fault) => Err(fault),
    };
    answer(asked, "not seen yet, and ")
}

/// What the API server's word on a pod comes to.
pub(super) fn answer(asked: Result<Pod, ApiError>, preface: &str) -> Answer {
    match asked.map(Pod::facts) {
        Ok(Ok(facts)) => Answer::Pod(Box::new(facts)),
        Ok(Err(fault)) => Answer::Fault(format!("{preface}the API server's answer is {fault}")),
        Err(fault) if fault.is_missing() => Answer::Unknown,
        Err(fault) => Answer::Fault(format!("{preface}{fault}")),
    }
}
