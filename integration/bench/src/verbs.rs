//! The other calls beside a program that does nothing: ADD of an unmeshed pod, ADD with facts from the node agent, DEL
//! and STATUS; and the peak memory of each.

use crate::measures::{Sample, children_processor_time, in_turn, peak_memory};
use crate::pod::{self, CniCall, FACTS};
use crate::programs::Contender;
use crate::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;
use std::path::Path;

/// The build of the called program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Build {
    Current,
    Before,
}

/// A call, and its limit as a multiple of the no-op with glibc.
#[derive(Clone)]
struct Case {
    contender: Contender,
    at_most: Option<f64>,
    build: Build,
}

/// # Errors
/// When a call fails.
pub fn measure(times: usize, before: Option<&Path>) -> Result<Report, Failure> {
    let call = CniCall::new()?;
    let _agent = pod::start_agent(&call)?;
    let cases = cases(&call, before)?;
    // A namespace for each call, and another for measuring its memory.
    let mut pods = pod::new_pods((times + 1) * cases.len())?.into_iter();
    let mut next = || pods.next().ok_or_else(|| Failure::new("no namespace left"));
    let mut used = Vec::new();
    let samples = in_turn(times, &cases, |case| {
        let (pod, before) = (next()?, children_processor_time()?);
        let elapsed = case.contender.run(&pod, || ())?.elapsed();
        let used_time = children_processor_time()?.saturating_sub(before);
        used.push(pod);
        Ok::<_, Failure>([elapsed, used_time].map(|time| time.as_secs_f64() * 1e6))
    })?;
    // Not the no-ops: they do not read their stdin and end before they are traced.
    let peaks = cases.iter().skip(NOOPS).map(|case| peak_memory(&case.contender, &next()?));
    let peaks = peaks.collect::<Result<Vec<f64>, Failure>>()?;
    Ok(report(&cases, &samples, &peaks, times))
}

/// The no-op that targets refer to, and the one without a C library.
const NOOPS: usize = 2;

fn cases(call: &CniCall, before: Option<&Path>) -> Result<Vec<Case>, Failure> {
    // The agent writes its log during the next call, which is slowed down by that: STATUS has no limit.
    let calls = [
        ("ADD of an unmeshed pod", "the same, before", call.clone().without_annotations(), Some(0.7)),
        ("DEL", "DEL, before", call.clone().with_command("DEL"), Some(0.58)),
        (
            "ADD of a meshed pod through the agent",
            "the same, before",
            call.clone().with_agent(Path::new(FACTS)),
            Some(1.55),
        ),
        ("STATUS", "STATUS, before", call.clone().with_command("STATUS"), None),
    ];
    let noops = [Contender::noop(call)?, Contender::floor(call)?];
    let mut cases = noops.map(|contender| Case { contender, at_most: None, build: Build::Current }).to_vec();
    for (name, name_before, call, at_most) in calls {
        cases.push(Case { contender: Contender::gybe(name, &call)?, at_most, build: Build::Current });
        let before = before.map(|before| Contender::gybe_before(name_before, before, &call));
        cases.extend(before.map(|contender| Case { contender, at_most: None, build: Build::Before }));
    }
    Ok(cases)
}

fn report(cases: &[Case], samples: &[[Sample; 2]], peaks: &[f64], times: usize) -> Report {
    let noop = samples.first().map_or(f64::NAN, |[elapsed, _]| elapsed.median());
    let peak_cells =
        std::iter::repeat_n(String::new(), NOOPS).chain(peaks.iter().map(|kib| format!("{kib:.0}")));
    let row = |((case, [elapsed, processor_time]), peak): ((&Case, &[Sample; 2]), String)| {
        let to_noop = format!("{:.2}", elapsed.median() / noop);
        vec![case.contender.name.into(), elapsed.to_string(), to_noop, processor_time.to_string(), peak]
    };
    let table = Table {
        title: format!("One call of each kind, median of {times}"),
        head: cells(["Call", "µs (quartiles)", "x no-op", "µs of processor time", "peak memory, KiB"]),
        rows: cases.iter().zip(samples).zip(peak_cells).map(row).collect(),
    };
    let time = |(case, [elapsed, _]): (&Case, &[Sample; 2])| {
        Some(Target {
            what: format!("{}, against a program that does nothing", case.contender.name),
            measured: elapsed.median() / noop,
            limit: Limit::AtMost(case.at_most?),
            unit: "x",
        })
    };
    let own = cases.iter().skip(NOOPS).zip(peaks).filter(|(case, _)| case.build == Build::Current);
    let memory = Target {
        what: "peak memory of any of these calls".into(),
        measured: own.map(|(_, peak)| *peak).fold(f64::NAN, f64::max) * 1024.0 / 1e6,
        limit: Limit::AtMost(1.3),
        unit: "MB",
    };
    let targets = cases.iter().zip(samples).filter_map(time).chain([memory]).collect();
    Report { tables: vec![table], targets }
}
