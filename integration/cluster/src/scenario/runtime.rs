//! containerd 1.7, which ignores drop-ins, becomes 2.x under a kubelet while pods of two networks start: Gybe's entry moves
//! from the primary's chain into a drop-in, and no pod starts without redirection. Meanwhile the kubelet removes unused
//! images; afterwards it evicts pods.

mod class;
mod pressure;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::Duration;

use gybe_bench::report::Report;
use gybe_containerd_tests::Generation;
use gybe_containerd_tests::containerd::{CONF_DIR, HANDLER};
use gybe_integration::failure::Failure;
use serde_json::Value;

use super::Releases;
use super::lost::{connect_until, delete, redirected};
use crate::agent;
use crate::api::wait_until;
use crate::checks::Checks;
use crate::cluster::Cluster;
use crate::network::NodeNumber;
use crate::pods::Kind;
use crate::release::roll_out;
use crate::storm::{Plan, Storm};

use class::start_in_its_network;

/// Pods that run before the upgrade, of no RuntimeClass and of the handler's.
const BEFORE: &str = "runtime-before";
const SECOND: &str = "runtime-second";
/// The pods of each network that start before, during and after it.
const PODS: Plan = Plan {
    name: "runtime",
    kind: Kind::Meshed,
    count: 30,
    interval: Duration::from_secs(1),
    patience: Duration::from_secs(240),
};
/// So many of them are ready before it.
const FIRST: usize = 5;

pub(super) fn run(cluster: &mut Cluster, releases: &Releases) -> Result<Report, Failure> {
    let mut checks = Checks::default();
    releases.installed.install(cluster)?;
    let upgraded = cluster.nodes().last().map_or(NodeNumber::FIRST, |node| node.number);
    replace(cluster, upgraded, Generation::V1_7)?;
    checks.part("containerd 1.7");
    let before = start_in_its_network(cluster, &mut checks, upgraded, (BEFORE, None))?;
    checks.equal("Gybe's entry", &place(cluster, upgraded)?, &Place::Chain);
    for node in cluster.nodes().iter().filter(|node| node.number != upgraded) {
        cluster.run("kubectl", &["cordon", &node.number.to_string()])?;
    }
    let agent = pressure::agent(cluster, upgraded)?;
    class::add(cluster, &mut checks, upgraded)?;
    pressure::collect_images(cluster, &mut checks, upgraded, releases)?;
    start_in_its_network(cluster, &mut checks, upgraded, (SECOND, Some(HANDLER)))?;
    let outcome = upgrade(cluster, &mut checks, upgraded, &before);
    for node in cluster.nodes() {
        cluster.run("kubectl", &["uncordon", &node.number.to_string()])?;
    }
    outcome?;
    pressure::images_collected(cluster, &mut checks, upgraded, releases)?;
    pressure::evict(cluster, &mut checks, upgraded)?;
    checks.equal("the agent", &pressure::agent(cluster, upgraded)?, &agent);
    for name in [BEFORE, SECOND] {
        delete(cluster, name)?;
    }
    Ok(checks.report("containerd is upgraded in place"))
}

/// Upgrades containerd while pods start on the node.
fn upgrade(
    cluster: &mut Cluster,
    checks: &mut Checks,
    upgraded: NodeNumber,
    before: &Value,
) -> Result<(), Failure> {
    let is_over = AtomicBool::new(false);
    let (elsewhere, outcome) = scope(|threads| {
        let watcher = threads.spawn(|| connect_until(&is_over, before));
        let outcome = upgrade_under(cluster, checks, upgraded);
        is_over.store(true, Ordering::Relaxed);
        (watcher.join(), outcome)
    });
    outcome?;
    let (count, wrong) = elsewhere.map_err(|_| Failure::new("the thread that connects to a pod panicked"))?;
    let what = format!("{count} times a connection to a pod that ran before, and one from it");
    checks.holds(&what, count > 0 && wrong.is_empty(), &wrong, "redirected");
    Ok(())
}

fn upgrade_under(cluster: &mut Cluster, checks: &mut Checks, upgraded: NodeNumber) -> Result<(), Failure> {
    let storms = [(PODS, None), (Plan { name: "second", ..PODS }, Some(HANDLER))];
    let storms = storms.map(|(plan, class)| (plan.name, Storm::start_of_class(cluster, plan, class)));
    let storms: Vec<_> =
        storms.into_iter().map(|(name, storm)| Ok((name, storm?))).collect::<Result<_, Failure>>()?;
    for (_, storm) in &storms {
        wait_until("the first pods run", || Ok(storm.running(cluster)?.len() >= FIRST))?;
    }
    cluster.node_mut(upgraded)?.runtime.upgrade_containerd(Generation::V2)?;
    checks.part("upgraded to 2.x");
    wait_until("Gybe's entry is a drop-in", || Ok(place(cluster, upgraded)? == Place::DropIn))?;
    for (name, storm) in storms {
        let started = storm.finish(cluster)?;
        let pods = format!("of {} pods {name}", PODS.count);
        checks.equal(&format!("{pods}, not redirected"), &started.astray, &Vec::new());
        checks.equal(&format!("{pods}, not ready in time"), &started.late, &Vec::new());
        let refused: Vec<_> = started.refusals.iter().filter(|message| message.contains("GYBE-")).collect();
        checks.equal(&format!("sandboxes of pods {name} that Gybe refused"), &refused, &Vec::new());
    }
    redirected(cluster, checks, SECOND)?;
    redirected(cluster, checks, BEFORE)
}

/// Where Gybe's entry is.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    Chain,
    DropIn,
    Both,
}

fn place(cluster: &Cluster, number: NodeNumber) -> Result<Place, Failure> {
    let entries = agent::entries(cluster.node(number)?.host())?;
    // A drop-in is in a directory of its network's name.
    let is_drop_in = |path: &String| Path::new(path).parent() != Some(Path::new(CONF_DIR));
    Ok(match (entries.iter().any(|path| !is_drop_in(path)), entries.iter().any(is_drop_in)) {
        (false, false) => Place::Nowhere,
        (true, false) => Place::Chain,
        (false, true) => Place::DropIn,
        (true, true) => Place::Both,
    })
}

/// Another machine takes the node's place, with containerd of this generation.
fn replace(cluster: &mut Cluster, number: NodeNumber, generation: Generation) -> Result<(), Failure> {
    cluster.kill_node(number);
    let node = number.to_string();
    cluster.run("kubectl", &["delete", "node", &node])?;
    let of_node = format!("{}&fieldSelector=spec.nodeName%3D{node}", agent::PODS);
    wait_until("the agent of the removed node is gone", || Ok(cluster.api.list(&of_node)?.is_empty()))?;
    cluster.add_node_of(number, None, generation)?;
    cluster.wait_for_node(number)?;
    wait_until("the new node has an agent", || Ok(!cluster.api.list(&of_node)?.is_empty()))?;
    roll_out(cluster)
}
