//! Which parts are measured, and how often.

use clap::{Parser, ValueEnum};

/// What a benchmark can be about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// One ADD, from the start of the process to its end.
    Add,
    /// One call of the other kinds, likewise, and its memory.
    Verbs,
    /// Many ADDs at once.
    Crowd,
    /// What a connection costs afterwards.
    Connections,
    /// Long lists: the time to write them, and the kernel's memory.
    Lists,
    /// Instructions, by callgrind.
    Instructions,
}

/// Measures what Gybe costs, and fails when a target is missed.
#[derive(Debug, Parser)]
#[command(name = "gybe-bench")]
pub struct Arguments {
    /// Only these; all when none is named
    parts: Vec<Part>,
    /// How often each program is run by `add` and `verbs`
    #[arg(long, default_value_t = 101)]
    pub times: usize,
    /// How often the other parts measure each thing
    #[arg(long, default_value_t = 11)]
    pub rounds: usize,
}

impl Arguments {
    /// The parts to run, in the order they were named.
    pub fn parts(&self) -> Vec<Part> {
        if self.parts.is_empty() { Part::value_variants().to_vec() } else { self.parts.clone() }
    }
}
