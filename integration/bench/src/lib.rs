//! Benchmarks of Gybe beside other programs that do the same. Each part is a module that returns tables and targets;
//! `report` writes them.
//!
//! What is compared is measured in turn (A B C A B C …) in one run and judged by medians and ratios, so that the
//! machine's load affects both sides of a ratio.

pub mod add;
pub mod agent;
pub mod arguments;
pub mod concurrent_adds;
pub mod connections;
pub mod encoders;
pub mod incumbent;
pub mod instructions;
pub mod lists;
pub mod measures;
pub mod pod;
pub mod policies;
pub mod programs;
pub mod report;
pub mod verbs;

use arguments::{Arguments, Part};
use gybe_integration::failure::Failure;
use report::Report;
use std::process::ExitCode;

/// Runs the selected parts. Succeeds when every target is met.
pub fn run(arguments: &Arguments) -> ExitCode {
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
        Part::Crowd => concurrent_adds::measure(arguments.rounds),
        Part::Connections => connections::measure(arguments.rounds),
        Part::Lists => lists::measure(arguments.rounds),
        Part::Encoders => encoders::measure(arguments.times),
        Part::Instructions => instructions::measure(),
        Part::Incumbent => incumbent::measure(arguments.times, arguments.rounds),
    }?;
    report::tables(&report);
    Ok(report)
}
