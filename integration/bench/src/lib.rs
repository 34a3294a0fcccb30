//! Benchmarks of Gybe beside other programs that do the same. Each part is a module that returns tables and targets;
//! `report` writes them.
//!
//! What is compared is measured in turn (A B C A B C …) in one run and judged by medians and ratios, so that the
//! machine's load affects both sides of a ratio.

pub mod add;
pub mod agent;
pub mod concurrent_adds;
pub mod connections;
pub mod encoders;
pub mod floor;
pub mod incumbent;
pub mod instructions;
pub mod lists;
pub mod measures;
pub mod pod;
pub mod policies;
pub mod programs;
pub mod report;
pub mod verbs;

use clap::{Parser, ValueEnum};
use gybe_integration::failure::Failure;
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs the selected parts. Succeeds when every target is met.
pub fn run(arguments: &Arguments) -> ExitCode {
    if let Some(path) = &arguments.write_batch {
        return match floor::write_batch(path) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => report::failure(&error),
        };
    }
    let reports = pod::mount_private_run().and_then(|()| {
        report::preface();
        let parts = arguments.parts().into_iter();
        parts.map(|part| measure(part, arguments)).collect::<Result<Vec<Report>, Failure>>()
    });
    match reports {
        Ok(reports) => report::verdict(&reports),
        Err(error) => report::failure(&error),
    }
}

fn measure(part: Part, arguments: &Arguments) -> Result<Report, Failure> {
    let report = match part {
        Part::Add => add::measure(arguments.times, arguments.before.as_deref()),
        Part::Verbs => verbs::measure(arguments.times, arguments.before.as_deref()),
        Part::Floor => floor::measure(arguments.times, arguments.rounds),
        Part::Crowd => concurrent_adds::measure(arguments.rounds),
        Part::Connections => connections::measure(arguments.rounds),
        Part::Lists => lists::measure(arguments.rounds),
        Part::Encoders => encoders::measure(arguments.times),
        Part::Instructions => instructions::measure(),
        Part::Agent => agent::measure(),
        Part::Incumbent => incumbent::measure(arguments.times, arguments.rounds),
    }?;
    report::tables(&report);
    Ok(report)
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// One ADD, from the start of the process to its end.
    Add,
    /// One call of the other commands, and its memory.
    Verbs,
    /// Calls beside the least that their system calls can cost.
    Floor,
    /// Many ADDs at the same time.
    Crowd,
    /// Processor time of connections under the rules.
    Connections,
    /// Time and kernel memory of long lists.
    Lists,
    /// Gybe's nftables encoder beside libnftnl and rustables.
    Encoders,
    /// Instructions, counted by callgrind.
    Instructions,
    /// Wakeups, processor time and memory of an idle agent.
    Agent,
    /// ADD of Istio's own plugin beside Gybe's; needs integration/incumbent/setup.sh.
    Incumbent,
}

/// Measures what Gybe costs, and fails when a target is missed.
#[derive(Debug, Parser)]
#[command(name = "gybe-bench")]
pub struct Arguments {
    /// The parts to run; all but `incumbent` by default
    parts: Vec<Part>,
    /// How often `add`, `verbs` and `encoders` measure each thing
    #[arg(long, default_value_t = 101)]
    pub times: usize,
    /// The directory of an earlier build's gybe-cni, which `add` and `verbs` measure in the same run
    #[arg(long, value_name = "DIRECTORY")]
    pub before: Option<PathBuf>,
    /// Only write the nftables batch of the default policy to this file, for floors/add.rs
    #[arg(long, value_name = "FILE")]
    pub write_batch: Option<PathBuf>,
    /// How often the other parts measure each thing
    #[arg(long, default_value_t = 11)]
    pub rounds: usize,
}

impl Arguments {
    /// The parts to run, in the order they were named.
    pub fn parts(&self) -> Vec<Part> {
        if !self.parts.is_empty() {
            return self.parts.clone();
        }
        Part::value_variants().iter().copied().filter(|part| *part != Part::Incumbent).collect()
    }
}
