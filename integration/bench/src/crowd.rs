//! Many namespaces at once: a node that starts again, and all its pods with it.

use crate::add::contenders;
use crate::pod;
use crate::programs::{Contender, Ran};
use crate::report::{Limit, Report, Table, Target, cells};
use crate::sample::{Sample, in_turn};
use gybe_integration::failure::Failure;
use std::sync::Barrier;
use std::thread;

/// How many at once.
const CROWDS: [usize; 2] = [50, 250];

/// Measures each contender that often with each crowd.
///
/// # Errors
/// When one of them fails.
pub fn measure(rounds: usize) -> Result<Report, Failure> {
    let contenders = contenders()?;
    let mut report = Report { tables: Vec::new(), targets: Vec::new() };
    for size in CROWDS {
        let samples =
            in_turn(rounds, &contenders, |contender| Ok::<_, Failure>([at_once(contender, size)?]))?;
        let samples: Vec<Sample> = samples.into_iter().flatten().collect();
        report.tables.push(table(size, &contenders, &samples));
        report.targets.extend(target(size, &samples));
    }
    Ok(report)
}

/// From the start of the first program to the end of the last, in milliseconds.
fn at_once(contender: &Contender, size: usize) -> Result<f64, Failure> {
    let (pods, start) = (pod::fresh(size)?, Barrier::new(size));
    let ran: Vec<Ran> = thread::scope(|scope| {
        let start = &start;
        let together = || {
            start.wait();
        };
        let one = |pod| scope.spawn(move || contender.run(pod, together));
        let threads: Vec<_> = pods.iter().map(one).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect::<Result<_, Failure>>()
    })?;
    let (begun, ended) = (ran.iter().map(|ran| ran.begun).min(), ran.iter().map(|ran| ran.ended).max());
    let took = begun.zip(ended).map(|(begun, ended)| ended.duration_since(begun));
    Ok(took.unwrap_or_default().as_secs_f64() * 1e3)
}

fn table(size: usize, contenders: &[Contender], samples: &[Sample]) -> Table {
    let gybe = samples.get(1).map_or(f64::NAN, Sample::median);
    let row = |(contender, sample): (&Contender, &Sample)| {
        vec![contender.name.into(), sample.to_string(), format!("{:.2}", sample.median() / gybe)]
    };
    Table {
        title: format!("{size} namespaces at once, first start to last end"),
        head: cells(["Program", "ms (quartiles)", "x gybe-cni"]),
        rows: contenders.iter().zip(samples).map(row).collect(),
    }
}

/// The promise is about the larger crowd.
fn target(size: usize, samples: &[Sample]) -> Option<Target> {
    let [_, gybe, others @ ..] = samples else { return None };
    let fastest = others.iter().map(Sample::median).fold(f64::INFINITY, f64::min);
    (Some(&size) == CROWDS.last()).then(|| Target {
        what: format!("{size} namespaces at once, faster than the fastest of the others"),
        measured: fastest / gybe.median(),
        limit: Limit::AtLeast(3.0),
        unit: "x",
    })
}
