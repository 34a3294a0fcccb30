//! One ADD of the default policy into a fresh namespace, from the start of the process to its end,
//! beside a program that does nothing and those who write the same rules with the system's programs.

use crate::pod::{self, Call, Pod};
use crate::policies;
use crate::programs::Contender;
use crate::report::{Limit, Report, Table, Target, cells};
use crate::sample::{Sample, childrens_time, in_turn};
use gybe_integration::failure::Failure;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::compile::compile;
use gybe_netfilter::nft::Nft;

/// Measures each contender that often.
///
/// # Errors
/// When one of them fails, or the plugin wrote other rules.
pub fn measure(times: usize) -> Result<Report, Failure> {
    let contenders = contenders()?;
    // Alive until all is measured: the kernel's tidying up would be in somebody's time.
    let mut pods = pod::fresh(times * contenders.len() + 1)?.into_iter();
    let mut used = Vec::new();
    if let (Some(gybe), Some(pod)) = (contenders.get(1), pods.next()) {
        gybe.run(&pod, || ())?;
        is_the_default(&pod)?;
        used.push(pod);
    }
    let samples = in_turn(times, &contenders, |contender| {
        let pod = pods.next().ok_or_else(|| Failure::new("no namespace left"))?;
        let before = childrens_time()?;
        let passed = contender.run(&pod, || ())?.took();
        let spent = childrens_time()?.saturating_sub(before);
        used.push(pod);
        Ok::<_, Failure>([passed, spent].map(|time| time.as_secs_f64() * 1e6))
    })?;
    Ok(report(&contenders, &samples, times))
}

/// All of them: the no-op, the plugin, the others.
///
/// # Errors
/// When a program is missing.
pub fn contenders() -> Result<Vec<Contender>, Failure> {
    let call = Call::prepared()?;
    let mut all = vec![Contender::noop(&call)?, Contender::gybe("gybe-cni ADD", &call)?];
    all.extend(Contender::others()?);
    Ok(all)
}

/// Did the plugin write what the others are given?
fn is_the_default(pod: &Pod) -> Result<(), Failure> {
    let found = pod.namespace.run(|| Nft.inspect())??;
    let differences = Nft.desired(&compile(&policies::default()?)).unwrap().differences(&found);
    let told: Vec<String> = differences.iter().map(ToString::to_string).collect();
    if told.is_empty() { Ok(()) } else { Err(Failure::new(told.join("\n"))) }
}

fn report(contenders: &[Contender], samples: &[[Sample; 2]], times: usize) -> Report {
    let medians: Vec<f64> = samples.iter().map(|[passed, _]| passed.median()).collect();
    let &[noop, gybe, ..] = medians.as_slice() else {
        return Report { tables: Vec::new(), targets: Vec::new() };
    };
    let row = |(contender, [passed, spent]): (&Contender, &[Sample; 2])| {
        let times = |other| format!("{:.2}", passed.median() / other);
        let (passed, of_noop, of_gybe) = (passed.to_string(), times(noop), times(gybe));
        vec![contender.name.into(), passed, of_noop, of_gybe, spent.to_string()]
    };
    let table = Table {
        title: format!("ADD of the default policy into a fresh namespace, median of {times}"),
        head: cells(["Program", "µs (quartiles)", "x no-op", "x gybe-cni", "µs of processor time"]),
        rows: contenders.iter().zip(samples).map(row).collect(),
    };
    let own = Target {
        what: "ADD of the default policy, against a program that does nothing".into(),
        measured: gybe / noop,
        limit: Limit::AtMost(1.6),
        unit: "x",
    };
    let others = contenders.iter().zip(&medians).skip(2).map(|(contender, median)| Target {
        what: format!("ADD faster than {}", contender.name),
        measured: median / gybe,
        limit: Limit::AtLeast(3.0),
        unit: "x",
    });
    Report { tables: vec![table], targets: std::iter::once(own).chain(others).collect() }
}
