//! The command line: which sub-command is meant, and how its answer leaves the program.
//!
//! Exit codes, the same for all: 0 done, or yes; 1 the answer is no (`verify`, `doctor`); 2 wrong arguments,
//! or it could not be done; 126 the pod is not redirected (`validate`).

mod answer;
mod apply;
mod backend;
mod called;
mod demo;
mod directories;
mod doctor;
mod file;
mod init;
mod inspect;
mod install;
mod live_trace;
mod namespace;
mod node;
mod packet;
mod passed;
mod plugin_conf;
mod pod_facts;
mod pods;
mod print;
mod probe;
mod remove;
mod render;
mod trace;
mod uninstall;
mod validate;
mod verify;
mod wish;

pub use answer::Exit;

use answer::{Answer, Failure};
use clap::{Parser, Subcommand};
use init::Surroundings;
use std::ffi::OsString;

/// Redirects a network namespace's traffic through its mesh proxy, by nftables over netlink.
#[derive(Debug, Parser)]
#[command(name = "gybe", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, or yes; 1 no (verify, doctor); 2 wrong arguments, or it could not be done; \
                  126 not redirected (validate)."
)]
struct Gybe {
    /// Answer in JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Apply(apply::ApplyArgs),
    Probe(probe::ProbeArgs),
    Verify(verify::VerifyArgs),
    Render(render::RenderArgs),
    Inspect(inspect::InspectArgs),
    Trace(trace::TraceArgs),
    Remove(remove::RemoveArgs),
    Node(node::NodeArgs),
    PodFacts(pod_facts::PodFactsArgs),
    Install(Box<install::InstallArgs>),
    Uninstall(uninstall::UninstallArgs),
    Doctor(doctor::DoctorArgs),
    Init(init::InitCommand),
    Validate(validate::ValidateArgs),
    Demo(demo::DemoArgs),
}

impl Command {
    fn run(&self, surroundings: &Surroundings) -> Result<Answer, Failure> {
        match self {
            Self::Apply(args) => args.run(),
            Self::Probe(args) => args.run(),
            Self::Verify(args) => args.run(),
            Self::Render(args) => args.run(),
            Self::Inspect(args) => args.run(),
            Self::Trace(args) => args.run(),
            Self::Remove(args) => args.run(),
            Self::Node(args) => args.run(surroundings),
            Self::PodFacts(args) => args.run(),
            Self::Install(args) => args.run(),
            Self::Uninstall(args) => args.run(),
            Self::Doctor(args) => args.run(),
            Self::Init(args) => args.run(surroundings),
            Self::Validate(args) => args.run(surroundings),
            Self::Demo(args) => args.run(),
        }
    }
}

/// Does what the arguments say, in this environment; prints the outcome, and says how the program
/// ends. A variable that is no text is none that anybody asks for.
pub fn run(
    args: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Exit {
    let args: Vec<OsString> = args.into_iter().collect();
    if called::is_taint(&args) {
        return print::failure(&called::no_taint());
    }
    let (called, args) = called::read(args);
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let surroundings =
        Surroundings { called, environment: environment.into_iter().filter_map(text).collect() };
    match Gybe::try_parse_from(args) {
        Err(error) => print::usage(&error),
        Ok(gybe) => match gybe.command.run(&surroundings) {
            Ok(answer) => print::answer(&answer, gybe.json),
            Err(failure) => print::failure(&failure),
        },
    }
}
