//! The command line: parses it, runs the sub-command and prints its output.
//!
//! `after_help` lists the exit codes, which are the same for all sub-commands.

mod agent_status;
mod apply;
mod backend;
mod cluster;
mod directories;
mod doctor;
mod explain;
mod help;
mod init;
mod input;
mod inspect;
mod install;
mod invocation;
mod leave;
mod migrate;
mod namespace;
mod node;
mod output;
mod packet;
mod pass;
mod pods;
mod policy_source;
mod probe;
mod render;
mod repair;
mod status;
mod style;
mod support_bundle;
mod trace;
mod uninstall;
mod verify;

pub use output::Exit;

use crate::probe::host_mounts::HostMounts;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use invocation::Context;
use output::{CommandError, CommandOutput};
use std::ffi::OsString;
use std::path::Path;

/// The variable of a container that names the host's mount namespace: every command that does not enter it by itself
/// then runs there.
const HOST_MOUNTS: &str = "GYBE_HOST_MOUNTS";

/// Redirects a pod's traffic to its mesh proxy, with nftables over netlink
#[derive(Debug, Parser)]
#[command(name = "gybe", version, max_term_width = 100)]
#[command(after_help = after_help())]
struct Gybe {
    /// Print the output as JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

fn after_help() -> String {
    format!(
        "{}\n  0    done, or the answer is yes\n  1    the answer is no (verify, explain, repair, doctor, status, migrate,\n       \
         install, uninstall, probe, agent-status, istio-cni-taint, leave)\n  2    wrong arguments, or the command failed\n  126  the pod is not redirected (validate)\n\n{}",
        style::heading("Exit codes:"),
        "`gybe help COMMAND` explains a command and shows examples.",
    )
}

#[derive(Debug, Subcommand)]
enum Command {
    Apply(apply::ApplyArgs),
    Probe(probe::ProbeArgs),
    Verify(verify::VerifyArgs),
    Render(render::RenderArgs),
    Inspect(inspect::InspectArgs),
    Trace(trace::TraceArgs),
    Explain(explain::ExplainArgs),
    Remove(apply::RemoveArgs),
    Repair(repair::RepairArgs),
    Migrate(migrate::MigrateArgs),
    #[command(visible_alias = "agent")]
    Node(node::NodeArgs),
    AgentStatus(agent_status::AgentStatusArgs),
    PodFacts(agent_status::PodFactsArgs),
    IstioCniTaint(node::IstioCniTaintArgs),
    Leave(leave::LeaveArgs),
    Install(Box<install::InstallArgs>),
    Uninstall(uninstall::UninstallArgs),
    Doctor(doctor::DoctorArgs),
    Status(status::StatusArgs),
    SupportBundle(support_bundle::SupportBundleArgs),
    Init(init::InitCommand),
    Validate(init::ValidateArgs),
    Version(help::VersionArgs),
    Completion(help::CompletionArgs),
    Man(help::ManArgs),
}

impl Command {
    /// Runs the command where the environment requests it: here, or in the host's mount namespace.
    fn run(&self, context: &Context) -> Result<CommandOutput, CommandError> {
        let enters_it = match self {
            Self::Probe(args) => args.host,
            Self::Repair(args) => args.host,
            _ => false,
        };
        match context.environment.get(HOST_MOUNTS).filter(|path| !path.is_empty() && !enters_it) {
            None => self.run_here(context),
            Some(path) => {
                let cannot = |why| CommandError::hinted(format!("cannot use {HOST_MOUNTS}"), why);
                let host = HostMounts::open(Path::new(path)).map_err(cannot)?;
                host.run(|| self.run_here(context)).map_err(cannot)?
            }
        }
    }

    fn run_here(&self, context: &Context) -> Result<CommandOutput, CommandError> {
        match self {
            Self::Apply(args) => args.run(),
            Self::Probe(args) => args.run(),
            Self::Verify(args) => args.run(),
            Self::Render(args) => args.run(),
            Self::Inspect(args) => args.run(),
            Self::Trace(args) => args.run(),
            Self::Explain(args) => args.run(),
            Self::Remove(args) => args.run(),
            Self::Repair(args) => args.run(),
            Self::Migrate(args) => args.run(),
            Self::Node(args) => args.run(context),
            Self::AgentStatus(args) => args.run(context),
            Self::PodFacts(args) => args.run(),
            Self::IstioCniTaint(args) => args.run(context),
            Self::Leave(args) => args.run(context),
            Self::Install(args) => args.run(),
            Self::Uninstall(args) => args.run(),
            Self::Doctor(args) => Ok(args.run()),
            Self::Status(args) => args.run(context),
            Self::SupportBundle(args) => args.run(),
            Self::Init(args) => args.run(context),
            Self::Validate(args) => args.run(context),
            Self::Version(args) => Ok(args.run()),
            Self::Completion(args) => args.run(command()),
            Self::Man(args) => args.run(command()),
        }
    }
}

/// Returns the definition of the whole command line.
fn command() -> clap::Command {
    help::grouped(Gybe::command())
}

/// Runs the command that `args` name, prints its output and returns the exit code. Environment variables
/// that are not UTF-8 are ignored: no command reads one.
pub fn run(
    args: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Exit {
    let (called_as, args) = invocation::read(args);
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let context = Context { called_as, environment: environment.into_iter().filter_map(text).collect() };
    let parsed = command().try_get_matches_from(args).and_then(|found| Gybe::from_arg_matches(&found));
    match parsed {
        Err(error) => output::usage(&error),
        Ok(gybe) => match gybe.command.run(&context) {
            Ok(output) => output::print(&output, gybe.json),
            Err(failure) => output::failure(&failure),
        },
    }
}
