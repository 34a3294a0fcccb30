//! `gybe status`: the state of every node of a cluster, from a workstation.

use super::Context;
use super::cluster::KubeconfigArgs;
use super::output::{CommandError, CommandOutput, Exit};
use super::style::{bad, doubtful, examples, good, titles};
use crate::agent_status::{AgentStatus, RUNNING_PODS};
use crate::pod::manifest::printable;
use crate::workstation::agents::{self, AGENTS, AgentSelector, ClusterAgent, Readiness, StatusPage};
use clap::Args;
use gybe_plugin::args::Namespace;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Report the state of every node of a cluster
///
/// Lists the agents' pods and reads the page /status of each through the API server: version, whether pods started now
/// are redirected, the backend, the pods, and running pods that should be redirected and are not. Exit code 0: every
/// node is ready, and nothing is wrong. 1: a node has a problem, which is printed below it. 2: the command failed, or
/// the cluster has no agent.
///
/// Needs the rights to list pods and to get pods/proxy in the namespace of the agents; with the right to get nodes it
/// also reports why a node is not ready. Of a kubeconfig it uses client
/// certificates, tokens, passwords and credential programs (exec); it refuses auth-provider and proxy-url. A node on
/// which no agent's pod was created is not listed: `kubectl -n gybe-system get daemonset gybe-node` counts those. As
/// kubectl-gybe in the PATH this program is also `kubectl gybe`.
#[derive(Debug, Args)]
#[command(after_help = examples(&["gybe status", "kubectl gybe status", "gybe status --context prod --json"]))]
pub(super) struct StatusArgs {
    #[command(flatten)]
    kubeconfig: KubeconfigArgs,
    /// The namespace of the agents
    #[arg(long, short, value_name = "NAMESPACE", default_value = "gybe-system", value_parser = namespace)]
    namespace: String,
    /// The label selector of the agents' pods
    #[arg(long, short = 'l', value_name = "LABELS", default_value = AGENTS)]
    selector: String,
    /// How long to wait for all answers, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

fn namespace(text: &str) -> Result<String, &'static str> {
    Namespace::parse(text).map(|_| text.to_owned()).map_err(|_| "this is no name of a namespace")
}

impl StatusArgs {
    pub(super) fn run(&self, context: &Context) -> Result<CommandOutput, CommandError> {
        let cluster = self.kubeconfig.cluster(context)?;
        let selector = AgentSelector { namespace: self.namespace.clone(), labels: self.selector.clone() };
        let until = Instant::now() + Duration::from_secs(self.timeout);
        let found = agents::agents(&cluster, &selector, until)
            .map_err(|why| CommandError::hinted("cannot read the agents' status", why))?;
        if found.is_empty() {
            let what = format!("namespace {} has no pod with the labels {}", self.namespace, self.selector);
            let hint = "name the namespace in which Gybe is installed with --namespace";
            return Err(CommandError::new(what).with_hint(hint));
        }
        let kubectl = format!("{} -n {}", self.kubeconfig.kubectl(), self.namespace);
        Ok(output(&nodes(&found), &kubectl))
    }
}

/// A node, as its agents report it.
struct NodeRow<'a> {
    name: &'a str,
    /// The agent that leads, or the one that is described.
    agent: &'a ClusterAgent,
    status: Option<&'a AgentStatus>,
    problems: Vec<String>,
}

/// Returns a row for each node. During an upgrade a node has two agents, of which one leads. The agents of a node share
/// its address, so that both pages may be the leader's.
fn nodes(agents: &[ClusterAgent]) -> Vec<NodeRow<'_>> {
    let mut by_node: BTreeMap<&str, Vec<&ClusterAgent>> = BTreeMap::new();
    for agent in agents {
        by_node.entry(&agent.node).or_default().push(agent);
    }
    let pods_without_node = by_node.remove("").unwrap_or_default();
    let nodes = by_node.into_iter().filter_map(|(name, agents)| row(name, &agents));
    nodes.chain(pods_without_node.into_iter().filter_map(|agent| row("", &[agent]))).collect()
}

fn row<'a>(name: &'a str, agents: &[&'a ClusterAgent]) -> Option<NodeRow<'a>> {
    let leads = |agent: &&&ClusterAgent| agent.page.status().is_some_and(|status| !status.standby);
    let agent = *agents.iter().find(leads).or_else(|| agents.first())?;
    let status = agent.page.status();
    let mut problems = match &agent.page {
        StatusPage::Read(status) => problems(status),
        StatusPage::NotRunning => Vec::new(),
        StatusPage::NotServed => vec![format!("pod {}: {NOT_SERVED}", agent.pod)],
        StatusPage::Failed(why) => vec![format!("pod {}: {why}", agent.pod)],
    };
    match &agent.readiness {
        Readiness::NodeNotReady(why) => problems.push(format!("{NODE_NOT_READY}: {why}")),
        Readiness::PodNotReady(why) if problems.is_empty() && agent.waits.is_none() => {
            problems.push(format!("pod {} is not ready in the cluster: {why}", agent.pod));
        }
        Readiness::PodNotReady(_) | Readiness::Ready => {}
    }
    // Also the newer agent of a node whose old one still leads.
    problems
        .extend(agents.iter().filter_map(|one| Some(format!("pod {}: {}", one.pod, one.waits.as_ref()?))));
    Some(NodeRow { name, agent, status, problems })
}

const NODE_NOT_READY: &str = "the node is not ready in the cluster: its running pods keep their rules, and the kubelet or \
                              the runtime may start none";

const NOT_SERVED: &str = "the agent serves no status, because MONITORING_PORT (metrics.port of the chart) is 0: set a port, \
                          or run gybe doctor on the node";

fn problems(status: &AgentStatus) -> Vec<String> {
    let mut problems = status.reasons.clone();
    problems.extend(status.unwatched.iter().map(|why| format!("new pods are not known: {why}")));
    problems.extend(status.settings.iter().map(|why| format!("the ConfigMap is not followed: {why}")));
    problems.extend(status.repair.iter().map(|why| format!("{RUNNING_PODS}: {why}")));
    problems.extend(status.conflicts.iter().cloned());
    if let Some(pods @ 1..) = status.not_redirected {
        let pods = if pods == 1 { "1 pod".to_owned() } else { format!("{pods} pods") };
        problems.push(format!("{pods} should be redirected and may not be: gybe verify --all on the node"));
    }
    if problems.is_empty() && !status.ready {
        problems.push("the agent is not ready; its log may have the cause".to_owned());
    }
    problems
}

impl NodeRow<'_> {
    fn state(&self) -> &'static str {
        match &self.agent.page {
            _ if matches!(self.agent.readiness, Readiness::NodeNotReady(_)) => "NODE NOT READY",
            StatusPage::Read(status) if status.leaves => "leaves",
            StatusPage::Read(status) if status.ready => "ready",
            StatusPage::Read(_) => "NOT READY",
            StatusPage::NotRunning => "NOT RUNNING",
            StatusPage::NotServed => "NOT SERVED",
            StatusPage::Failed(_) => "NO ANSWER",
        }
    }

    fn cells(&self) -> [String; 6] {
        let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
        let text = |text: Option<&String>| {
            printable(text.filter(|text| !text.is_empty()).map_or("-", String::as_str))
        };
        let name = if self.name.is_empty() { "(no node)" } else { self.name };
        [
            printable(name),
            self.state().to_owned(),
            text(self.status.map(|status| &status.version)),
            text(self.status.and_then(|status| status.backend.as_ref())),
            number(self.status.map(|status| status.pods)),
            number(self.status.and_then(|status| status.not_redirected)),
        ]
    }

    fn json(&self) -> Value {
        let status = self.status;
        json!({
            "node": self.name,
            "pod": self.agent.pod,
            "state": self.state(),
            "version": status.map(|status| &status.version),
            "ready": status.map(|status| status.ready),
            "leaves": status.map(|status| status.leaves),
            "backend": status.and_then(|status| status.backend.as_ref()),
            "shape": status.and_then(|status| status.shape.as_ref()),
            "pods": status.map(|status| status.pods),
            "not_redirected": status.and_then(|status| status.not_redirected),
            "conflicts": status.map(|status| &status.conflicts),
            "problems": self.problems,
            "notes": status.map(|status| &status.notes),
        })
    }
}

/// Returns a line for each node with its problems below, and the number of nodes in each state and of each version.
fn output(rows: &[NodeRow<'_>], kubectl: &str) -> CommandOutput {
    const TITLES: [&str; 6] = ["NODE", "STATE", "VERSION", "BACKEND", "PODS", "NOT REDIRECTED"];
    let cells: Vec<[String; 6]> = rows.iter().map(NodeRow::cells).collect();
    let widths: Vec<usize> = TITLES
        .iter()
        .enumerate()
        .map(|(column, title)| {
            let widest = cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            widest.chain([title.len()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[&str]| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut text = titles(&line(&TITLES)) + "\n";
    for (row, cells) in rows.iter().zip(&cells) {
        let plain = line(&cells.each_ref().map(String::as_str));
        let state = row.state();
        let colour = if state == "ready" {
            good
        } else if state == "leaves" {
            doubtful
        } else {
            bad
        };
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "{}", plain.replacen(&format!("  {state}"), &format!("  {}", colour(state)), 1));
        for problem in &row.problems {
            let _ = writeln!(text, "    {}", printable(problem));
        }
    }
    let well = rows.iter().all(|row| row.problems.is_empty());
    let states = counted(rows.iter().map(NodeRow::state));
    let versions = counted(rows.iter().filter_map(|row| Some(row.status?.version.as_str())));
    let nodes = if rows.len() == 1 { "1 node".to_owned() } else { format!("{} nodes", rows.len()) };
    let list = |counts: &BTreeMap<&str, usize>| {
        counts
            .iter()
            .map(|(what, count)| format!("{count} {}", printable(what)))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let _ = writeln!(text, "\n{nodes}: {}; versions: {}", list(&states), list(&versions));
    let all: Vec<Value> = rows.iter().map(NodeRow::json).collect();
    let json = json!({ "well": well, "states": states, "versions": versions, "nodes": all });
    let first = rows.iter().find(|row| !row.problems.is_empty() && row.status.is_some());
    let hint = first.map(|NodeRow { name, agent, .. }| {
        let doctor =
            if agent.has_repair { "repair -- gybe doctor" } else { "install -- gybe doctor --root /host" };
        let command = format!("{kubectl} exec {} -c {doctor}", agent.pod);
        format!("hint: gybe doctor on a node prints the remedies, on {name}: {command}")
    });
    let exit = if well { Exit::Yes } else { Exit::No };
    CommandOutput { text, json, exit, notes: hint.into_iter().collect() }
}

fn counted<'a>(values: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    counts
}
