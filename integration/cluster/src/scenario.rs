//! What happens to pods while an operator or a failure changes Gybe on their node.

mod admission;
mod delete;
mod install;
mod kill;
mod leave;
mod repair;
mod taint;
mod upgrade;
mod versions;

use clap::ValueEnum;
use gybe_bench::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;

use crate::cluster::Cluster;
use crate::release::Release;
use crate::storm::Started;

/// A scenario. They run in this order on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AgentScenario {
    /// The manifests are applied; the next pod of the mesh is redirected
    Install,
    /// The agent removes the node's taint; a refused pod has an event; the policy confines the agent's rights
    Taint,
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
}

/// The installed release, and the one to which it is upgraded.
pub(crate) struct Releases {
    pub(crate) installed: Release,
    pub(crate) next: Release,
}

impl AgentScenario {
    pub(crate) fn run(self, cluster: &Cluster, releases: &Releases) -> Result<Report, Failure> {
        match self {
            AgentScenario::Install => install::run(cluster, releases),
            AgentScenario::Taint => taint::run(cluster, releases),
            AgentScenario::Repair => repair::run(cluster, releases),
            AgentScenario::Upgrade => upgrade::run(cluster, releases),
            AgentScenario::Kill => kill::once(cluster, releases),
            AgentScenario::Versions => versions::run(cluster, releases),
            AgentScenario::KillLoop => kill::again(cluster, releases),
            AgentScenario::Delete => delete::run(cluster, releases),
            AgentScenario::Leave => leave::run(cluster, releases),
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
