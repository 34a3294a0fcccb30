//! `gybe-cluster existing`: the scenarios that any cluster with Istio's injector and Gybe allows. They create pods in two
//! namespaces of their own, make requests between them through the API server, and delete both namespaces.

pub(super) mod scenario;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use clap::Args;
use futures::future::select_all;
use gybe_bench::print;
use gybe_bench::report::Report;
use gybe_integration::failure::Failure;
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::application::{MESHED, Nodes, on, pod, start};
use super::checks::{self, Checks};
use super::commands::{self, Agent};
use super::load::Pair;
use super::modes;
use super::namespaces;
use super::sidecars::{self, Sidecars};
use super::workstation::Workstation;
use crate::api::wait_at_most;

const PAIR: Pair = Pair { client: "restart-client", server: "restart-server", fresh: "restart-fresh" };
/// More than the agents of a cluster with hundreds of nodes take to restart, ten percent at a time.
const RESTARTED: Duration = Duration::from_secs(3600);

/// A cluster that exists, and what is tried in it.
#[derive(Debug, Args)]
pub(crate) struct ExistingCluster {
    /// The kubeconfig; its current context is used
    #[arg(long)]
    kubeconfig: PathBuf,
    /// The application's image, in a registry from which the nodes pull it
    #[arg(long)]
    application: String,
    /// Nodes to try, separated by commas; all with an agent of Gybe by default
    #[arg(long, value_delimiter = ',')]
    nodes: Vec<String>,
    /// The revision of istiod that injects; the default revision's by default
    #[arg(long)]
    revision: Option<String>,
    /// Restarts Gybe's DaemonSets, too, while a pod makes requests
    #[arg(long)]
    restart: bool,
}

/// Runs the scenarios, and deletes the namespaces, also after a failure or a signal.
pub(crate) fn run(existing: &ExistingCluster) -> Result<Vec<Report>, Failure> {
    let workstation = Workstation::connect(&existing.kubeconfig, &existing.application, &[])?;
    let agents = chosen(commands::agents(&workstation)?, &existing.nodes)?;
    let api = workstation.api.another()?;
    let found = namespaces::existing(&api)?;
    if !found.is_empty() {
        let names = found.join(" ");
        return Err(Failure::new(format!(
            "namespaces {names} exist, from another run: wait for it, or run kubectl delete namespace {names}"
        )));
    }
    let (end, ended) = mpsc::channel();
    send_signals(end.clone())?;
    let (restarts, revision) = (existing.restart, existing.revision.clone());
    let outcome = namespaces::create(&workstation, revision.as_deref()).and_then(|()| {
        // The process ends, and this thread with it, when a signal comes first.
        thread::spawn(move || {
            let _ended = end.send(scenarios(&workstation, &agents, restarts));
        });
        ended.recv()?
    });
    match (outcome, namespaces::delete(&api)) {
        (outcome, Ok(())) => outcome,
        (Ok(_), Err(error)) => Err(error),
        (Err(error), Err(and)) => Err(Failure::new(format!("{error:?}\n{and:?}"))),
    }
}

/// Returns the agents of the chosen nodes; all if none is chosen.
fn chosen(agents: Vec<Agent>, nodes: &[String]) -> Result<Vec<Agent>, Failure> {
    if let Some(node) = nodes.iter().find(|node| !agents.iter().any(|agent| agent.node == **node)) {
        let found: Vec<_> = agents.iter().map(|agent| agent.node.as_str()).collect();
        return Err(Failure::new(format!(
            "node {node} has no agent of Gybe that is ready; these have: {found:?}"
        )));
    }
    Ok(agents.into_iter().filter(|agent| nodes.is_empty() || nodes.contains(&agent.node)).collect())
}

/// Sends an error when a signal asks for the end of the process.
fn send_signals(end: Sender<Result<Vec<Report>, Failure>>) -> Result<(), Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let mut signals = signals.into_iter().collect::<Result<Vec<_>, _>>()?;
    drop(entered);
    thread::spawn(move || {
        runtime.block_on(select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))));
        let _ended = end.send(Err(Failure::new("interrupted by a signal")));
    });
    Ok(())
}

/// Runs the scenarios. One that fails does not stop the next.
fn scenarios(workstation: &Workstation, agents: &[Agent], restarts: bool) -> Result<Vec<Report>, Failure> {
    namespaces::wait_until_injected(workstation)?;
    let mut reports = Vec::new();
    let mut run = |title: &str, scenario: &dyn Fn(&mut Checks) -> Result<(), Failure>| {
        let mut checks = Checks::default();
        let report = match scenario(&mut checks) {
            Ok(()) => checks.report(title),
            Err(error) => {
                print::failure(&error);
                checks::failed(title, &error)
            }
        };
        print::tables(&report);
        reports.push(report);
        namespaces::delete_pods(workstation)
    };
    let names: Vec<_> = agents.iter().map(|agent| agent.node.as_str()).collect();
    for nodes in pairs(&names) {
        run(&format!("Sidecars, {nodes}"), &|checks| {
            sidecars::requests(workstation, checks, "sidecars", Sidecars::Configured, nodes)
        })?;
        run(&format!("Modes of redirection and kinds of pods, {nodes}"), &|checks| {
            modes::connections(workstation, checks, nodes)
        })?;
    }
    if restarts {
        run("Restart of the agents under a load of requests", &|checks| {
            restart(workstation, checks, agents)
        })?;
    }
    run("Status of the nodes", &|checks| status(workstation, checks, agents))?;
    Ok(reports)
}

/// Returns each node as that of clients and of servers, and, if there are several, with the next one as that of servers.
fn pairs<'n>(nodes: &[&'n str]) -> Vec<Nodes<'n>> {
    let pair = |clients, servers| Nodes { clients: Some(clients), servers: Some(servers) };
    let next = nodes.iter().cycle().skip(1);
    let mut pairs: Vec<_> =
        nodes.iter().zip(next).flat_map(|(node, next)| [pair(*node, *node), pair(*node, *next)]).collect();
    pairs.dedup();
    pairs
}

/// Restarts the agents while a pod makes requests, and starts a pod on the first node.
fn restart(workstation: &Workstation, checks: &mut Checks, agents: &[Agent]) -> Result<(), Failure> {
    let node = agents.first().map(|agent| agent.node.as_str());
    for name in [PAIR.server, PAIR.client] {
        start(workstation, MESHED, &on(pod(name), node))?;
    }
    let what = "`kubectl rollout restart`";
    PAIR.load_during(workstation, checks, what, |checks| {
        let daemonsets = agents.iter().map(|agent| (agent.namespace.as_str(), agent.daemonset.as_str()));
        for (namespace, name) in daemonsets.collect::<BTreeSet<_>>() {
            workstation.run("kubectl", &["-n", namespace, "rollout", "restart", "daemonset", name], 0)?;
            let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
            wait_at_most(RESTARTED, &format!("DaemonSet {namespace}/{name} is rolled out"), || {
                Ok(is_rolled_out(&workstation.api.get(&path)?.unwrap_or_default()))
            })?;
        }
        start(workstation, MESHED, &on(pod(PAIR.fresh), node))?;
        PAIR.passes(workstation, checks, what, PAIR.fresh)
    })
}

/// Reports whether each node has an available pod of the DaemonSet as it is now.
fn is_rolled_out(daemonset: &Value) -> bool {
    let number = |pointer| daemonset.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    let desired = number("/status/desiredNumberScheduled");
    number("/status/observedGeneration") >= number("/metadata/generation").max(1)
        && number("/status/updatedNumberScheduled") == desired
        && number("/status/numberAvailable") == desired
}

/// Records whether `gybe status` reports that the nodes of these agents are ready.
fn status(workstation: &Workstation, checks: &mut Checks, agents: &[Agent]) -> Result<(), Failure> {
    let nodes = commands::status(workstation)?;
    for Agent { node, .. } in agents {
        let status = nodes.iter().find(|status| status.node == *node);
        let is_ready = status.is_some_and(|status| status.ready == Some(true));
        checks.holds(&format!("`gybe status` about {node}"), is_ready, &status, "ready");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_daemonset_with_an_old_pod_is_not_rolled_out() {
        let daemonset = |observed: u64, updated: u64, available: u64| {
            json!({
                "metadata": { "generation": 2 },
                "status": {
                    "observedGeneration": observed,
                    "desiredNumberScheduled": 3,
                    "updatedNumberScheduled": updated,
                    "numberAvailable": available,
                },
            })
        };
        assert!(is_rolled_out(&daemonset(2, 3, 3)));
        for (observed, updated, available) in [(1, 3, 3), (2, 2, 3), (2, 3, 2)] {
            assert!(!is_rolled_out(&daemonset(observed, updated, available)));
        }
        assert!(!is_rolled_out(&Value::Null));
    }

    #[test]
    fn requests_stay_on_each_node_and_go_to_the_next() {
        let names = |nodes: &[&'static str]| {
            pairs(nodes)
                .iter()
                .map(|pair| [pair.clients, pair.servers].map(Option::unwrap))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&["a"]), [["a", "a"]]);
        assert_eq!(names(&["a", "b"]), [["a", "a"], ["a", "b"], ["b", "b"], ["b", "a"]]);
    }

    #[test]
    fn only_chosen_nodes_are_tried_and_each_needs_an_agent() {
        let agents = || ["a", "b"].map(Agent::on).to_vec();
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let names = |agents: Vec<Agent>| agents.into_iter().map(|agent| agent.node).collect::<Vec<_>>();
        assert_eq!(names(chosen(agents(), &[]).unwrap()), ["a", "b"]);
        assert_eq!(names(chosen(agents(), &nodes(&["b"])).unwrap()), ["b"]);
        assert!(chosen(agents(), &nodes(&["b", "c"])).is_err());
    }
}
