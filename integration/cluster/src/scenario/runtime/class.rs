//! A RuntimeClass whose handler has a conf directory of its own, to which Gybe writes no entry.

use std::fs;
use std::path::Path;

use gybe_containerd_tests::containerd::{BIN_DIR, CONF_DIR, HANDLER, HANDLER_CONF_DIR};
use gybe_containerd_tests::node::CONFLIST;
use gybe_containerd_tests::{Conflist, Generation};
use gybe_integration::failure::Failure;
use serde_json::{Value, json};

use super::super::lost::{READY, delete, get, meshed, redirected, reports, start, status};
use crate::agent::{GYBE, NodeStatus};
use crate::api::wait_until;
use crate::checks::Checks;
use crate::cluster::{Cluster, ClusterNode};
use crate::network::NodeNumber;
use crate::pods::{Kind, Reached, of_class, on};

/// A pod that starts before the handler's network has Gybe's entry.
const EARLY: &str = "runtime-early";
const NOT_READY: &str = "NOT READY";
/// What the problem, the doctor and a reason of the agent have in common.
const PROBLEM: &str = "pods of the runtime handler second-network use the first conf file in";

/// Adds the handler and its class, without Gybe's entry and then with it.
pub(super) fn add(cluster: &mut Cluster, checks: &mut Checks, number: NodeNumber) -> Result<(), Failure> {
    let class = json!({ "metadata": { "name": HANDLER }, "handler": HANDLER });
    cluster.api.create("/apis/node.k8s.io/v1/runtimeclasses", &class)?;
    let network = Conflist::reference_plugins(Generation::V1_7).named("second-network", "cni1");
    let network = network.routed(&number.pods_of_second_network());
    let node = cluster.node_mut(number)?;
    fs::create_dir_all(node.host().path(HANDLER_CONF_DIR))?;
    write(node, &network)?;
    node.runtime.upgrade_containerd(Generation::V1_7)?;
    without_entry(cluster, checks, number)?;
    let node = cluster.node(number)?;
    write(node, &network.with_plugin(entry(node)?))?;
    checks.part("a second network with Gybe's entry");
    reports(cluster, checks, number, READY, 0);
    Ok(())
}

fn without_entry(cluster: &Cluster, checks: &mut Checks, number: NodeNumber) -> Result<(), Failure> {
    checks.part("a second network without Gybe's entry");
    reports(cluster, checks, number, NOT_READY, 1);
    let node = cluster.node(number)?;
    let problems = NodeStatus::list(&status(cluster)?.1)?.into_iter().flat_map(|node| node.problems);
    let problems: Vec<_> = problems.collect();
    let names = |problems: &[String]| problems.iter().any(|problem| problem.contains(PROBLEM));
    checks.holds("problems in `gybe status`", names(&problems), &problems, PROBLEM);
    let (code, printed) = gybe(node, &["doctor"])?;
    let is_named = code == Some(1) && printed.contains(PROBLEM);
    checks.holds("`gybe doctor`", is_named, &(code, printed), &format!("exit code 1, {PROBLEM}"));
    // Otherwise it redirects the pod before `gybe verify` judges it.
    signal_repair(node, "STOP")?;
    let pod = start(cluster, &of_class(HANDLER, on(&number.to_string(), meshed(EARLY))))?;
    checks.equal("connections to and from a pod", &Reached::by(&pod), &Reached::expected(Kind::Plain));
    let (code, printed) = gybe(node, &["verify", "--all"])?;
    let line = printed.lines().find(|line| line.starts_with(&format!("default/{EARLY} ")));
    let is_found = code == Some(1) && line.is_some_and(|line| !line.contains(" redirected"));
    checks.holds(
        "`gybe verify --all`",
        is_found,
        &(code, &printed),
        "exit code 1, the pod is not redirected",
    );
    signal_repair(node, "CONT")?;
    let is_redirected = || Ok(Reached::by(&get(cluster, EARLY)?) == Reached::expected(Kind::Meshed));
    let repaired = wait_until("`repair` redirects the pod", is_redirected);
    checks.holds("the pod, once the container `repair` goes on", repaired.is_ok(), &repaired, "redirected");
    delete(cluster, EARLY)
}

/// Starts a pod of this class, or of none, and records that it is redirected and has addresses of its network.
pub(super) fn start_in_its_network(
    cluster: &Cluster,
    checks: &mut Checks,
    number: NodeNumber,
    (name, class): (&str, Option<&str>),
) -> Result<Value, Failure> {
    let pod = on(&number.to_string(), meshed(name));
    let pod = start(cluster, &class.map_or(pod.clone(), |class| of_class(class, pod)))?;
    redirected(cluster, checks, name)?;
    let ranges = if class.is_some() { number.pods_of_second_network() } else { number.pods() };
    let network = |text: &str| text.split(['.', ':']).take(2).collect::<Vec<_>>().join(":");
    let addresses = pod.pointer("/status/podIPs").and_then(Value::as_array).into_iter().flatten();
    let addresses = addresses.filter_map(|address| address.get("ip").and_then(Value::as_str));
    let networks: Vec<_> = addresses.map(network).collect();
    let expected = ranges.map(|range| network(&range)).to_vec();
    checks.equal(&format!("networks of {name}"), &networks, &expected);
    Ok(pod)
}

fn write(node: &ClusterNode, network: &Conflist) -> Result<(), Failure> {
    Ok(fs::write(node.host().path(HANDLER_CONF_DIR).join(CONFLIST), network.text(0))?)
}

/// Returns Gybe's entry in the primary's file, as an operator copies it.
fn entry(node: &ClusterNode) -> Result<Value, Failure> {
    let list: Value = serde_json::from_slice(&fs::read(node.host().path(CONF_DIR).join(CONFLIST))?)?;
    let mut plugins = list.get("plugins").and_then(Value::as_array).into_iter().flatten();
    let entry = plugins.find(|plugin| plugin.get("type").is_some_and(|kind| kind == "gybe-cni"));
    entry.cloned().ok_or_else(|| Failure::new("the primary's file has no entry of Gybe"))
}

/// Runs `gybe` on the node, and returns its exit code and what it prints.
fn gybe(node: &ClusterNode, arguments: &[&str]) -> Result<(Option<i32>, String), Failure> {
    let output = node.host().command(Path::new(BIN_DIR), GYBE).args(arguments).output()?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn signal_repair(node: &ClusterNode, signal: &str) -> Result<(), Failure> {
    let arguments = [&format!("-{signal}"), "-f", "^/opt/gybe/bin/gybe probe"];
    node.host().run(Path::new("pkill"), &arguments)?;
    Ok(())
}
