//! The critical DaemonSets of istio-cni-taint: a ConfigMap lists them, and each must have a ready pod on the node
//! before the taint `NodeReadiness` is removed.

use crate::cluster::{
    ClusterNode, OwnNode, PodSelector, QueryError, RETRY, SET_AFTER, TaintOrder, TaintState, TaintWriter,
    WRITE_INTERVAL, changed_taints, config_map, has_ready_pod, set_taints,
};
use crate::error::chain;
use crate::host::settings::NodeTaint;
use crate::log::Log;
use crate::retry::Backoff;
use gybe_netfilter::model::Hint;
use gybe_plugin::args::{Namespace, PodName};
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, pipe};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use std::{fmt, thread};

/// The key of the taint.
const KEY: &str = "NodeReadiness";
/// The most DaemonSets of a ConfigMap: each costs a request.
const MAX: usize = 64;
/// The deadline of all queries of a check; the end of the process is delayed by no more than it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The name of a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigMapRef {
    namespace: Namespace,
    name: String,
}

impl ConfigMapRef {
    /// Returns none unless both are Kubernetes names.
    #[must_use]
    pub(crate) fn parse(namespace: &str, name: &str) -> Option<Self> {
        // The names of ConfigMaps and of pods have the same form (RFC 1123 subdomains).
        let name = PodName::parse(name).ok()?.as_str().to_owned();
        Some(Self { namespace: Namespace::parse(namespace).ok()?, name })
    }
}

impl fmt::Display for ConfigMapRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Why a check of the critical DaemonSets failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CriticalError {
    #[error("cannot read the ConfigMap {0}")]
    Read(ConfigMapRef, #[source] QueryError),
    #[error("the ConfigMap {0} is invalid: {1}")]
    Invalid(ConfigMapRef, String),
    #[error("cannot list the pods of the DaemonSet {0}")]
    Pods(String, #[source] QueryError),
    #[error("the API server has not sent the node {0}")]
    Node(String),
    #[error("cannot change the taint {KEY} of the node {0}")]
    Taint(String, #[source] QueryError),
    #[error("cannot watch the node {0}")]
    Watch(String, #[source] io::Error),
}

impl Hint for CriticalError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        Some(Cow::Borrowed(match self {
            Self::Invalid(..) => {
                "each of its values is a YAML list of DaemonSets with name, namespace and selector"
            }
            _ => "the component istio-cni-taint of the manifests grants the rights",
        }))
    }
}

/// The critical DaemonSets of a node.
#[derive(Debug)]
pub(crate) struct CriticalDaemonSets {
    pub home: ClusterNode,
    pub config_map: ConfigMapRef,
}

/// The result of a check.
#[derive(Debug, Clone, Copy)]
enum CriticalReadiness {
    /// Each DaemonSet has a ready pod on the node.
    Ready,
    /// For this time each check has found a DaemonSet without one.
    Unready(Duration),
    /// The check failed; the next one is made after this time.
    Unknown(Duration),
}

impl CriticalDaemonSets {
    /// Removes the taint if each DaemonSet has a ready pod on the node. Returns the names of those without one.
    ///
    /// # Errors
    /// When a request fails, or the ConfigMap is invalid.
    pub(crate) fn check(&self) -> Result<Vec<String>, CriticalError> {
        let unready = self.unready()?;
        if unready.is_empty() {
            self.watching(&Log::default(), |own_node| self.remove(own_node))??;
        }
        Ok(unready)
    }

    fn remove(&self, own_node: &OwnNode) -> Result<(), CriticalError> {
        let name = || self.home.node.clone();
        let observed = own_node.wait(TIMEOUT).ok_or_else(|| CriticalError::Node(name()))?;
        let Some(changed) = changed_taints(&observed.taints, &taint(), TaintState::Absent) else {
            return Ok(());
        };
        set_taints(&self.home, &observed, &changed, Instant::now() + TIMEOUT)
            .map_err(|why| CriticalError::Taint(name(), why))
    }

    /// Watches the node while `work` runs.
    fn watching<T>(&self, log: &Log, work: impl FnOnce(&OwnNode) -> T) -> Result<T, CriticalError> {
        let failed = |why| CriticalError::Watch(self.home.node.clone(), why);
        let (own_node, (ended, running)) = (OwnNode::default(), pipe().map_err(failed)?);
        thread::scope(|scope| {
            let watch = scope.spawn(|| own_node.follow(&self.home, &ended, log));
            let done = work(&own_node);
            // Wakes the thread, which polls the other end.
            drop(running);
            watch.join().unwrap_or(Ok(())).map_err(failed)?;
            Ok(done)
        })
    }

    /// Keeps the taint until `stop` is readable: removes it as [`CriticalDaemonSets::check`] does, and sets it when a
    /// DaemonSet has been without a ready pod for some time.
    ///
    /// # Errors
    /// When the node cannot be watched.
    pub(crate) fn keep(&self, stop: BorrowedFd<'_>) -> Result<(), CriticalError> {
        let log = Log::default();
        self.watching(&log, |own_node| self.keep_watched(own_node, stop, &log))
    }

    fn keep_watched(&self, own_node: &OwnNode, stop: BorrowedFd<'_>, log: &Log) {
        let (mut unready_since, mut logged, mut backoff) = (None, None, Backoff::new(RETRY));
        TaintWriter { home: &self.home, own_node, log, written: &|_, _| {} }.follow(stop, || {
            let node = own_node.wait(TIMEOUT).ok_or_else(|| CriticalError::Node(self.home.node.clone()));
            let unready = node.and_then(|_| self.unready());
            let state = unready.as_ref().map_err(|why| chain(why)).cloned();
            if logged.as_ref() != Some(&state) {
                self.log(&unready, log);
                logged = Some(state);
            }
            unready_since = match &unready {
                Ok(names) if !names.is_empty() => unready_since.or(Some(Instant::now())),
                _ => None,
            };
            if unready.is_ok() {
                backoff.succeeded();
            }
            order(match (unready, unready_since) {
                (Ok(_), None) => CriticalReadiness::Ready,
                (Ok(_), Some(since)) => CriticalReadiness::Unready(since.elapsed()),
                (Err(_), _) => CriticalReadiness::Unknown(backoff.failed_at_server(WRITE_INTERVAL, None)),
            })
        });
    }

    fn log(&self, unready: &Result<Vec<String>, CriticalError>, log: &Log) {
        match unready {
            Ok(unready) => log.info(
                "gybe istio-cni-taint: checked the critical DaemonSets",
                json!({ "configmap": self.config_map.to_string(), "unready": unready }),
            ),
            Err(why) => log.warn(
                "gybe istio-cni-taint: the critical DaemonSets cannot be checked; the taint stays as it is",
                json!({ "cause": chain(why), "hint": why.hint() }),
            ),
        }
    }

    /// Returns the names of the DaemonSets without a ready pod on the node.
    fn unready(&self) -> Result<Vec<String>, CriticalError> {
        let until = Instant::now() + TIMEOUT;
        let ClusterNode { cluster, node } = &self.home;
        let ConfigMapRef { namespace, name } = &self.config_map;
        let data = config_map(cluster, namespace, name, until)
            .map_err(|why| CriticalError::Read(self.config_map.clone(), why))?;
        let daemonsets = parse(&data).map_err(|why| CriticalError::Invalid(self.config_map.clone(), why))?;
        let mut unready = Vec::new();
        for CriticalDaemonSet { name, pods } in daemonsets {
            match has_ready_pod(cluster, node, &pods, until) {
                Ok(true) => {}
                Ok(false) => unready.push(name),
                Err(why) => return Err(CriticalError::Pods(name, why)),
            }
        }
        Ok(unready)
    }
}

fn taint() -> Vec<NodeTaint> {
    NodeTaint::parse(KEY).into_iter().collect()
}

fn order(readiness: CriticalReadiness) -> TaintOrder {
    let (desired, wait) = match readiness {
        CriticalReadiness::Ready => (Some(TaintState::Absent), WRITE_INTERVAL),
        CriticalReadiness::Unready(time) => ((time >= SET_AFTER).then_some(TaintState::Present), RETRY),
        CriticalReadiness::Unknown(wait) => (None, wait),
    };
    TaintOrder { taints: taint(), desired, wait }
}

/// A DaemonSet of the ConfigMap.
#[derive(Debug, PartialEq, Eq)]
struct CriticalDaemonSet {
    name: String,
    pods: PodSelector,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CriticalEntry {
    name: String,
    namespace: String,
    selector: String,
}

/// Parses the values of the ConfigMap: each is a list of DaemonSets, or a single one. Its keys have no meaning.
fn parse(data: &BTreeMap<String, String>) -> Result<Vec<CriticalDaemonSet>, String> {
    let mut daemonsets = Vec::new();
    for (key, text) in data {
        let invalid = |why: &dyn fmt::Display| format!("{key}: {why}");
        let entries = match serde_saphyr::from_str(text).map_err(|_| invalid(&"it is not YAML"))? {
            Value::Array(entries) => entries,
            one => vec![one],
        };
        for entry in entries {
            let CriticalEntry { name, namespace, selector } =
                serde_json::from_value(entry).map_err(|why| invalid(&why))?;
            let Ok(namespace) = Namespace::parse(&namespace) else {
                return Err(invalid(&format!("{namespace:?} is not the name of a namespace")));
            };
            if selector.trim().is_empty() {
                return Err(invalid(&format!("{name:?} has no selector")));
            }
            daemonsets.push(CriticalDaemonSet { name, pods: PodSelector { namespace, labels: selector } });
        }
    }
    match daemonsets.len() {
        0 => Err("it lists no DaemonSet".to_owned()),
        1..=MAX => Ok(daemonsets),
        many => Err(format!("it lists {many} DaemonSets; at most {MAX} are allowed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(texts: &[&str]) -> BTreeMap<String, String> {
        texts.iter().enumerate().map(|(index, text)| (format!("key-{index}"), (*text).to_owned())).collect()
    }

    #[test]
    fn each_value_of_the_configmap_is_a_list_of_daemonsets_or_one() {
        let list = "- name: a\n  selector: app=a,tier!=b\n  namespace: kube-system\n\
                    - {name: b, selector: b, namespace: x}\n";
        let one = "name: c\nselector: app in (c)\nnamespace: x\n";
        let parsed = parse(&data(&[list, one])).unwrap();
        let text = |it: &CriticalDaemonSet| format!("{} {} {}", it.name, it.pods.namespace, it.pods.labels);
        let texts: Vec<_> = parsed.iter().map(text).collect();
        assert_eq!(texts, ["a kube-system app=a,tier!=b", "b x b", "c x app in (c)"]);
    }

    #[test]
    fn an_invalid_configmap_is_refused_as_a_whole() {
        let many = "- {name: a, selector: a, namespace: x}\n".repeat(MAX + 1);
        let valid = "{name: a, selector: a, namespace: x}";
        for (texts, why) in [
            (&[][..], "it lists no DaemonSet"),
            (&["[]"], "it lists no DaemonSet"),
            (&[valid, "text"], "key-1: invalid type"),
            (&["a: [", valid], "key-0: it is not YAML"),
            (&["{name: a, selector: a}"], "missing field `namespace`"),
            (&["{name: a, selector: ' ', namespace: x}"], "\"a\" has no selector"),
            (&["{name: a, selector: a, namespace: ../nodes}"], "\"../nodes\" is not the name of a namespace"),
            (&["{name: a, selector: a, namespace: x, label: a}"], "unknown field `label`"),
            (&[&many], "it lists 65 DaemonSets; at most 64 are allowed"),
        ] {
            let error = parse(&data(texts)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_taint_is_set_only_after_thirty_seconds_without_a_ready_pod() {
        let unready = |seconds| CriticalReadiness::Unready(Duration::from_secs(seconds));
        for (readiness, desired) in [
            (CriticalReadiness::Ready, Some(TaintState::Absent)),
            (CriticalReadiness::Unknown(RETRY), None),
            (unready(29), None),
            (unready(30), Some(TaintState::Present)),
        ] {
            let order = order(readiness);
            assert_eq!(order.desired, desired);
            let taints: Vec<_> = order.taints.iter().map(ToString::to_string).collect();
            assert_eq!(taints, ["NodeReadiness:NoSchedule"]);
        }
    }
}
