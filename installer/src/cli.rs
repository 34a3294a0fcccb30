//! The command line: parses it, runs the sub-command and prints its output.
//!
//! `after_help` lists the exit codes, which are the same for all sub-commands.

mod agent_status;
mod apply;
mod backend;
mod cluster;
mod doctor;
mod explain;
mod help;
mod init;
mod input;
mod inspect;
mod install;
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

use crate::host::image::{ISTIO_CNI_TAINT, ISTIO_IPTABLES, ISTIO_IPTABLES_SH};
use crate::pod::init_args::InitArgs;
use crate::probe::host_mounts::HostMounts;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use output::{CommandError, CommandOutput};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
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
         install, uninstall, probe, agent-status, istio-cni-taint, leave)\n  2    wrong arguments, or the command failed\n  126  the pod is not redirected, or that is not determined (validate)\n\n{}",
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
    let (called_as, args) = own_form(args);
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

/// How the program was called.
#[derive(Debug)]
struct Context {
    called_as: CalledAs,
    environment: BTreeMap<String, String>,
}

/// The program whose arguments the command line has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CalledAs {
    /// `gybe`, or a current `istio-iptables`.
    Gybe,
    /// The image of Istio before 1.3, which took flags without a command.
    BareFlags,
}

/// Returns the command line in gybe's own form. Every form in which a pod's init container calls Istio's image becomes
/// `gybe init`, and the program name `istio-cni-taint` becomes the command of that name.
fn own_form(args: impl IntoIterator<Item = OsString>) -> (CalledAs, Vec<OsString>) {
    let mut args = args.into_iter();
    let program = args.next().unwrap_or_default();
    let rest: Vec<OsString> = args.collect();
    let first = rest.first().map(OsString::as_os_str);
    let name = Path::new(&program).file_name();
    if name == Some(OsStr::new(ISTIO_CNI_TAINT)) {
        return (CalledAs::Gybe, [program, ISTIO_CNI_TAINT.into()].into_iter().chain(rest).collect());
    }
    // The entry point of Istio's image before 1.3 was a script of this name.
    if name == Some(OsStr::new(ISTIO_IPTABLES_SH)) {
        return (CalledAs::BareFlags, as_init(program, rest));
    }
    if first.and_then(OsStr::to_str).is_some_and(InitArgs::is_flag) {
        let called_as = if is_istio_iptables(name) { CalledAs::Gybe } else { CalledAs::BareFlags };
        return (called_as, as_init(program, rest));
    }
    if is_istio_iptables(name) || is_istio_iptables(first) {
        return (CalledAs::Gybe, as_init(program, rest));
    }
    let rest = match first.and_then(OsStr::to_str) {
        Some(command @ ("init" | "validate")) if requests_help(&rest) => {
            vec![command.into(), "--help".into()]
        }
        _ => rest,
    };
    (CalledAs::Gybe, [program].into_iter().chain(rest).collect())
}

fn is_istio_iptables(word: Option<&OsStr>) -> bool {
    word == Some(OsStr::new(ISTIO_IPTABLES))
}

/// Reports whether the arguments request help. clap leaves everything after `init` and `validate` to the parser of
/// `istio-iptables`' flags, which has no help, so a request for help replaces the other arguments.
fn requests_help(args: &[OsString]) -> bool {
    args.iter().any(|arg| arg == "--help" || arg == "-h")
}

fn as_init(program: OsString, rest: Vec<OsString>) -> Vec<OsString> {
    if requests_help(&rest) {
        return vec![program, "init".into(), "--help".into()];
    }
    [program, "init".into()].into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_command_line_is_read() {
        for (line, called_as, expected) in [
            ("gybe", CalledAs::Gybe, "gybe"),
            ("gybe verify -p x", CalledAs::Gybe, "gybe verify -p x"),
            ("gybe init -p 15001", CalledAs::Gybe, "gybe init -p 15001"),
            ("gybe init -p 15001 --help", CalledAs::Gybe, "gybe init --help"),
            ("gybe validate -h", CalledAs::Gybe, "gybe validate --help"),
            ("gybe verify -h", CalledAs::Gybe, "gybe verify -h"),
            ("gybe --json verify", CalledAs::Gybe, "gybe --json verify"),
            ("gybe --help", CalledAs::Gybe, "gybe --help"),
            ("gybe -V", CalledAs::Gybe, "gybe -V"),
            ("gybe istio-iptables -p 1", CalledAs::Gybe, "gybe init istio-iptables -p 1"),
            ("gybe istio-iptables --help", CalledAs::Gybe, "gybe init --help"),
            ("gybe istio-iptables -p 1 -h", CalledAs::Gybe, "gybe init --help"),
            ("/usr/bin/istio-iptables -p 1", CalledAs::Gybe, "/usr/bin/istio-iptables init -p 1"),
            ("istio-iptables", CalledAs::Gybe, "istio-iptables init"),
            ("istio-iptables --help", CalledAs::Gybe, "istio-iptables init --help"),
            ("pilot-agent istio-iptables -n", CalledAs::Gybe, "pilot-agent init istio-iptables -n"),
            ("istio-cni-taint", CalledAs::Gybe, "istio-cni-taint istio-cni-taint"),
            ("/opt/istio-cni-taint --help", CalledAs::Gybe, "/opt/istio-cni-taint istio-cni-taint --help"),
            ("istio-cni-taint doctor", CalledAs::Gybe, "istio-cni-taint istio-cni-taint doctor"),
            ("gybe -p 15001 -u 1337", CalledAs::BareFlags, "gybe init -p 15001 -u 1337"),
            ("gybe -p15001", CalledAs::BareFlags, "gybe init -p15001"),
            ("gybe --envoy-port=1 -b *", CalledAs::BareFlags, "gybe init --envoy-port=1 -b *"),
            ("/x/istio-iptables.sh -p 1", CalledAs::BareFlags, "/x/istio-iptables.sh init -p 1"),
        ] {
            let (read_as, args) = own_form(line.split(' ').map(OsString::from));
            let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
            assert_eq!((read_as, args.join(" ").as_str()), (called_as, expected), "{line}");
        }
    }
}
