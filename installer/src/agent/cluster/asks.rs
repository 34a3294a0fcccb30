//! Single questions about pods that the watch has not told of, on the runtime's thread.

use super::error::ApiError;
use super::known::{Known, late};
use super::line;
use super::pods::{self, Pod};
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::FactsResponse;
use kube::Client;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout_at;

/// A question on its way to the runtime's thread. There are never more than callers.
#[derive(Debug)]
pub(super) struct Errand {
    pub(super) pod: PodRef,
    pub(super) until: Instant,
}

/// So many are asked at once, on as many connections: a handshake costs more than the question.
const AT_ONCE: usize = 8;

/// Answers what is asked until nobody can ask any more.
pub(super) async fn serve(known: Arc<Known>, client: Client, mut asked: UnboundedReceiver<Errand>) {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(Errand { pod, until }) = asked.recv().await {
        let (known, client, turns) = (Arc::clone(&known), client.clone(), Arc::clone(&turns));
        tokio::spawn(async move {
            let answer = timeout_at(until.into(), get((&client, &known), &turns, &pod)).await;
            known.answer(&pod, answer.unwrap_or_else(|_| late()));
        });
    }
}

async fn get((client, known): (&Client, &Known), turns: &Semaphore, pod: &PodRef) -> FactsResponse {
    let _turn = turns.acquire().await;
    let asked = match pods::one(pod) {
        Ok(request) => line::object::<Pod>(client, request).await,
        Err(fault) => Err(fault),
    };
    if let Err(fault) = asked.as_ref()
        && !fault.is_missing()
    {
        known.count_error(fault);
    }
    answer(asked, "not seen yet, and ")
}

/// What the API server's word on a pod comes to.
pub(super) fn answer(asked: Result<Pod, ApiError>, preface: &str) -> FactsResponse {
    match asked.map(Pod::facts) {
        Ok(Ok(facts)) => FactsResponse::Pod(Box::new(facts)),
        Ok(Err(fault)) => FactsResponse::Error(format!("{preface}the API server's answer is {fault}")),
        Err(fault) if fault.is_missing() => FactsResponse::Unknown,
        Err(fault) => FactsResponse::Error(format!("{preface}{fault}")),
    }
}
