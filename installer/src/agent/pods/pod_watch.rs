//! The requests about this node's pods, on the runtime's thread: the watch, which begins with a list, and lookups of single
//! pods that the watch has not delivered.

use super::list_parser::ListParser;
use super::pod_cache::{CachedPod, PodCache, PodsByName, key, timed_out};
use crate::agent::ztunnel::AmbientPods;
use crate::cluster::error::ApiError;
use crate::cluster::objects::{AgentPodStatus, Ignored, ObjectList};
use crate::cluster::pod_requests::PodManifest;
use crate::cluster::watch::{TOO_LONG, Watched};
use crate::cluster::{client, pod_requests};
use crate::log::Log;
use gybe_plugin::args::PodRef;
use gybe_plugin::facts::ambient::PodUid;
use gybe_plugin::facts::wire::FactsResponse;
use gybe_plugin::pod::{Ambient, ManifestError, PodFacts};
use http_body_util::BodyExt;
use hyper::Request;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{timeout, timeout_at};

/// How long the next part of a list may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct NodePods {
    pub(super) node: String,
    pub(super) cache: Arc<PodCache>,
    /// None where ambient mode is off.
    pub(super) ambient: Option<Arc<AmbientPods>>,
}

/// How long an ambient pod stays that a new list does not have, or the cache when it is handed over: they may lag behind.
/// The watch delivers such a pod before its next bookmark.
const UNLISTED: Duration = Duration::from_secs(60);

fn has_ended(pod: &PodManifest) -> bool {
    pod.status().is_some_and(AgentPodStatus::has_ended)
}

/// Returns the facts; in ambient mode with the parts by which the agent decides whether the pod is ambient.
fn facts_of(pod: PodManifest, is_ambient: bool) -> Result<PodFacts, ManifestError> {
    let selectable = is_ambient.then(|| Ambient::Undecided(Box::new(pod.selectable(has_ended(&pod)))));
    Ok(PodFacts { ambient: selectable.unwrap_or_default(), ..pod.facts()? })
}

impl Watched for NodePods {
    type Object = PodManifest;

    const LONGEST_WAIT: Duration = Duration::from_secs(30);

    /// Lists the pods page by page. In ambient mode the first list is no older than the request: ztunnel ends each pod
    /// that is not in it.
    async fn first_version(&self, client: &Client, log: &Log) -> Result<String, ApiError> {
        let (mut found, mut next) = (PodsByName::new(), None);
        let may_lag = self.ambient.is_none() || self.cache.state().synced;
        loop {
            let request = pod_requests::list(&self.node, next.as_deref(), may_lag)?;
            let response = client.send(request.map(Body::from)).await?;
            let page = self.page(response.into_body(), &mut found).await?;
            next = page.next().map(str::to_owned);
            if next.is_none() {
                let (version, pods) = (page.version()?, found.len());
                let uids = |_| found.values().map(|pod| pod.uid().to_owned()).collect::<BTreeSet<_>>();
                let uids = self.ambient.as_ref().map(uids).unwrap_or_default();
                if self.cache.replace(found) {
                    log.info("gybe node: pods are known", json!({ "pods": pods }));
                }
                if let Some(ambient) = &self.ambient {
                    ambient.listed(|uid| uids.contains(uid.as_str()));
                }
                return Ok(version);
            }
        }
    }

    fn request(&self, version: &str, seconds: u32) -> Result<Request<Vec<u8>>, ApiError> {
        pod_requests::watch(&self.node, version, seconds)
    }

    fn handle(&self, pod: PodManifest, is_deleted: bool) -> Option<String> {
        let version = Some(pod.resource_version().to_owned()).filter(|version| !version.is_empty());
        let has_ended = is_deleted || has_ended(&pod);
        let assigned = pod.status().and_then(AgentPodStatus::assigned);
        // A pod without containers has no facts.
        let Ok(facts) = facts_of(pod, self.ambient.is_some()) else { return version };
        let uid = PodUid::parse(&facts.uid);
        // First: a pod that is handed over between the two is in the cache already, or no longer.
        match is_deleted {
            true => self.cache.remove(&facts),
            false => self.cache.insert(facts, assigned),
        }
        if let (Some(ambient), Ok(uid)) = (&self.ambient, uid) {
            match has_ended {
                true => drop(ambient.remove(&uid)),
                false => ambient.present(&uid),
            }
        }
        version
    }

    fn record_event(&self) {
        self.cache.record_event();
    }

    fn record_bookmark(&self) {
        if let Some(ambient) = &self.ambient {
            ambient.remove_unlisted(UNLISTED);
        }
    }

    fn record_open(&self, log: &Log) {
        if self.cache.opened() {
            log.info("gybe node: pods are watched again", json!({}));
        }
    }

    fn record_failure(&self, fault: &ApiError, again_in_ms: u64, log: &Log) {
        // 410 only means that the pods have to be listed again.
        if fault.status() == Some(410) && self.cache.state().synced {
            return;
        }
        self.cache.count_error(fault);
        if self.cache.failed(fault) {
            let (cause, pods) = (fault.to_string(), self.cache.state().pods);
            let fields = json!({ "cause": cause, "again_in_ms": again_in_ms, "pods": pods });
            log.warn("gybe node: pods are not watched; queries about cached pods are served", fields);
        }
    }
}

impl NodePods {
    async fn page(&self, mut body: Body, found: &mut PodsByName) -> Result<ObjectList<Ignored>, ApiError> {
        let mut list = ListParser::default();
        while let Some(frame) =
            timeout(LIST_TIMEOUT, body.frame()).await.map_err(|_| ApiError::Late(LIST_TIMEOUT))?
        {
            let bytes = frame.map_err(ApiError::from)?.into_data().unwrap_or_default();
            self.cache.record_event();
            let cut = list.feed(&bytes, |item| {
                let pod = serde_json::from_slice::<PodManifest>(item).ok();
                let has_ended = pod.as_ref().is_some_and(has_ended);
                let assigned = pod.as_ref().and_then(|pod| pod.status()?.assigned());
                let facts = pod.and_then(|pod| facts_of(pod, self.ambient.is_some()).ok());
                if let (Some(ambient), Some(facts), true) = (&self.ambient, &facts, has_ended)
                    && let Ok(uid) = PodUid::parse(&facts.uid)
                {
                    ambient.remove(&uid);
                }
                facts.iter().for_each(|facts| self.cache.insert_before_sync(facts, assigned));
                found.extend(facts.map(|facts| (key(&facts), CachedPod::new(facts, assigned))));
            });
            cut.map_err(|_| ApiError::Unreadable(TOO_LONG))?;
        }
        serde_json::from_slice(&list.rest()).map_err(|_| ApiError::Unreadable("is not a list"))
    }
}

/// A request to the runtime's thread. Queries of the plugin that wait for the same pod share one.
#[derive(Debug)]
pub(super) struct AwaitedPod {
    pub(super) pod: PodRef,
    pub(super) until: Instant,
}

/// The number of concurrent requests, each on a connection of its own: a handshake costs more than the request.
const CONCURRENCY: usize = 8;

/// Serves lookups until the sender is dropped.
pub(super) async fn serve_lookups(
    cache: Arc<PodCache>,
    client: Client,
    mut lookups: UnboundedReceiver<AwaitedPod>,
    is_ambient: bool,
) {
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    while let Some(AwaitedPod { pod, until }) = lookups.recv().await {
        let (cache, client, permits) = (Arc::clone(&cache), client.clone(), Arc::clone(&permits));
        tokio::spawn(async move {
            let response = timeout_at(until.into(), get(&client, &cache, &permits, &pod, is_ambient)).await;
            cache.record_lookup(&pod, response.unwrap_or_else(|_| timed_out()));
        });
    }
}

async fn get(
    client: &Client,
    cache: &PodCache,
    permits: &Semaphore,
    pod: &PodRef,
    is_ambient: bool,
) -> FactsResponse {
    let _permit = permits.acquire().await;
    let response = match pod_requests::one(pod) {
        Ok(request) => client::object::<PodManifest>(client, request).await,
        Err(fault) => Err(fault),
    };
    if let Err(fault) = response.as_ref()
        && !fault.is_missing()
    {
        cache.count_error(fault);
    }
    let facts = response.map(|pod| facts_of(pod, is_ambient));
    pod_requests::facts_response(facts, "not in the agent's cache yet, and ")
}
