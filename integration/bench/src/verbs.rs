//! What else a runtime calls for, beside a program that does nothing: an ADD of a pod that is in no
//! mesh, one of a pod that only the node agent knows, DEL and STATUS; and what memory each takes.

use crate::agent::Agent;
use crate::memory;
use crate::pod::{self, Call};
use crate::programs::Contender;
use crate::report::{Limit, Report, Table, Target, cells};
use crate::sample::{Sample, childrens_time, in_turn};
use gybe_integration::failure::Failure;

/// A call, and what it may cost against a program that does nothing.
struct Case {
    contender: Contender,
    at_most: Option<f64>,
}

/// Measures each call that often.
///
/// # Errors
/// When one of them fails.
pub fn measure(times: usize) -> Result<Report, Failure> {
    let call = Call::prepared()?;
    let agent = Agent::start(&call)?;
    let cases = cases(&call, &agent)?;
    // A namespace of its own for each call, and one more in which its memory is looked at.
    let mut pods = pod::fresh((times + 1) * cases.len())?.into_iter();
    let mut next = || pods.next().ok_or_else(|| Failure::new("no namespace left"));
    let mut used = Vec::new();
    let samples = in_turn(times, &cases, |case| {
        let (pod, before) = (next()?, childrens_time()?);
        let passed = case.contender.run(&pod, || ())?.took();
        let spent = childrens_time()?.saturating_sub(before);
        used.push(pod);
        Ok::<_, Failure>([passed, spent].map(|time| time.as_secs_f64() * 1e6))
    })?;
    // But the first: a program that reads nothing has ended before anybody looks at it.
    let peaks = cases.iter().skip(1).map(|case| memory::peak(&case.contender, &next()?));
    let peaks = peaks.collect::<Result<Vec<f64>, Failure>>()?;
    Ok(report(&cases, &samples, &peaks, times))
}

fn cases(call: &Call, agent: &Agent) -> Result<Vec<Case>, Failure> {
    let calling = |name, call: Call, at_most| {
        Ok::<_, Failure>(Case { contender: Contender::gybe(name, &call)?, at_most })
    };
    Ok(vec![
        Case { contender: Contender::noop(call)?, at_most: None },
        calling("ADD of an unmeshed pod", call.clone().unannotated(), Some(1.15))?,
        calling("DEL", call.clone().of("DEL"), Some(1.15))?,
        // Behind it the agent still tells its journal, and whoever comes next has less of the machine.
        calling("ADD of a meshed pod through the agent", call.clone().asking(agent.socket()), Some(1.9))?,
        calling("STATUS", call.clone().of("STATUS"), None)?,
    ])
}

fn report(cases: &[Case], samples: &[[Sample; 2]], peaks: &[f64], times: usize) -> Report {
    let noop = samples.first().map_or(f64::NAN, |[passed, _]| passed.median());
    let told = std::iter::once("".to_owned()).chain(peaks.iter().map(|kib| format!("{kib:.0}")));
    let row = |((case, [passed, spent]), peak): ((&Case, &[Sample; 2]), String)| {
        let of_noop = format!("{:.2}", passed.median() / noop);
        vec![case.contender.name.into(), passed.to_string(), of_noop, spent.to_string(), peak]
    };
    let table = Table {
        title: format!("One call of each kind, median of {times}"),
        head: cells(["Call", "µs (quartiles)", "x no-op", "µs of processor time", "most memory, KiB"]),
        rows: cases.iter().zip(samples).zip(told).map(row).collect(),
    };
    let time = |(case, [passed, _]): (&Case, &[Sample; 2])| {
        Some(Target {
            what: format!("{}, against a program that does nothing", case.contender.name),
            measured: passed.median() / noop,
            limit: Limit::AtMost(case.at_most?),
            unit: "x",
        })
    };
    let memory = Target {
        what: "most memory in use by any of these calls".into(),
        measured: peaks.iter().copied().fold(f64::NAN, f64::max) * 1024.0 / 1e6,
        limit: Limit::AtMost(3.0),
        unit: "MB",
    };
    let targets = cases.iter().zip(samples).filter_map(time).chain([memory]).collect();
    Report { tables: vec![table], targets }
}
