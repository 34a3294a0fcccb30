//! The results of a part: tables, and targets that are met or missed; their output in Markdown, for
//! docs/BENCHMARKS.md. Other modules do not write to stdout or stderr.

use gybe_integration::failure::Failure;
use std::io::{self, Write};
use std::process::ExitCode;
use std::{fs, thread};

/// A table of measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its title.
    pub title: String,
    /// The names of its columns.
    pub head: Vec<String>,
    /// Its rows, with a cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// The limit of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

/// A target and its measured value.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// What was measured.
    pub what: String,
    /// The measured value.
    pub measured: f64,
    /// Its limit.
    pub limit: Limit,
    /// The unit: `x`, `ms`.
    pub unit: &'static str,
}

impl Target {
    /// Reports whether the measured value is within the limit; NaN is not.
    pub fn is_met(&self) -> bool {
        match self.limit {
            Limit::AtMost(most) => self.measured <= most,
            Limit::AtLeast(least) => self.measured >= least,
        }
    }
}

/// The results of a part.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What was measured.
    pub tables: Vec<Table>,
    /// Its targets.
    pub targets: Vec<Target>,
}

/// Converts the cells of a row.
pub fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Writes kernel, processors and load.
pub fn preface() {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let processors = thread::available_parallelism().map_or(0, usize::from);
    line(&format!("Linux {kernel}, {processors} processors, load before (/proc/loadavg): {load}\n"));
}

/// Writes the tables of a report.
pub fn tables(report: &Report) {
    report.tables.iter().for_each(table);
}

/// Writes the table of targets; succeeds when all are met.
pub fn verdict(reports: &[Report]) -> ExitCode {
    let targets: Vec<&Target> = reports.iter().flat_map(|report| &report.targets).collect();
    if !targets.is_empty() {
        table(&Table {
            title: "Targets".into(),
            head: cells(["Target", "Limit", "Measured", "Verdict"]),
            rows: targets.iter().map(|target| row(target)).collect(),
        });
    }
    if targets.iter().all(|target| target.is_met()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes the error that ended the program or a scenario.
pub fn failure(error: &Failure) -> ExitCode {
    let _closed = writeln!(io::stderr(), "error: {error:?}");
    ExitCode::FAILURE
}

fn row(target: &Target) -> Vec<String> {
    let limit = match target.limit {
        Limit::AtMost(most) => format!("at most {most} {}", target.unit),
        Limit::AtLeast(least) => format!("at least {least} {}", target.unit),
    };
    let measured = format!("{:.2} {}", target.measured, target.unit);
    let verdict = if target.is_met() { "met" } else { "MISSED" };
    vec![target.what.clone(), limit, measured, verdict.into()]
}

fn table(table: &Table) {
    line(&format!("### {}\n", table.title));
    line(&format!("| {} |", table.head.join(" | ")));
    line(&format!("|{}", "---|".repeat(table.head.len())));
    for row in &table.rows {
        line(&format!("| {} |", row.join(" | ")));
    }
    line("");
}

/// Ignores a closed pipe.
fn line(text: &str) {
    let _closed = writeln!(io::stdout(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_at_the_limit_meets_the_target() {
        let target = |limit| Target { what: String::new(), measured: 1.6, limit, unit: "x" };
        assert!(target(Limit::AtMost(1.6)).is_met() && target(Limit::AtLeast(1.6)).is_met());
        assert!(!target(Limit::AtMost(1.5)).is_met() && !target(Limit::AtLeast(1.7)).is_met());
        let unmeasured = Target { measured: f64::NAN, ..target(Limit::AtMost(1.6)) };
        assert!(!unmeasured.is_met(), "an unmeasured target is not met");
    }
}
