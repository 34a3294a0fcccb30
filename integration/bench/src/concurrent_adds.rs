//! Many ADDs at the same time, as after the restart of a node.

use crate::add::contenders;
use crate::measures::{Sample, in_turn};
use crate::pod::{self, Pod};
use crate::programs::{Contender, RunTime};
use crate::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;
use std::sync::Barrier;
use std::thread;

/// Numbers of concurrent ADDs.
const SIZES: [usize; 2] = [50, 250];

/// # Errors
/// When a program fails.
pub fn measure(rounds: usize) -> Result<Report, Failure> {
    let contenders = contenders(None)?;
    let mut report = Report { tables: Vec::new(), targets: Vec::new() };
    for size in SIZES {
        let samples = in_turn(rounds, &contenders, |contender| {
            Ok::<_, Failure>([run_concurrently(contender, &pod::new_pods(size)?)?])
        })?;
        let samples: Vec<Sample> = samples.into_iter().flatten().collect();
        report.tables.push(table(size, &contenders, &samples));
        report.targets.extend(target(size, &contenders, &samples));
    }
    Ok(report)
}

/// Measures from the start of the first program to the end of the last, in milliseconds.
pub(crate) fn run_concurrently(contender: &Contender, pods: &[Pod]) -> Result<f64, Failure> {
    let start = Barrier::new(pods.len());
    let runs: Vec<RunTime> = thread::scope(|scope| {
        let start = &start;
        let wait_for_all = || {
            start.wait();
        };
        let start_one = |pod| scope.spawn(move || contender.run(pod, wait_for_all));
        let threads: Vec<_> = pods.iter().map(start_one).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect::<Result<_, Failure>>()
    })?;
    let first = runs.iter().map(|run| run.started).min();
    let last = runs.iter().map(|run| run.ended).max();
    let elapsed = first.zip(last).map(|(first, last)| last.duration_since(first));
    Ok(elapsed.unwrap_or_default().as_secs_f64() * 1e3)
}

fn table(size: usize, contenders: &[Contender], samples: &[Sample]) -> Table {
    let gybe = samples.get(1).map_or(f64::NAN, Sample::median);
    let row = |(contender, sample): (&Contender, &Sample)| {
        vec![contender.name.into(), sample.to_string(), format!("{:.2}", sample.median() / gybe)]
    };
    Table {
        title: format!("{size} namespaces at the same time, first start to last end"),
        head: cells(["Program", "ms (quartiles)", "x gybe-cni"]),
        rows: contenders.iter().zip(samples).map(row).collect(),
    }
}

/// Only the larger number has a target.
fn target(size: usize, contenders: &[Contender], samples: &[Sample]) -> Option<Target> {
    let gybe = samples.get(1)?;
    let others = contenders.iter().zip(samples).filter(|(contender, _)| contender.is_of_the_system());
    let fastest = others.map(|(_, sample)| sample.median()).fold(f64::INFINITY, f64::min);
    (Some(&size) == SIZES.last()).then(|| Target {
        what: format!("{size} namespaces at the same time, faster than the fastest other program"),
        measured: fastest / gybe.median(),
        limit: Limit::AtLeast(4.0),
        unit: "x",
    })
}
