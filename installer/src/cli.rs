//! The command line: which sub-command is meant, and how its answer leaves the program.
//!
//! Exit codes, the same for all: 0 done, or yes; 1 the answer is no (`verify`); 2 wrong arguments,
//! or it could not be done.

mod answer;
mod apply;
mod backend;
mod demo;
mod file;
mod inspect;
mod namespace;
mod packet;
mod print;
mod probe;
mod remove;
mod render;
mod trace;
mod verify;
mod wish;

pub use answer::Exit;

use answer::{Answer, Failure};
use clap::{Parser, Subcommand};
use std::ffi::OsString;

/// Redirects a network namespace's traffic through its mesh proxy, by nftables over netlink.
#[derive(Debug, Parser)]
#[command(name = "gybe", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, or yes; 1 no (verify); 2 wrong arguments, or it could not be done."
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
    Demo(demo::DemoArgs),
}

impl Command {
    fn run(&self) -> Result<Answer, Failure> {
        match self {
            Self::Apply(args) => args.run(),
            Self::Probe(args) => args.run(),
            Self::Verify(args) => args.run(),
            Self::Render(args) => args.run(),
            Self::Inspect(args) => args.run(),
            Self::Trace(args) => args.run(),
            Self::Remove(args) => args.run(),
            Self::Demo(args) => args.run(),
        }
    }
}

/// Does what the arguments say, prints the outcome, and says how the program ends.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Exit {
    match Gybe::try_parse_from(args) {
        Err(error) => print::usage(&error),
        Ok(gybe) => match gybe.command.run() {
            Ok(answer) => print::answer(&answer, gybe.json),
            Err(failure) => print::failure(&failure),
        },
    }
}
