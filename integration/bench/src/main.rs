//! `gybe-bench`: measures, prints the results, and fails when a target is missed.

use clap::Parser;
use gybe_bench::Arguments;
use std::process::ExitCode;

fn main() -> ExitCode {
    gybe_bench::run(&Arguments::parse())
}
