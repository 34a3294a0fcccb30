//! `gybe agent-status`: reports whether one agent is ready or healthy, for the kubelet's probes.

use super::invocation::Context;
use super::output::{CommandError, CommandOutput, Exit};
use super::style::examples;
use crate::agent_status::{self, AgentStatus};
use crate::host::settings::{FACTS_SOCKET, POD_DIRECTORY, STATUS_SOCKET};
use clap::{Args, ValueEnum};
use gybe_plugin::probe_cache::DIRECTORY;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
