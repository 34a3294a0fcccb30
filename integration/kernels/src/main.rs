//! `gybe-kernels [NAME...]`: boots kernels in virtual machines and checks there what Gybe does. A NAME is a kernel or a
//! case of a kernel with parts missing; without names, all of them. Exit code 1: a check failed, a machine did not
//! finish, or a kernel could not be fetched. With GYBE_WRITE=1 a complete run writes the tables of docs/KERNELS.md.
//! `gybe-kernels --kernels [NAME...]` prints the kernels that this needs, for `setup.sh`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "prints the table and the problems")]

mod cases;
mod judge;
mod machine;
mod page;

use cases::{CASES, Case};
use gybe_integration::namespace::in_parallel_at_most;
use gybe_kernels::CheckResult;
use machine::{KERNELS, Kernel, Machine};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Machines at a time. Each has two processors, and waits for deadlines in between.
const MACHINES: usize = 2;

const PAGE: &str = "docs/KERNELS.md";

/// What one machine is booted for.
#[derive(Debug, Clone, Copy)]
enum Run {
    Kernel(&'static Kernel),
    Case(&'static Case),
}

impl Run {
    fn all() -> Vec<Self> {
        KERNELS.iter().map(Self::Kernel).chain(CASES.iter().map(Self::Case)).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kernel(kernel) => kernel.name,
            Self::Case(case) => case.name,
        }
    }

    fn kernel(self) -> &'static str {
        match self {
            Self::Kernel(kernel) => kernel.name,
            Self::Case(case) => case.kernel,
        }
    }

    fn machine(self) -> Result<Machine, String> {
        match self {
            Self::Kernel(kernel) => Ok(Machine::of_kernel(kernel)),
            Self::Case(case) => case.machine().ok_or_else(|| format!("no kernel {}", case.kernel)),
        }
    }

    fn problems(self, results: &[CheckResult]) -> Vec<String> {
        match self {
            Self::Kernel(_) => judge::kernel(results),
            Self::Case(case) => judge::case(case, results),
        }
    }
}

/// A machine's results, or why there are none.
type Outcome = Result<Vec<CheckResult>, String>;

fn main() -> ExitCode {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let only_kernels = names.first().is_some_and(|first| first == "--kernels");
    names.drain(..usize::from(only_kernels));
    let is_selected = |run: &Run| names.is_empty() || names.iter().any(|name| name == run.name());
    let runs: Vec<Run> = Run::all().into_iter().filter(is_selected).collect();
    if runs.len() < names.len() {
        let known: Vec<_> = Run::all().into_iter().map(Run::name).collect();
        eprintln!("of {names:?} only {} are known; known are: {}", runs.len(), known.join("; "));
        return ExitCode::FAILURE;
    }
    if only_kernels {
        let kernels: BTreeSet<&str> = runs.into_iter().map(Run::kernel).collect();
        println!("{}", kernels.into_iter().collect::<Vec<_>>().join(" "));
        return ExitCode::SUCCESS;
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let directory = target.join("kernels");
    let outcomes = in_parallel_at_most(MACHINES, runs, |run| {
        let started = Instant::now();
        let outcome = run.machine().and_then(|machine| machine.run(&directory));
        let problems = outcome.as_ref().map_or_else(|why| vec![why.clone()], |results| run.problems(results));
        let verdict = if problems.is_empty() { "as expected" } else { "NOT as expected" };
        println!("{}: {verdict}, {} s", run.name(), started.elapsed().as_secs());
        problems.iter().for_each(|problem| println!("  {problem}"));
        (run, outcome, problems)
    });
    let tables = page::tables(&directory, outcomes.iter().map(|(run, outcome, _)| (*run, outcome)));
    tables.iter().for_each(|(_, table)| println!("\n{table}"));
    let failed = outcomes.iter().filter(|(.., problems)| !problems.is_empty()).count();
    if failed > 0 {
        eprintln!("{failed} of {} machines are not as expected", outcomes.len());
        return ExitCode::FAILURE;
    }
    let is_written = names.is_empty() && std::env::var_os("GYBE_WRITE").is_some();
    let written = if is_written { write(&tables) } else { Ok(()) };
    if let Err(error) = written {
        eprintln!("cannot write {PAGE}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn write(tables: &[(&str, String)]) -> Result<(), String> {
    let page = fs::read_to_string(PAGE).map_err(|error| error.to_string())?;
    fs::write(PAGE, page::with_tables(&page, tables)?).map_err(|error| error.to_string())
}
