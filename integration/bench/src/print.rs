//! The one module that writes to stdout and stderr: Markdown, for docs/BENCHMARKS.md.

use crate::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;
use std::io::{self, Write};
use std::process::ExitCode;
use std::{fs, thread};

/// Writes what the numbers depend on.
pub fn preface() {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let processors = thread::available_parallelism().map_or(0, usize::from);
    line(&format!("Linux {kernel}, {processors} processors, load before (/proc/loadavg): {load}\n"));
}

/// Writes what a part measured.
pub fn tables(report: &Report) {
    report.tables.iter().for_each(table);
}

/// Writes every target on a line of its own, and says whether all are met.
pub fn verdict(reports: &[Report]) -> ExitCode {
    let targets: Vec<&Target> = reports.iter().flat_map(|report| &report.targets).collect();
    table(&Table {
        title: "Targets".into(),
        head: cells(["Target", "Limit", "Measured", "Verdict"]),
        rows: targets.iter().map(|target| row(target)).collect(),
    });
    if targets.iter().all(|target| target.is_redirected()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Says why nothing could be measured.
pub fn failure(complaint: &Failure) -> ExitCode {
    let _nobody_reads = writeln!(io::stderr(), "gybe-bench: {complaint:?}");
    ExitCode::FAILURE
}

fn row(target: &Target) -> Vec<String> {
    let limit = match target.limit {
        Limit::AtMost(most) => format!("at most {most} {}", target.unit),
        Limit::AtLeast(least) => format!("at least {least} {}", target.unit),
    };
    let measured = format!("{:.2} {}", target.measured, target.unit);
    let verdict = if target.is_redirected() { "met" } else { "MISSED" };
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

/// A reader that went away has had enough.
fn line(text: &str) {
    let _nobody_reads = writeln!(io::stdout(), "{text}");
}
