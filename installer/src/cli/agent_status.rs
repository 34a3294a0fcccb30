//! What the kubelet and gybe-cni run: `gybe agent-status` reports whether one agent is ready or healthy, for the kubelet's
//! probes; `gybe pod-facts` looks up one pod for gybe-cni when its configuration names a kubeconfig.

use super::Context;
use super::output::{CommandError, CommandOutput, Exit};
use super::style::examples;
use crate::agent_status::{self, AgentStatus};
use crate::cluster::{self, Cluster};
use crate::host::settings::{FACTS_SOCKET, POD_DIRECTORY, STATUS_SOCKET};
use clap::{Args, ValueEnum};
use gybe_plugin::bounded_read;
use gybe_plugin::facts::wire::MAX_REQUEST_BYTES;
use gybe_plugin::probe_cache::DIRECTORY;
use serde_json::{Value, json};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A kubelet waits for three seconds.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Report whether a node agent is ready or healthy
///
/// In an agent's container it queries the agent of that container, and elsewhere the agent that leads on this node:
/// during an upgrade a node has two. Exit code 0: yes. 1: no; the reasons are printed. 2: no agent answers.
#[derive(Debug, Args)]
#[command(after_help = examples(&["gybe agent-status ready", "gybe agent-status healthy --socket /run/gybe/facts.sock"]))]
pub(super) struct AgentStatusArgs {
    /// ready: a pod started now is redirected, and this agent leads, or did so until a newer one took over; healthy: a
    /// restart of the agent would not help
    #[arg(value_name = "ready|healthy", hide_possible_values = true)]
    question: Question,
    /// The agent's socket [default: status.sock in GYBE_POD_DIR, else /run/gybe/facts.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Question {
    Ready,
    Healthy,
}

impl AgentStatusArgs {
    pub(super) fn run(&self, context: &Context) -> Result<CommandOutput, CommandError> {
        let own = context.environment.get(POD_DIRECTORY).filter(|directory| !directory.is_empty());
        let default = || {
            own.map_or_else(
                || Path::new(DIRECTORY).join(FACTS_SOCKET),
                |directory| Path::new(directory).join(STATUS_SOCKET),
            )
        };
        let socket = self.socket.clone().unwrap_or_else(default);
        let status = agent_status::query(&socket, TIMEOUT)
            .map_err(|why| CommandError::because("cannot query the node agent", why))?;
        let status = status.ok_or_else(|| CommandError::new("this node agent's version has no status"))?;
        Ok(output(self.question, &status))
    }
}

fn output(question: Question, status: &AgentStatus) -> CommandOutput {
    let (is_so, name, reasons) = match question {
        Question::Ready => (status.ready, "ready", status.reasons.clone()),
        Question::Healthy => (status.restart.is_none(), "healthy", status.restart.iter().cloned().collect()),
    };
    let text = match is_so {
        true => format!("{name}\n"),
        false => format!("not {name}\n- {}\n", reasons.join("\n- ")),
    };
    let json = json!({ name: is_so, "standby": status.standby, "reasons": reasons });
    CommandOutput { text, json, exit: if is_so { Exit::Yes } else { Exit::No }, notes: Vec::new() }
}

/// Look up one pod at the API server for gybe-cni
///
/// Reads one request line from stdin and writes one response line to stdout. gybe-cni runs this command if
/// its configuration names a kubeconfig.
#[derive(Debug, Args)]
#[command(after_help = super::style::examples(&["gybe pod-facts --kubeconfig /etc/cni/net.d/gybe-kubeconfig < request"]))]
pub(super) struct PodFactsArgs {
    /// The kubeconfig with the API server and the credentials: its current context
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The deadline for reading the request, the lookup and the response together
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2000)]
    deadline_ms: u32,
}

impl PodFactsArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let until = Instant::now() + Duration::from_millis(self.deadline_ms.into());
        let request = bounded_read::to_end(std::io::stdin().as_fd(), MAX_REQUEST_BYTES, until)
            .map_err(|why| CommandError::because("the request on stdin cannot be read", why))?;
        let cluster = Cluster::Kubeconfig { path: self.kubeconfig.clone(), context: None };
        let response = cluster::pod_facts(&cluster, &request, until)
            .map_err(|why| CommandError::because("the request on stdin is", why))?;
        let json: Value = serde_json::from_str(&response)
            .map_err(|why| CommandError::because("the response is not JSON", why))?;
        Ok(CommandOutput::done(response, json))
    }
}
