//! Lookups of single pods that the watch has not delivered, on the runtime's thread.

use super::pod_cache::{PodCache, timed_out};
use crate::cluster::client;
use crate::cluster::pod_requests::{self, Pod};
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::wire::FactsResponse;
use kube::Client;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout_at;

/// A request to the runtime's thread. Queries of the plugin that wait for the same pod share one.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) pod: PodRef,
    pub(super) until: Instant,
}

/// The number of concurrent requests, each on a connection of its own: a handshake costs more than the request.
const CONCURRENCY: usize = 8;

/// Serves lookups until the sender is dropped.
pub(super) async fn serve(cache: Arc<PodCache>, client: Client, mut lookups: UnboundedReceiver<Lookup>) {
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    while let Some(Lookup { pod, until }) = lookups.recv().await {
        let (cache, client, permits) = (Arc::clone(&cache), client.clone(), Arc::clone(&permits));
        tokio::spawn(async move {
            let response = timeout_at(until.into(), get(&client, &cache, &permits, &pod)).await;
            cache.record_lookup(&pod, response.unwrap_or_else(|_| timed_out()));
        });
    }
}

async fn get(client: &Client, cache: &PodCache, permits: &Semaphore, pod: &PodRef) -> FactsResponse {
    let _permit = permits.acquire().await;
    let response = match pod_requests::one(pod) {
        Ok(request) => client::object::<Pod>(client, request).await,
        Err(fault) => Err(fault),
    };
    if let Err(fault) = response.as_ref()
        && !fault.is_missing()
    {
        cache.count_error(fault);
    }
    pod_requests::facts_response(response, "not in the agent's cache yet, and ")
}
