//! `gybe leave`: sets `mode: leave`, and waits until every agent has removed Gybe from its node. The chart's Job runs
//! it before a release is deleted.

use super::Context;
use super::cluster::KubeconfigArgs;
use super::output::{self, CommandError, CommandOutput, Exit};
use super::style::examples;
use crate::cluster::{self, ApiError, Cluster, ClusterNames, QueryError};
use crate::error::chain;
use crate::workstation::leave::{self, AgentAddress, AgentDaemonSet, Left, PAGE_TIMEOUT, RunningAgent};
use clap::Args;
use gybe_plugin::args::Namespace;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, stdin};
use std::thread;
use std::time::{Duration, Instant};

/// The deadline of one request to the API server.
const TIMEOUT: Duration = Duration::from_secs(15);
const CANNOT: &str = "cannot remove Gybe from the cluster";
/// The time between two rounds of queries; the kubelet delivers the ConfigMap to the agents within about 90 s.
const INTERVAL: Duration = Duration::from_secs(2);

/// Remove Gybe from every node of the cluster
///
/// Sets mode: leave in the ConfigMap of each DaemonSet of agents, and queries each agent until it has removed the entry
/// of gybe-cni from its node. Then the DaemonSets may be deleted. It can be repeated, for example to see which programs
/// stay. With a kubeconfig it first prints the context, the API server and the number of nodes, and asks whether to
/// continue if stdin is a terminal.
///
/// Exit code 0: no conf file names gybe-cni on any node that has an agent; prints the programs that stay. 1: prints the
/// nodes that still have the entry or whose agent did not answer, each with the reason; or no agent runs. 2: the
/// command failed, or the answer was not y.
///
/// Needs the rights to list pods and daemonsets, and to patch the ConfigMaps, in the namespace of the agents. In a pod
/// it runs as that pod's service account and queries the agents at the addresses of their nodes; with a kubeconfig,
/// which is read as by gybe status, through the API server, for which it also needs to get pods/proxy.
#[derive(Debug, Args)]
#[command(after_help = examples(&["gybe leave", "gybe leave --context prod --timeout 600 && kubectl delete -k ../mesh"]))]
pub(super) struct LeaveArgs {
    #[command(flatten)]
    kubeconfig: KubeconfigArgs,
    /// The namespace of the agents
    #[arg(long, short, value_name = "NAMESPACE", default_value = "gybe-system", value_parser = Namespace::parse)]
    namespace: Namespace,
    /// How long to wait for the agents
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Do not ask whether to continue
    #[arg(long, short)]
    yes: bool,
}

/// What is known of the nodes.
#[derive(Debug, Default)]
struct Nodes {
    /// The nodes without an entry, each with its agent's report.
    left: BTreeMap<String, String>,
    /// Why the command waits: nodes, or requests that failed.
    waiting: Vec<String>,
}

impl LeaveArgs {
    pub(super) fn run(&self, context: &Context) -> Result<CommandOutput, CommandError> {
        let cluster = self.kubeconfig.cluster_or_own(context)?;
        if let Some(names) = cluster::names(&cluster).map_err(|why| CommandError::hinted(CANNOT, why))? {
            self.confirm(&cluster, &names)?;
        }
        let until = Instant::now() + Duration::from_secs(self.timeout);
        loop {
            let nodes = match self.query(&cluster, until) {
                Ok(nodes) => nodes,
                Err(QueryError::Api(why)) if !is_final(&cluster, &why) => {
                    Nodes { waiting: vec![why.to_string()], ..Nodes::default() }
                }
                Err(why) => return Err(CommandError::hinted(CANNOT, why)),
            };
            // A query without time for the answers would report other reasons.
            let is_last = until.saturating_duration_since(Instant::now()) < INTERVAL + PAGE_TIMEOUT;
            if is_last || nodes.waiting.is_empty() {
                return Ok(output(&nodes, &self.namespace));
            }
            thread::sleep(INTERVAL);
        }
    }

    /// Prints which cluster and how many nodes the command concerns, and asks on a terminal.
    fn confirm(
        &self,
        cluster: &Cluster,
        ClusterNames { context, server }: &ClusterNames,
    ) -> Result<(), CommandError> {
        let namespace = self.namespace.as_str();
        output::line_on_stderr(&format!("context {context}, {}", server.trim_end_matches('/')));
        let asks = !self.yes && stdin().is_terminal();
        let daemonsets = match leave::agent_daemonsets(cluster, namespace, Instant::now() + TIMEOUT) {
            Ok(daemonsets) => daemonsets,
            // Without a question, the requests below are repeated until the timeout.
            Err(QueryError::Api(why)) if !asks && !is_final(cluster, &why) => return Ok(()),
            Err(why) => return Err(CommandError::hinted(CANNOT, why)),
        };
        let nodes: usize = daemonsets.iter().map(|daemonset| daemonset.desired).sum();
        let nodes = if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
        output::line_on_stderr(&format!("the namespace {namespace} has agents for {nodes}"));
        let question = format!("Remove Gybe from {nodes}? Pods that start afterwards are not redirected.");
        if asks && !daemonsets.is_empty() && !output::confirm(&question) {
            return Err(CommandError::new("nothing was changed").with_hint("answer y, or use --yes"));
        }
        Ok(())
    }

    /// Sets the mode and queries all agents. Each time, because another program may have set the mode back meanwhile,
    /// and an agent that had left may have written its entry again.
    fn query(&self, cluster: &Cluster, until: Instant) -> Result<Nodes, QueryError> {
        let namespace = self.namespace.as_str();
        let deadline = || until.min(Instant::now() + TIMEOUT);
        let daemonsets = leave::agent_daemonsets(cluster, namespace, deadline())?;
        let mut waiting = Vec::new();
        for AgentDaemonSet { name, config_map, .. } in &daemonsets {
            let Some(config_map) = config_map else {
                waiting.push(format!("the pods of the DaemonSet {name} mount no ConfigMap with settings"));
                continue;
            };
            match leave::set_mode_leave(cluster, namespace, config_map, deadline()) {
                Ok(()) => {}
                Err(QueryError::Api(why)) if is_final(cluster, &why) => return Err(why.into()),
                Err(why) => {
                    let why = chain(&why);
                    waiting.push(format!("cannot set mode: leave in the ConfigMap {config_map}: {why}"));
                }
            }
        }
        let agents = leave::agent_addresses(cluster, namespace, deadline())?;
        let mut queried: BTreeMap<&str, RunningAgent> = BTreeMap::new();
        for AgentAddress { pod, node, address, port } in &agents {
            match (node, address.zip(*port)) {
                (None, _) => waiting.push(format!("the pod {pod} has no node yet")),
                (Some(node), None) if port.is_none() => {
                    waiting.push(format!("{node}: the agent of the pod {pod} serves no page (HEALTH_PORT)"));
                }
                (Some(node), None) => waiting.push(format!("{node}: the pod {pod} does not run yet")),
                // During an update a node has two agents, of which one answers at the node's address.
                (Some(node), Some(address)) => {
                    queried.insert(node, RunningAgent { pod: pod.clone(), address: address.into() });
                }
            }
        }
        let running: Vec<RunningAgent> = queried.values().cloned().collect();
        let mut left = BTreeMap::new();
        for (node, answer) in queried.keys().zip(leave::left(cluster, namespace, &running, until)?) {
            match answer {
                Left::Yes(report) => drop(left.insert((*node).to_owned(), report)),
                Left::No(why) => waiting.push(format!("{node}: {why}")),
            }
        }
        let with_agent = agents.iter().filter_map(|agent| agent.node.as_ref()).collect::<BTreeSet<_>>().len();
        let desired = daemonsets.iter().map(|daemonset| daemonset.desired).sum();
        if with_agent < desired {
            waiting.push(format!("{with_agent} of {desired} nodes have an agent"));
        }
        Ok(Nodes { left, waiting })
    }
}

/// Reports whether a later request would be refused too: neither the credentials nor the rights of a kubeconfig change
/// by themselves. In a pod, the chart creates the service account and its rights just before the Job.
fn is_final(cluster: &Cluster, why: &ApiError) -> bool {
    matches!(cluster, Cluster::Kubeconfig { .. }) && why.is_forbidden()
}

fn output(Nodes { left, waiting }: &Nodes, namespace: &Namespace) -> CommandOutput {
    let json = json!({ "left": left, "waiting": waiting });
    let mut text: String = left.iter().map(|(node, report)| format!("{node}: {report}\n")).collect();
    let exit = match (waiting.is_empty(), left.is_empty()) {
        (true, false) => {
            text += "no conf file names gybe-cni on any node that has an agent\n";
            Exit::Yes
        }
        (true, true) => {
            text += &format!(
                "no agent runs in the namespace {namespace}, so that none can remove Gybe; name another one with \
                 --namespace, or run gybe uninstall on each node; where no node has Gybe: helm uninstall --no-hooks\n"
            );
            Exit::No
        }
        (false, _) => {
            text += &format!("Gybe is not removed from every node:\n- {}\n", waiting.join("\n- "));
            Exit::No
        }
    };
    CommandOutput { text, json, exit, notes: Vec::new() }
}
