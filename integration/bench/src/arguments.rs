//! The command line of the benchmark.

use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// One ADD, from the start of the process to its end.
    Add,
    /// One call of the other commands, and its memory.
    Verbs,
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
