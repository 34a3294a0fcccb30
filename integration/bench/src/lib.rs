//! What Gybe costs, measured beside what the same costs otherwise. A part is a module; each gives
//! tables and targets, and `print` alone writes them.
//!
//! Whatever is compared is measured in turn (A B C A B C ...) in one run, and judged by medians and
//! ratios: the machine's mood is in both halves of a ratio.

pub mod add;
pub mod agent;
pub mod arguments;
pub mod connections;
pub mod crowd;
pub mod instructions;
pub mod lists;
pub mod memory;
pub mod pod;
pub mod policies;
pub mod print;
pub mod programs;
pub mod report;
pub mod sample;
pub mod seclusion;
pub mod verbs;

use arguments::{Arguments, Part};
use gybe_integration::failure::Failure;
use report::Report;
use std::process::ExitCode;

/// Runs the parts that were asked for. Succeeds when every target is met.
pub fn run(arguments: &Arguments) -> ExitCode {
    let reports = seclusion::seclude().and_then(|()| {
        print::preface();
        let parts = arguments.parts().into_iter();
        parts.map(|part| measured(part, arguments)).collect::<Result<Vec<Report>, Failure>>()
    });
    match reports {
        Ok(reports) => print::verdict(&reports),
        Err(complaint) => print::failure(&complaint),
    }
}

fn measured(part: Part, arguments: &Arguments) -> Result<Report, Failure> {
    let report = match part {
        Part::Add => add::measure(arguments.times),
        Part::Verbs => verbs::measure(arguments.times),
        Part::Crowd => crowd::measure(arguments.rounds),
        Part::Connections => connections::measure(arguments.rounds),
        Part::Lists => lists::measure(arguments.rounds),
        Part::Instructions => instructions::measure(),
    }?;
    print::tables(&report);
    Ok(report)
}
