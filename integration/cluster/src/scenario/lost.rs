//! A node that hangs, is drained, loses power, and is replaced: what `gybe status` reports, what connections of a pod on
//! another node reach, and that no pod starts on the node without redirection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::Releases;
use super::admission::delete_component;
use crate::agent::{GYBE, NodeStatus};
use crate::api::{PATIENCE, wait_for, wait_until};
use crate::checks::Checks;
use crate::cluster::{Cluster, has_condition};
use crate::network::{NODE, NodeNumber};
use crate::pods::{Kind, Reached, on, pod};
use crate::storm::name_of;

const COMPONENT: &str = "node-taint";
/// The taint that Gybe's agent removes when the node redirects pods.
const TAINT: &str = "cni.istio.io/not-ready";
/// A pod of another node, and one of the node that is lost.
const HERE: &str = "lost-here";
const THERE: &str = "lost-there";
/// A pod that is created while the node hangs, and one that waits for another machine.
const DURING: &str = "lost-during";
const WAITING: &str = "lost-waiting";
/// The states of `gybe status`.
pub(super) const READY: &str = "ready";
const NODE_NOT_READY: &str = "NODE NOT READY";
/// The time between two connections.
const INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(cluster: &mut Cluster, releases: &Releases) -> Result<Report, Failure> {
    let mut checks = Checks::default();
    releases.installed.install_with(cluster, COMPONENT, ("node_taints", TAINT))?;
    let lost = cluster.nodes().last().map_or(NodeNumber::FIRST, |node| node.number);
    let here = start(cluster, &on(NODE, meshed(HERE)))?;
    start(cluster, &on(&lost.to_string(), meshed(THERE)))?;
    let is_over = AtomicBool::new(false);
    let (elsewhere, outcome) = scope(|threads| {
        let watcher = threads.spawn(|| connect_until(&is_over, &here));
        let mut steps = || {
            hung(cluster, &mut checks, lost)?;
            drained(cluster, &mut checks, lost)?;
            dead(cluster, &mut checks, lost)?;
            replaced(cluster, &mut checks, lost)
        };
        let outcome = steps();
        is_over.store(true, Ordering::Relaxed);
        (watcher.join(), outcome)
    });
    outcome?;
    let (count, wrong) = elsewhere.map_err(|_| Failure::new("the thread that connects to a pod panicked"))?;
    checks.part("all the time");
    let what = format!("{count} times a connection to a pod of another node, and one from it");
    checks.holds(&what, count > 0 && wrong.is_empty(), &wrong, "redirected");
    for name in [HERE, WAITING] {
        delete(cluster, name)?;
    }
    delete_component(cluster, COMPONENT)?;
    releases.installed.install(cluster)?;
    Ok(checks.report("A node that is lost"))
}

/// The kubelet and containerd stop: pods run on with their rules, and none starts until they go on.
fn hung(cluster: &Cluster, checks: &mut Checks, lost: NodeNumber) -> Result<(), Failure> {
    checks.part("kubelet and containerd stopped");
    let hung = cluster.node(lost)?.hang()?;
    create(cluster, &on(&lost.to_string(), meshed(DURING)))?;
    reports(cluster, checks, lost, NODE_NOT_READY, 1);
    redirected(cluster, checks, THERE)?;
    let phase = get(cluster, DURING)?.pointer("/status/phase").cloned();
    checks.equal("a pod that is created on the node meanwhile", &phase, &Some(json!("Pending")));
    drop(hung);
    checks.part("kubelet and containerd go on");
    wait_until_ready(cluster, DURING)?;
    redirected(cluster, checks, DURING)?;
    redirected(cluster, checks, THERE)?;
    refused(cluster, checks, DURING)?;
    reports(cluster, checks, lost, READY, 0);
    delete(cluster, DURING)
}

/// `kubectl drain` ends the pods of the node but Gybe's agent, and the next pod is redirected.
fn drained(cluster: &Cluster, checks: &mut Checks, lost: NodeNumber) -> Result<(), Failure> {
    checks.part("drained");
    let node = lost.to_string();
    let drain =
        ["drain", &node, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=120s"];
    cluster.run("kubectl", &drain)?;
    let pods: Vec<_> = pods_on(cluster, "default", &node)?.iter().map(name_of).collect();
    checks.equal("pods of the mesh on the node", &pods, &Vec::new());
    checks.equal("agents on the node", &pods_on(cluster, "gybe-system", &node)?.len(), &1);
    reports(cluster, checks, lost, READY, 0);
    cluster.run("kubectl", &["uncordon", &node])?;
    start(cluster, &on(&node, meshed(THERE)))?;
    redirected(cluster, checks, THERE)
}

/// All processes of the node and its network end at once.
fn dead(cluster: &mut Cluster, checks: &mut Checks, lost: NodeNumber) -> Result<(), Failure> {
    checks.part("without power");
    cluster.kill_node(lost);
    reports(cluster, checks, lost, NODE_NOT_READY, 1);
    let reached = Reached::by(&get(cluster, THERE)?);
    let is_closed = ![Kind::Meshed, Kind::Plain].map(Reached::expected).contains(&reached);
    checks.holds("connections to and from a pod of the node", is_closed, &reached, "reach nothing");
    Ok(())
}

/// Another machine with the node's name and addresses, and nothing of its files. It registers with the taint, so that a
/// pod waits until Gybe redirects it.
fn replaced(cluster: &mut Cluster, checks: &mut Checks, lost: NodeNumber) -> Result<(), Failure> {
    let node = lost.to_string();
    checks.part("removed");
    cluster.run("kubectl", &["delete", "node", &node])?;
    wait_until("the pods of the removed node are gone", || {
        Ok(pods_on(cluster, "default", &node)?.is_empty()
            && pods_on(cluster, "gybe-system", &node)?.is_empty())
    })?;
    let (code, printed) = status(cluster)?;
    let names: Vec<_> = NodeStatus::list(&printed)?.into_iter().map(|node| node.node).collect();
    let others: Vec<_> = cluster.nodes().iter().map(|node| node.number.to_string()).collect();
    checks.equal("`gybe status`: exit code and nodes", &(code, names), &(Some(0), others));

    checks.part("replaced");
    let mut waiting = meshed(WAITING);
    if let Some(spec) = waiting.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.insert("nodeSelector".to_owned(), json!({ "kubernetes.io/hostname": node }));
    }
    create(cluster, &waiting)?;
    cluster.add_node(lost, Some(TAINT))?;
    wait_until_ready(cluster, WAITING)?;
    redirected(cluster, checks, WAITING)?;
    refused(cluster, checks, WAITING)?;
    reports(cluster, checks, lost, READY, 0);
    Ok(())
}

/// Connects to a pod, and from it, again and again. Returns how often, and what else than the sidecar was reached.
pub(super) fn connect_until(is_over: &AtomicBool, pod: &Value) -> (usize, Vec<Reached>) {
    let (mut count, mut wrong) = (0, Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        let reached = Reached::by(pod);
        count += 1;
        if reached != Reached::expected(Kind::Meshed) {
            wrong.push(reached);
        }
        sleep(INTERVAL);
    }
    (count, wrong)
}

/// Records whether connections to a pod and from it reach the sidecar.
pub(super) fn redirected(cluster: &Cluster, checks: &mut Checks, name: &str) -> Result<(), Failure> {
    let reached = Reached::by(&get(cluster, name)?);
    checks.equal(&format!("connections to and from {name}"), &reached, &Reached::expected(Kind::Meshed));
    Ok(())
}

/// Records that no sandbox of a pod was refused.
fn refused(cluster: &Cluster, checks: &mut Checks, name: &str) -> Result<(), Failure> {
    let selector = format!("reason%3DFailedCreatePodSandBox,involvedObject.name%3D{name}");
    let events = cluster.api.list(&format!("/api/v1/namespaces/default/events?fieldSelector={selector}"))?;
    checks.equal(&format!("refused sandboxes of {name}"), &events.len(), &0);
    Ok(())
}

/// Waits until `gybe status` reports the lost node in this state, and all others as ready, and records that with its exit
/// code.
pub(super) fn reports(cluster: &Cluster, checks: &mut Checks, lost: NodeNumber, state: &str, code: i32) {
    let mut last = String::new();
    let reported = wait_for(PATIENCE, "`gybe status` reports the node", || {
        let (observed, printed) = status(cluster)?;
        // Without any agent that answers it prints nothing.
        let nodes = NodeStatus::list(&printed).unwrap_or_default();
        let is_expected = |node: &NodeStatus| {
            let state = if node.node == lost.to_string() { state } else { READY };
            node.state == state && node.problems.is_empty() == (state == READY)
        };
        last = format!("{observed:?} {nodes:?}");
        let has_lost = nodes.iter().any(|node| node.node == lost.to_string());
        Ok((observed == Some(code) && has_lost && nodes.iter().all(is_expected)).then_some(()))
    });
    let expected = format!("{lost} is {state}, all others are ready, exit code {code}");
    checks.holds("`gybe status`", reported.is_ok(), &last, &expected);
}

/// Returns the exit code of `gybe status --json`, and what it prints.
pub(super) fn status(cluster: &Cluster) -> Result<(Option<i32>, String), Failure> {
    cluster.run_to_code("timeout", &["60", GYBE, "status", "--json"])
}

pub(super) fn meshed(name: &str) -> Value {
    pod(Kind::Meshed, "default", name, name)
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

pub(super) fn get(cluster: &Cluster, name: &str) -> Result<Value, Failure> {
    Ok(cluster.api.get(&path(name))?.unwrap_or_default())
}

fn create(cluster: &Cluster, pod: &Value) -> Result<(), Failure> {
    cluster.api.create("/api/v1/namespaces/default/pods", pod).map(drop)
}

/// Creates a pod, waits until it is ready, and returns it.
pub(super) fn start(cluster: &Cluster, pod: &Value) -> Result<Value, Failure> {
    create(cluster, pod)?;
    wait_until_ready(cluster, &name_of(pod))?;
    get(cluster, &name_of(pod))
}

pub(super) fn wait_until_ready(cluster: &Cluster, name: &str) -> Result<(), Failure> {
    wait_until(&format!("pod {name} is ready"), || Ok(has_condition(&get(cluster, name)?, "Ready")))
}

pub(super) fn delete(cluster: &Cluster, name: &str) -> Result<(), Failure> {
    cluster.api.delete(&path(name))?;
    wait_until(&format!("pod {name} is deleted"), || Ok(cluster.api.get(&path(name))?.is_none()))
}

pub(super) fn pods_on(cluster: &Cluster, namespace: &str, node: &str) -> Result<Vec<Value>, Failure> {
    cluster.api.list(&format!("/api/v1/namespaces/{namespace}/pods?fieldSelector=spec.nodeName%3D{node}"))
}
