//! The watch of this node's pods, which begins with a list.

use super::list_parser::ListParser;
use super::pod_cache::{CachedPod, PodCache, PodsByName, key};
use crate::cluster::error::ApiError;
use crate::cluster::objects::{Ignored, List};
use crate::cluster::pod_requests::{self, Pod};
use crate::cluster::watch::{TOO_LONG, Watched};
use crate::log::Log;
use http_body_util::BodyExt;
use hyper::Request;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long the next part of a list may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct NodePods {
    pub(super) node: String,
    pub(super) cache: Arc<PodCache>,
}

impl Watched for NodePods {
    type Object = Pod;

    const LONGEST_WAIT: Duration = Duration::from_secs(30);

    /// Lists the pods page by page.
    async fn first_version(&self, client: &Client, log: &Log) -> Result<String, ApiError> {
        let (mut found, mut next) = (PodsByName::new(), None);
        loop {
            let request = pod_requests::list(&self.node, next.as_deref())?;
            let response = client.send(request.map(Body::from)).await?;
            let page = self.page(response.into_body(), &mut found).await?;
            next = page.next().map(str::to_owned);
            if next.is_none() {
                let (version, pods) = (page.version()?, found.len());
                if self.cache.replace(found) {
                    log.info("gybe node: pods are known", json!({ "pods": pods }));
                }
                return Ok(version);
            }
        }
    }

    fn request(&self, version: &str, seconds: u32) -> Result<Request<Vec<u8>>, ApiError> {
        pod_requests::watch(&self.node, version, seconds)
    }

    fn handle(&self, pod: Pod, is_deleted: bool) -> Option<String> {
        let version = Some(pod.resource_version().to_owned()).filter(|version| !version.is_empty());
        match pod.facts() {
            Ok(facts) if is_deleted => self.cache.remove(&facts),
            Ok(facts) => self.cache.insert(facts),
            // A pod without containers has no facts.
            Err(_) => {}
        }
        version
    }

    fn record_event(&self) {
        self.cache.record_event();
    }

    fn opened(&self, log: &Log) {
        if self.cache.opened() {
            log.info("gybe node: pods are watched again", json!({}));
        }
    }

    fn failed(&self, fault: &ApiError, again_in_ms: u64, log: &Log) {
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
    async fn page(&self, mut body: Body, found: &mut PodsByName) -> Result<List<Ignored>, ApiError> {
        let mut list = ListParser::default();
        while let Some(frame) =
            timeout(LIST_TIMEOUT, body.frame()).await.map_err(|_| ApiError::Late(LIST_TIMEOUT))?
        {
            let bytes = frame.map_err(ApiError::from)?.into_data().unwrap_or_default();
            self.cache.record_event();
            let cut = list.feed(&bytes, |item| {
                let facts = serde_json::from_slice::<Pod>(item).ok().and_then(|pod| pod.facts().ok());
                facts.iter().for_each(|facts| self.cache.insert_before_sync(facts));
                found.extend(facts.map(|facts| (key(&facts), CachedPod::new(facts))));
            });
            cut.map_err(|_| ApiError::Unreadable(TOO_LONG))?;
        }
        serde_json::from_slice(&list.rest()).map_err(|_| ApiError::Unreadable("is not a list"))
    }
}
