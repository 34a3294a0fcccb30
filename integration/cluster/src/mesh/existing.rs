//! `gybe-cluster existing`: the scenarios that any cluster with Istio's injector and Gybe allows. They create pods in two
//! namespaces of their own, make requests between them through the API server, and delete both namespaces.

pub(super) mod scenario;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use clap::Args;
use futures::future::select_all;
use gybe_bench::report::{self, Report};
use gybe_integration::failure::Failure;
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::application::{MESHED, Nodes, PLAIN, pod, start};
use super::commands::{self, Agent};
use super::load::Pair;
use super::modes;
use super::namespaces;
use super::sidecars::{self, Sidecars};
use super::with_cleanup;
use super::workstation::Workstation;
use crate::api::wait_for_every;
use crate::checks::{self, Checks};

const PAIR: Pair = Pair { client: "restart-client", server: "restart-server", fresh: "restart-fresh" };
/// More than the agents of a cluster with hundreds of nodes take to restart, ten percent at a time.
const RESTARTED: Duration = Duration::from_secs(3600);
/// The time between two lists of the agents.
const INTERVAL: Duration = Duration::from_secs(2);

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

/// What ends a step of a run.
#[derive(Debug)]
enum Event {
    /// The scenarios have ended.
    Ended(Result<Vec<Report>, Failure>),
    /// The namespaces are deleted, or were not.
    Deleted(Result<(), Failure>),
    /// A signal asks for the end of the process.
    Signal,
}

/// Runs the scenarios, and deletes the namespaces, also after a failure or a signal; a second signal ends that.
pub(crate) fn run(existing: &ExistingCluster) -> Result<Vec<Report>, Failure> {
    let workstation = Workstation::connect(&existing.kubeconfig, &existing.application, &[])?;
    let agents = chosen(commands::agents(&workstation)?, &existing.nodes)?;
    let api = workstation.api.another()?;
    let found: Vec<_> = namespaces::existing(&api)?.iter().map(|found| found.name).collect();
    if !found.is_empty() {
        let (names, command) = (found.join(" "), namespaces::delete_command(&found));
        return Err(Failure::new(format!(
            "namespaces {names} exist, from another run: wait for it, or run {command}"
        )));
    }
    let (sender, events) = mpsc::channel();
    let is_interrupted = Arc::new(AtomicBool::new(false));
    send_signals(sender.clone(), Arc::clone(&is_interrupted))?;
    let created = namespaces::create(&workstation, existing.revision.as_deref())?;
    let restarts = existing.restart;
    spawn(&sender, Event::Ended, move || scenarios(&workstation, &agents, restarts, &is_interrupted));
    let (outcome, mut is_interrupted) = match events.recv()? {
        Event::Ended(outcome) => (outcome, false),
        Event::Signal | Event::Deleted(_) => (Err(Failure::new("interrupted by a signal")), true),
    };
    spawn(&sender, Event::Deleted, move || namespaces::delete(&api, &created));
    loop {
        match events.recv()? {
            Event::Deleted(deleted) => return with_cleanup(outcome, deleted),
            Event::Signal if is_interrupted => {
                let command = namespaces::delete_command(&[MESHED, PLAIN]);
                return Err(Failure::new(format!(
                    "interrupted by a second signal before the namespaces were deleted; run {command}"
                )));
            }
            Event::Signal => is_interrupted = true,
            // The scenarios, after a signal.
            Event::Ended(_) => {}
        }
    }
}

/// Starts a thread that sends the result of a task, also after a panic.
fn spawn<T: Send + 'static>(
    sender: &Sender<Event>,
    event: fn(Result<T, Failure>) -> Event,
    task: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) {
    let sender = sender.clone();
    thread::spawn(move || {
        let panicked = |_| Err(Failure::new("a thread of this program panicked; the message is above"));
        let _received = sender.send(event(thread::spawn(task).join().unwrap_or_else(panicked)));
    });
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

/// Sends an event for each signal that asks for the end of the process. The first one sets `is_interrupted`.
fn send_signals(sender: Sender<Event>, is_interrupted: Arc<AtomicBool>) -> Result<(), Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let mut signals = signals.into_iter().collect::<Result<Vec<_>, _>>()?;
    drop(entered);
    thread::spawn(move || {
        loop {
            runtime.block_on(select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))));
            if !is_interrupted.swap(true, Ordering::SeqCst) {
                report::failure(&Failure::new(format!(
                    "interrupted; deleting the namespaces {MESHED} {PLAIN}; a second signal ends this at once"
                )));
            }
            let _ended = sender.send(Event::Signal);
        }
    });
    Ok(())
}

/// Fails after a signal: the namespaces are being deleted.
fn uninterrupted(is_interrupted: &AtomicBool) -> Result<(), Failure> {
    if is_interrupted.load(Ordering::SeqCst) { Err(Failure::new("interrupted by a signal")) } else { Ok(()) }
}

/// Runs the scenarios. One that fails does not stop the next; a signal does.
fn scenarios(
    workstation: &Workstation,
    agents: &[Agent],
    restarts: bool,
    is_interrupted: &AtomicBool,
) -> Result<Vec<Report>, Failure> {
    namespaces::wait_until_injected(workstation)?;
    let mut reports = Vec::new();
    let mut run = |title: &str, scenario: &dyn Fn(&mut Checks) -> Result<(), Failure>| {
        uninterrupted(is_interrupted)?;
        let mut checks = Checks::default();
        let outcome = scenario(&mut checks);
        uninterrupted(is_interrupted)?;
        let report = match outcome {
            Ok(()) => checks.report(title),
            Err(error) => {
                report::failure(&error);
                checks::failed(title, &error)
            }
        };
        report::tables(&report);
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
            restart(workstation, checks, agents, is_interrupted)
        })?;
    }
    run("Status of the nodes", &|checks| status(workstation, checks, agents))?;
    Ok(reports)
}

/// Returns each node as that of clients and of servers, and, if there are several, with the next one as that of servers.
fn pairs<'n>(nodes: &[&'n str]) -> Vec<Nodes<'n>> {
    let on = |clients, servers| Nodes::On { clients, servers };
    let next = nodes.iter().cycle().skip(1);
    let mut pairs: Vec<_> =
        nodes.iter().zip(next).flat_map(|(node, next)| [on(*node, *node), on(*node, *next)]).collect();
    pairs.dedup();
    pairs
}

/// Restarts the agents while a pod makes requests, and starts a pod on the first node.
fn restart(
    workstation: &Workstation,
    checks: &mut Checks,
    agents: &[Agent],
    is_interrupted: &AtomicBool,
) -> Result<(), Failure> {
    let node = agents.first().map(|agent| agent.node.as_str());
    let nodes = node.map_or(Nodes::Any, |node| Nodes::On { clients: node, servers: node });
    PAIR.start(workstation, nodes)?;
    PAIR.passes_between(workstation, checks, "before the restart")?;
    let what = "`kubectl rollout restart`";
    PAIR.load_during(workstation, checks, what, |checks| {
        let daemonsets = agents.iter().map(|agent| (agent.namespace.as_str(), agent.daemonset.as_str()));
        for (namespace, name) in daemonsets.collect::<BTreeSet<_>>() {
            uninterrupted(is_interrupted)?;
            let of_daemonset =
                |agent: &&Agent| (agent.namespace.as_str(), agent.daemonset.as_str()) == (namespace, name);
            let nodes: Vec<_> = agents.iter().filter(of_daemonset).map(|agent| agent.node.as_str()).collect();
            restart_daemonset(workstation, (namespace, name), &nodes, is_interrupted)?;
        }
        start(workstation, MESHED, &nodes.client(pod(PAIR.fresh)))?;
        PAIR.passes(workstation, checks, what, PAIR.fresh)
    })
}

/// Restarts a DaemonSet, and waits until its agents on these nodes are replaced.
fn restart_daemonset(
    workstation: &Workstation,
    (namespace, name): (&str, &str),
    nodes: &[&str],
    is_interrupted: &AtomicBool,
) -> Result<(), Failure> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
    let replaces_pods = || {
        let found = workstation.api.get(&path)?;
        let found =
            found.ok_or_else(|| Failure::new(format!("DaemonSet {namespace}/{name} does not exist")))?;
        if found.pointer("/spec/updateStrategy/type").and_then(Value::as_str) == Some("OnDelete") {
            return Err(Failure::new(format!(
                "DaemonSet {namespace}/{name} has the update strategy OnDelete, with which a restart replaces no pod; \
                 run without RESTART=1"
            )));
        }
        Ok(())
    };
    replaces_pods()?;
    let before = commands::ready_agents(workstation)?;
    workstation.run("kubectl", &["-n", namespace, "rollout", "restart", "daemonset", name], 0)?;
    let what = format!("DaemonSet {namespace}/{name} has replaced its pods on {}", nodes.join(", "));
    wait_for_every(INTERVAL, RESTARTED, &what, || {
        uninterrupted(is_interrupted)?;
        replaces_pods()?;
        Ok(are_replaced(nodes, &before, &commands::ready_agents(workstation)?).then_some(()))
    })
}

/// Reports whether on each of these nodes an agent is ready, and none that was before.
fn are_replaced(nodes: &[&str], before: &[Agent], now: &[Agent]) -> bool {
    nodes.iter().all(|node| {
        let mut on_node = now.iter().filter(|agent| agent.node == *node).peekable();
        on_node.peek().is_some() && !on_node.any(|agent| before.contains(agent))
    })
}

/// Records whether `gybe status` reports that the nodes of these agents are ready.
fn status(workstation: &Workstation, checks: &mut Checks, agents: &[Agent]) -> Result<(), Failure> {
    let nodes = commands::status(workstation)?;
    for Agent { node, .. } in agents {
        let status = nodes.iter().find(|status| status.node == *node);
        let is_ready = status.is_some_and(|status| status.state == "ready");
        checks.holds(&format!("`gybe status` about {node}"), is_ready, &status, "ready");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_its_former_agent_or_without_one_waits() {
        let agents =
            |pods: &[(&str, &str)]| pods.iter().map(|(node, pod)| Agent::new(node, pod)).collect::<Vec<_>>();
        let before = agents(&[("a", "a1"), ("b", "b1"), ("c", "c1")]);
        let is_replaced = |now: &[(&str, &str)]| are_replaced(&["a", "b"], &before, &agents(now));
        assert!(is_replaced(&[("a", "a2"), ("b", "b2"), ("c", "c1")]));
        assert!(!is_replaced(&[("a", "a2"), ("c", "c2")]));
        assert!(!is_replaced(&[("a", "a2"), ("b", "b1")]));
        assert!(!is_replaced(&[("a", "a2"), ("b", "b2"), ("b", "b1")]));
    }

    #[test]
    fn a_task_that_panics_has_ended() {
        let (sender, events) = mpsc::channel();
        spawn(&sender, Event::Deleted, || panic!("in a test"));
        let event = events.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(matches!(event, Event::Deleted(Err(_))), "{event:?}");
    }

    #[test]
    fn requests_stay_on_each_node_and_go_to_the_next() {
        let on = |clients, servers| Nodes::On { clients, servers };
        assert_eq!(pairs(&["a"]), [on("a", "a")]);
        assert_eq!(pairs(&["a", "b"]), [on("a", "a"), on("a", "b"), on("b", "b"), on("b", "a")]);
    }

    #[test]
    fn only_chosen_nodes_are_tried_and_each_needs_an_agent() {
        let agents = || ["a", "b"].map(|node| Agent::new(node, "pod")).to_vec();
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let names = |agents: Vec<Agent>| agents.into_iter().map(|agent| agent.node).collect::<Vec<_>>();
        assert_eq!(names(chosen(agents(), &[]).unwrap()), ["a", "b"]);
        assert_eq!(names(chosen(agents(), &nodes(&["b"])).unwrap()), ["b"]);
        assert!(chosen(agents(), &nodes(&["b", "c"])).is_err());
    }
}
