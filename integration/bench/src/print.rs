//! Output in Markdown, for docs/BENCHMARKS.md. Other modules do not write to stdout or stderr.

use crate::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;
use std::io::{self, Write};
use std::process::ExitCode;
use std::{fs, thread};

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
