//! Many pods, started one after the other while something else happens on the node: how long each took, which were
//! refused, and whether each is redirected.

use std::collections::BTreeMap;
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use gybe_integration::failure::Failure;
use serde_json::Value;

use crate::api::{Api, wait_until};
use crate::cluster::{Cluster, has_condition};
use crate::pods::{Kind, Reached, of_class, pod};

/// The namespace of the pods.
pub(crate) const NAMESPACE: &str = "shop";

/// Which pods are started, and how fast.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// The first part of their names.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) count: usize,
    /// The time between two pods.
    pub(crate) interval: Duration,
    /// The time in which the last of them must be ready.
    pub(crate) patience: Duration,
}

/// Pods that are being started.
pub(crate) struct Storm {
    plan: Plan,
    creator: JoinHandle<Result<BTreeMap<String, Instant>, Failure>>,
    watcher: JoinHandle<Result<BTreeMap<String, Instant>, Failure>>,
}

/// What became of the pods.
#[derive(Debug, Clone)]
pub(crate) struct Started {
    /// The times from the creation to readiness, in ascending order, in seconds.
    pub(crate) seconds: Vec<f64>,
    /// The messages of the events `FailedCreatePodSandBox`.
    pub(crate) refusals: Vec<String>,
    /// Pods that run and whose connections reached other listeners than they should.
    pub(crate) astray: Vec<String>,
    /// Pods that were not ready in time.
    pub(crate) late: Vec<String>,
}

impl Storm {
    pub(crate) fn start(cluster: &Cluster, plan: Plan) -> Result<Storm, Failure> {
        Storm::start_of_class(cluster, plan, None)
    }

    /// As [`Storm::start`], with pods of this RuntimeClass.
    pub(crate) fn start_of_class(
        cluster: &Cluster,
        plan: Plan,
        class: Option<&'static str>,
    ) -> Result<Storm, Failure> {
        let (api, watching) = (cluster.api.another()?, cluster.api.another()?);
        let creator = thread::spawn(move || create(&api, plan, class));
        let deadline = Instant::now() + plan.interval * u32::try_from(plan.count)? + plan.patience;
        let watcher = thread::spawn(move || watch(&watching, plan, deadline));
        Ok(Storm { plan, creator, watcher })
    }

    /// Connects to each pod that runs now, and returns its name and whether the connections reached what they should.
    pub(crate) fn running(&self, cluster: &Cluster) -> Result<Vec<(String, bool)>, Failure> {
        let pods = cluster.api.list(&selected(self.plan.name))?;
        let running = pods.iter().filter(|pod| has_condition(pod, "Ready"));
        let expected = Reached::expected(self.plan.kind);
        Ok(running.map(|pod| (name_of(pod), Reached::by(pod) == expected)).collect())
    }

    /// Returns how many of the pods the scheduler cannot place.
    pub(crate) fn unscheduled(&self, cluster: &Cluster) -> Result<usize, Failure> {
        let pods = cluster.api.list(&selected(self.plan.name))?;
        let is_refused = |condition: &Value| {
            condition.get("type").and_then(Value::as_str) == Some("PodScheduled")
                && condition.get("reason").and_then(Value::as_str) == Some("Unschedulable")
        };
        let conditions = |pod: &Value| pod.pointer("/status/conditions").and_then(Value::as_array).cloned();
        Ok(pods.iter().filter(|pod| conditions(pod).unwrap_or_default().iter().any(is_refused)).count())
    }

    /// Returns the messages of the kubelet's refused sandboxes so far.
    pub(crate) fn refusals(&self, cluster: &Cluster) -> Result<Vec<String>, Failure> {
        refusals(&cluster.api, self.plan.name)
    }

    /// Waits until all pods are ready, connects to each, and deletes them.
    pub(crate) fn finish(self, cluster: &Cluster) -> Result<Started, Failure> {
        let plan = self.plan;
        let panicked = |_| Failure::new("a thread of the storm panicked");
        let created = self.creator.join().map_err(panicked)??;
        let ready = self.watcher.join().map_err(panicked)??;
        let mut started =
            Started { seconds: Vec::new(), refusals: Vec::new(), astray: Vec::new(), late: Vec::new() };
        for (name, at) in &created {
            match ready.get(name) {
                Some(until) => started.seconds.push(until.saturating_duration_since(*at).as_secs_f64()),
                None => started.late.push(name.clone()),
            }
        }
        started.seconds.sort_by(f64::total_cmp);
        for pod in cluster.api.list(&selected(plan.name))?.iter().filter(|pod| has_condition(pod, "Ready")) {
            let reached = Reached::by(pod);
            if reached != Reached::expected(plan.kind) {
                started.astray.push(format!("{}: {reached:?}", name_of(pod)));
            }
        }
        started.refusals = refusals(&cluster.api, plan.name)?;
        cluster.api.delete(&selected(plan.name))?;
        wait_until("the storm's pods are deleted", || {
            Ok(cluster.api.list(&selected(plan.name))?.is_empty())
        })?;
        Ok(started)
    }
}

impl Started {
    /// The pod that a part of them was faster than: 0.5 is the median, 1.0 the slowest.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let last = self.seconds.len().saturating_sub(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index of a short list"
        )]
        let index = (last as f64 * part).round() as usize;
        self.seconds.get(index).copied().unwrap_or(f64::NAN)
    }

    /// The largest difference between the pods of the same rank.
    pub(crate) fn most_added_to(&self, baseline: &Started) -> f64 {
        let pairs = self.seconds.iter().zip(&baseline.seconds);
        pairs.map(|(with, without)| with - without).fold(f64::NAN, f64::max)
    }
}

fn selected(label: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=storm%3D{label}")
}

pub(crate) fn name_of(object: &Value) -> String {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn create(api: &Api, plan: Plan, class: Option<&'static str>) -> Result<BTreeMap<String, Instant>, Failure> {
    let start = Instant::now();
    let mut created = BTreeMap::new();
    for number in 0..plan.count {
        let due = start + plan.interval * u32::try_from(number)?;
        sleep(due.saturating_duration_since(Instant::now()));
        let name = format!("{}-{number}", plan.name);
        let mut pod = pod(plan.kind, NAMESPACE, &name, plan.name);
        if let Some(class) = class {
            pod = of_class(class, pod);
        }
        let at = Instant::now();
        api.create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod)?;
        created.insert(name, at);
    }
    Ok(created)
}

fn watch(api: &Api, plan: Plan, deadline: Instant) -> Result<BTreeMap<String, Instant>, Failure> {
    let mut ready = BTreeMap::new();
    api.watch(&selected(plan.name), deadline, |pod| {
        if has_condition(pod, "Ready") {
            ready.entry(name_of(pod)).or_insert_with(Instant::now);
        }
        ready.len() == plan.count
    })?;
    Ok(ready)
}

/// Returns the messages of the kubelet's refused sandboxes of these pods.
fn refusals(api: &Api, name: &str) -> Result<Vec<String>, Failure> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=reason%3DFailedCreatePodSandBox");
    let text = |event: &Value, pointer: &str| {
        event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let events = api.list(&path)?;
    let ours =
        events.iter().filter(|event| text(event, "/involvedObject/name").starts_with(&format!("{name}-")));
    Ok(ours.map(|event| text(event, "/message")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(seconds: &[f64]) -> Started {
        Started { seconds: seconds.to_vec(), refusals: Vec::new(), astray: Vec::new(), late: Vec::new() }
    }

    #[test]
    fn quantiles_are_measured_pods() {
        let pods = started(&[1.0, 2.0, 3.0, 4.0, 9.0]);
        assert_eq!([0.0, 0.5, 0.9, 1.0].map(|part| pods.quantile(part)), [1.0, 3.0, 9.0, 9.0]);
        assert!(started(&[]).quantile(0.5).is_nan());
    }

    #[test]
    fn pods_are_compared_with_those_of_the_same_rank() {
        let baseline = started(&[1.0, 2.0, 3.0]);
        assert_eq!(started(&[1.5, 2.25, 3.0]).most_added_to(&baseline), 0.5);
        assert!(started(&[]).most_added_to(&baseline).is_nan(), "without a pod ready there is no such time");
    }
}
