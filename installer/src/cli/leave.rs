//! `gybe leave`: sets `mode: leave`, and waits until every agent has removed Gybe from its node. The chart's Job runs it
//! before a release is deleted.

use super::invocation::Context;
use super::output::{CommandError, CommandOutput, Exit};
use super::style::examples;
use crate::agent::cluster::{self, AgentAddress, Cluster, Left, QueryError};
use crate::error::chain;
use clap::Args;
use gybe_plugin::args::Namespace;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::thread;
use std::time::{Duration, Instant};

/// The deadline of one request to the API server.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The kubelet takes up to a minute to deliver the ConfigMap to the agents.
const INTERVAL: Duration = Duration::from_secs(2);

/// Remove Gybe from every node of the cluster
///
/// Sets mode: leave in the ConfigMaps of the agents and queries each agent until it has removed the entry of gybe-cni
/// from its node. Then the DaemonSets may be deleted. Runs in a pod, as the service account of that pod.
///
/// Exit code 0: no conf file names gybe-cni on any node; prints the programs that stay. 1: prints the nodes that have not
/// answered so, each with the reason. 2: the ConfigMaps cannot be changed.
#[derive(Debug, Args)]
#[command(after_help = examples(&["gybe leave", "gybe leave --config-map gybe-config --config-map gybe-config-canary --timeout 600"]))]
pub(super) struct LeaveArgs {
    /// The namespace of the agents
    #[arg(long, value_name = "NAMESPACE", default_value = "gybe-system", value_parser = Namespace::parse)]
    namespace: Namespace,
    /// The ConfigMap of a node pool's agents; may be repeated
    #[arg(long = "config-map", value_name = "NAME", default_value = "gybe-config")]
    config_maps: Vec<String>,
    /// The port of the agents' health page
    #[arg(long, value_name = "PORT", default_value = "8000")]
    port: NonZeroU16,
    /// How long to wait for the agents
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u32,
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
        let until = Instant::now() + Duration::from_secs(self.timeout.into());
        let cluster = super::cluster::own(context)
            .ok_or_else(|| CommandError::new("gybe leave does not run in a pod of a cluster"))?;
        for config_map in &self.config_maps {
            let deadline = Instant::now() + TIMEOUT;
            cluster::set_mode_leave(&cluster, self.namespace.as_str(), config_map, deadline).map_err(
                |why| {
                    CommandError::because(
                        format!("cannot set mode: leave in the ConfigMap {config_map}"),
                        why,
                    )
                },
            )?;
        }
        let mut nodes = Nodes::default();
        loop {
            nodes.waiting = self.query(&cluster, &mut nodes.left).unwrap_or_else(|why| vec![chain(&why)]);
            if nodes.waiting.is_empty() || Instant::now() >= until {
                return Ok(output(&nodes));
            }
            thread::sleep(INTERVAL);
        }
    }

    /// Queries the agents of the nodes that have not left, and returns why the command has to wait.
    fn query(
        &self,
        cluster: &Cluster,
        left: &mut BTreeMap<String, String>,
    ) -> Result<Vec<String>, QueryError> {
        let (namespace, deadline) = (self.namespace.as_str(), Instant::now() + TIMEOUT);
        let agents = cluster::agent_addresses(cluster, namespace, deadline)?;
        let desired = cluster::desired_agents(cluster, namespace, deadline)?;
        let mut waiting = Vec::new();
        let mut queries: BTreeMap<&str, SocketAddr> = BTreeMap::new();
        for AgentAddress { pod, node, address } in &agents {
            match (node, address) {
                (None, _) => waiting.push(format!("the pod {pod} has no node yet")),
                (Some(node), _) if left.contains_key(node) => {}
                (Some(node), None) => waiting.push(format!("{node}: the pod {pod} does not run yet")),
                // During an update a node has two agents, of which one answers at the node's address.
                (Some(node), Some(address)) => {
                    queries.insert(node, SocketAddr::new(*address, self.port.get()));
                }
            }
        }
        let addresses: Vec<SocketAddr> = queries.values().copied().collect();
        for (node, answer) in queries.keys().zip(cluster::left(&addresses)?) {
            match answer {
                Left::Yes(report) => drop(left.insert((*node).to_owned(), report)),
                Left::No(why) => waiting.push(format!("{node}: {why}")),
            }
        }
        let with_agent = agents.iter().filter_map(|agent| agent.node.as_ref()).collect::<BTreeSet<_>>().len();
        if with_agent < desired {
            waiting.push(format!("{with_agent} of {desired} nodes have an agent"));
        }
        Ok(waiting)
    }
}

fn output(nodes: &Nodes) -> CommandOutput {
    let Nodes { left, waiting } = nodes;
    let json = json!({ "left": left, "waiting": waiting });
    let mut text: String = left.iter().map(|(node, report)| format!("{node}: {report}\n")).collect();
    let exit = match (waiting.is_empty(), left.is_empty()) {
        (true, true) => {
            text += "no agent runs; where Gybe is on a node, gybe uninstall on the node removes it\n";
            Exit::Yes
        }
        (true, false) => {
            text += "no conf file names gybe-cni on any node\n";
            Exit::Yes
        }
        (false, _) => {
            text += &format!("Gybe is not removed from every node:\n- {}\n", waiting.join("\n- "));
            Exit::No
        }
    };
    CommandOutput { text, json, exit, notes: Vec::new() }
}
