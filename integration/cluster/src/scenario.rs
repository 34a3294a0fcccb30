//! What happens to pods while an operator or a failure changes Gybe on their node.

mod admission;
mod condition;
mod delete;
mod install;
mod kill;
mod leave;
mod lost;
pub(crate) mod published;
mod repair;
mod rollout;
mod runtime;
mod taint;
mod upgrade;
mod versions;

use std::fmt::Debug;
use std::ops::RangeInclusive;

use clap::ValueEnum;
use gybe_bench::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;

use crate::cluster::Cluster;
use crate::network::NodeNumber;
use crate::release::Release;
use crate::storm::Started;

/// A scenario. They run in this order in one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AgentScenario {
    /// The manifests are applied; the next pod of the mesh is redirected
    Install,
    /// The agent removes the node's taint; a refused pod has an event; the policy confines the agent's rights
    Taint,
    /// Each node has the agent's condition; the policy confines the agent's rights
    Condition,
    /// A pod without its rules is redirected, labelled or deleted; the policies confine the agent's rights
    Repair,
    /// Pods start during a rolling upgrade and its rollback
    Upgrade,
    /// The agent is killed once while pods start
    Kill,
    /// Two versions run on the node for a minute
    Versions,
    /// The agent is killed again and again while pods start
    KillLoop,
    /// The DaemonSet is deleted without `mode: leave`: by default, and with `leave_when_daemonset_gone`
    Delete,
    /// Every command of the documentation that needs a cluster; the last of them remove Gybe
    Leave,
    /// Pods start on all nodes during a rolling upgrade and its rollback, ten percent of the nodes at a time
    Rollout,
    /// 200 pods start at once on all nodes while the agents are killed ten times
    Crowd,
    /// A node hangs, is drained, loses power, and is replaced
    Lost,
    /// containerd 1.7 becomes 2.x on a node while pods of two networks start there; its kubelet removes images and evicts pods
    Runtime,
}

/// The installed release, and the one to which it is upgraded.
pub(crate) struct Releases {
    pub(crate) installed: Release,
    pub(crate) next: Release,
}

/// A kind of scenario.
pub(crate) trait Scenario: ValueEnum + Copy + Debug {
    /// The numbers of nodes for which it is written.
    fn nodes(self) -> RangeInclusive<u8>;
}

/// Scenarios, and the number of nodes of their cluster.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chosen<S> {
    pub(crate) scenarios: Vec<S>,
    pub(crate) nodes: u8,
}

impl<S: Scenario> Chosen<S> {
    /// Without scenarios, all that are written for this number of nodes; without a number, the smallest that allows all
    /// of the scenarios.
    pub(crate) fn new(scenarios: &[S], nodes: Option<u8>) -> Result<Chosen<S>, Failure> {
        let needed = scenarios.iter().map(|scenario| *scenario.nodes().start()).max();
        let nodes = nodes.or(needed).unwrap_or(1);
        if let Some(scenario) = scenarios.iter().find(|scenario| !scenario.nodes().contains(&nodes)) {
            let (least, most) = scenario.nodes().into_inner();
            return Err(Failure::new(format!(
                "scenario {scenario:?} needs {least} to {most} nodes, and not {nodes}: run it in a cluster of its own"
            )));
        }
        let all = S::value_variants().iter().filter(|scenario| scenario.nodes().contains(&nodes));
        let scenarios = if scenarios.is_empty() { all.copied().collect() } else { scenarios.to_vec() };
        Ok(Chosen { scenarios, nodes })
    }
}

impl Scenario for AgentScenario {
    fn nodes(self) -> RangeInclusive<u8> {
        match self {
            AgentScenario::Install
            | AgentScenario::Taint
            | AgentScenario::Condition
            | AgentScenario::Repair => 1..=NodeNumber::MAX,
            AgentScenario::Upgrade
            | AgentScenario::Kill
            | AgentScenario::Versions
            | AgentScenario::KillLoop
            | AgentScenario::Delete
            | AgentScenario::Leave => 1..=1,
            AgentScenario::Rollout | AgentScenario::Crowd | AgentScenario::Lost | AgentScenario::Runtime => {
                2..=NodeNumber::MAX
            }
        }
    }
}

impl AgentScenario {
    pub(crate) fn run(self, cluster: &mut Cluster, releases: &Releases) -> Result<Report, Failure> {
        match self {
            AgentScenario::Install => install::run(cluster, releases),
            AgentScenario::Taint => taint::run(cluster, releases),
            AgentScenario::Condition => condition::run(cluster, releases),
            AgentScenario::Repair => repair::run(cluster, releases),
            AgentScenario::Upgrade => upgrade::run(cluster, releases),
            AgentScenario::Kill => kill::once(cluster, releases),
            AgentScenario::Versions => versions::run(cluster, releases),
            AgentScenario::KillLoop => kill::again(cluster, releases),
            AgentScenario::Delete => delete::run(cluster, releases),
            AgentScenario::Leave => leave::run(cluster, releases),
            AgentScenario::Rollout => rollout::run(cluster, releases),
            AgentScenario::Crowd => kill::crowd(cluster, releases),
            AgentScenario::Lost => lost::run(cluster, releases),
            AgentScenario::Runtime => runtime::run(cluster, releases),
        }
    }
}

/// The target that there is none of these.
pub(crate) fn none(what: &str, count: usize) -> Target {
    // Counts of pods are small.
    let measured = u32::try_from(count).map_or(f64::INFINITY, f64::from);
    Target { what: what.to_owned(), measured, limit: Limit::AtMost(0.0), unit: "" }
}

/// The target that all these pods started and are as expected.
fn wrong(what: &str, storms: &[&Started]) -> Target {
    let pods: Vec<_> = storms.iter().flat_map(|storm| storm.astray.iter().chain(&storm.late)).collect();
    none(&format!("{what} {pods:?}"), pods.len())
}

/// The distribution of the pods' times.
fn distribution(title: &str, rows: &[(&str, &Started)], baseline: &Started) -> Table {
    let row = |(name, pods): &(&str, &Started)| {
        let seconds = [0.0, 0.5, 0.9, 1.0].map(|part| format!("{:.2}", pods.quantile(part)));
        let counts = [&pods.refusals, &pods.late, &pods.astray].map(|list| list.len().to_string());
        let added = format!("{:+.2}", pods.most_added_to(baseline));
        [vec![(*name).to_owned()], seconds.to_vec(), vec![added], counts.to_vec()].concat()
    };
    Table {
        title: title.to_owned(),
        head: cells([
            "Pods",
            "min s",
            "median",
            "90 %",
            "max",
            "most added",
            "refused",
            "not ready",
            "not redirected",
        ]),
        rows: rows.iter().map(row).collect(),
    }
}

/// The ids of errors with code 11 about a pod's facts (plugin/src/reply.rs). The kubelet does not show the code.
fn is_try_again(message: &str) -> bool {
    ["017", "018", "019", "032", "033"].iter().any(|number| message.contains(&format!("GYBE-ADD-{number}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_has_as_many_nodes_as_its_scenarios_need() {
        use AgentScenario::{Crowd, Install, Kill, Rollout, Taint};
        let nodes =
            |scenarios: &[AgentScenario]| Chosen::new(scenarios, None).map(|chosen| chosen.nodes).ok();
        assert_eq!(
            [nodes(&[]), nodes(&[Install, Kill]), nodes(&[Install, Rollout])],
            [Some(1), Some(1), Some(2)]
        );
        assert_eq!(nodes(&[Kill, Rollout]), None);
        assert!(Chosen::new(&[Kill], Some(2)).is_err());
        let all = |nodes| Chosen::<AgentScenario>::new(&[], Some(nodes)).unwrap().scenarios;
        assert!(all(1).contains(&Kill) && !all(1).contains(&Crowd));
        assert!(all(5).contains(&Taint) && all(5).contains(&Crowd) && !all(5).contains(&Kill));
    }
}
