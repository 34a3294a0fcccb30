//! Writes the annotation `ambient.istio.io/redirection`, by which istiod and other pods learn that a pod takes HBONE: last
//! of all steps, and never while an ADD waits. `ztunnel` has the pods whose annotation is to be written.

use super::pods::PodLookup;
use super::ztunnel::{AmbientPods, Redirection, RedirectionWrite};
use crate::cluster::{ClusterNode, QueryError, annotate_pod};
use crate::error::chain;
use crate::lead::socket::CHECK_INTERVAL;
use crate::log::Log;
use crate::retry::RateLimit;
use serde_json::json;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

const REDIRECTION: &str = "ambient.istio.io/redirection";
const ENABLED: &str = "enabled";

/// The deadline of a request; the end of the agent is delayed by no more than it.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The requests that are sent at once, and then the time between two: a node that starts may have 500 pods.
const BURST: u32 = 50;
const PERIOD: Duration = Duration::from_millis(50);

/// Writes the annotations of the node's ambient pods.
pub(super) struct RedirectionWriter<'a> {
    pub(super) home: &'a ClusterNode,
    pub(super) ambient: &'a AmbientPods,
    /// The pods as the watch shows them.
    pub(super) pods: &'a dyn PodLookup,
    pub(super) log: &'a Log,
}

/// The HTTP status of the failure that was logged last, until a write succeeds: its text names a pod.
type Logged = Option<Option<u16>>;

impl RedirectionWriter<'_> {
    /// Writes annotations until `stop` is readable. While another agent leads there are none to be written.
    pub(super) fn follow(&self, stop: BorrowedFd<'_>) {
        let changed = self.ambient.subscribe();
        let (mut limit, mut logged) = (RateLimit::new(BURST, PERIOD), None);
        loop {
            let now = Instant::now();
            let mut wait = CHECK_INTERVAL;
            if let Some((at, write)) = self.ambient.next_redirection() {
                wait = wait.min(at.saturating_duration_since(now).max(limit.wait(now)));
                if wait.is_zero() {
                    let result = if self.is_written(&write) {
                        Ok(())
                    } else {
                        limit.count(now);
                        self.write(&write, &mut logged)
                    };
                    self.ambient.finish_redirection(&write, result);
                }
            }
            if changed.wait(stop, wait) {
                return;
            }
        }
    }

    /// Reports whether the watch shows the annotation, as an earlier agent or istio-cni has written it.
    fn is_written(&self, RedirectionWrite { pod, desired }: &RedirectionWrite) -> bool {
        let uid = pod.uid.as_str();
        *desired == Redirection::Enabled
            && self.pods.has_pod(&|it| it.uid == uid && it.annotation(REDIRECTION) == Some(ENABLED))
                == Some(true)
    }

    /// Returns why the request has failed, and the delay that the server requests. A pod that is gone needs no annotation.
    fn write(&self, write: &RedirectionWrite, logged: &mut Logged) -> Result<(), (String, Option<Duration>)> {
        let RedirectionWrite { pod, desired } = write;
        let value = match desired {
            Redirection::Enabled | Redirection::EnabledAgain => Some(ENABLED),
            Redirection::Absent => None,
        };
        let until = Instant::now() + TIMEOUT;
        let result = annotate_pod(&self.home.cluster, pod, REDIRECTION, value, until);
        let Err(why) = result else {
            *logged = None;
            return Ok(());
        };
        if self.is_gone(write, &why) {
            return Ok(());
        }
        let (cause, status) = (chain(&why), why.status());
        let hint = match status {
            Some(403) => Some(MISSING_RIGHT),
            Some(422) => Some(REFUSED),
            _ => None,
        };
        if *logged != Some(status) {
            let fields = json!({ "pod": pod.to_string(), "cause": cause, "hint": hint });
            self.log.warn("gybe node: the annotation of an ambient pod cannot be written", fields);
            *logged = Some(status);
        }
        let retry_after = match &why {
            QueryError::Api(fault) => fault.retry_after(),
            QueryError::Cluster(_) => None,
        };
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        Err((format!("{cause}{hint}"), retry_after))
    }

    /// Reports whether the pod no longer exists. Another one of its name is an invalid change (422), as a change is that an
    /// admission policy refuses; the watch knows a pod that leaves the mesh.
    fn is_gone(&self, RedirectionWrite { pod, desired }: &RedirectionWrite, why: &QueryError) -> bool {
        let QueryError::Api(fault) = why else { return false };
        let is_unknown = || self.pods.has_pod(&|it| it.uid == pod.uid.as_str()) == Some(false);
        let is_replaced = || fault.status() == Some(422) && *desired == Redirection::Absent && is_unknown();
        fault.is_not_found() || is_replaced()
    }
}

const MISSING_RIGHT: &str = "the component ambient-annotation of the manifests grants the right to patch the status of pods; \
                             in the chart ambient.enabled does";
const REFUSED: &str = "an admission policy refuses it; that of the component ambient-annotation needs Kubernetes 1.30 and \
                       a token that is bound to the agent's pod";
