//! One ADD of the default policy into a new namespace, from the start of the process to its end, beside a program that
//! does nothing and programs of the system that write the same rules.

use crate::measures::{Sample, children_processor_time, in_turn};
use crate::pod::{self, CniCall, Pod};
use crate::policies;
use crate::programs::Contender;
use crate::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::compile::compile;
use gybe_netfilter::nft::Nft;
use std::path::Path;

/// # Errors
/// When a program fails, or the plugin writes other rules.
pub fn measure(times: usize, before: Option<&Path>) -> Result<Report, Failure> {
    let contenders = contenders(before)?;
    // Kept until the end: the kernel's removal of a namespace would be in a later measurement.
    let mut pods = pod::new_pods(times * contenders.len() + 1)?.into_iter();
    let mut used = Vec::new();
    if let (Some(gybe), Some(pod)) = (contenders.get(1), pods.next()) {
        gybe.run(&pod, || ())?;
        assert_default_rules(&pod)?;
        used.push(pod);
    }
    let samples = in_turn(times, &contenders, |contender| {
        let pod = pods.next().ok_or_else(|| Failure::new("no namespace left"))?;
        let before = children_processor_time()?;
        let elapsed = contender.run(&pod, || ())?.elapsed();
        let processor_time = children_processor_time()?.saturating_sub(before);
        used.push(pod);
        Ok::<_, Failure>([elapsed, processor_time].map(|time| time.as_secs_f64() * 1e6))
    })?;
    Ok(report(&contenders, &samples, times))
}

/// Returns the no-op, the plugin, then the others; `before` has the plugin of another build.
///
/// # Errors
/// When a program is missing.
pub fn contenders(before: Option<&Path>) -> Result<Vec<Contender>, Failure> {
    let call = CniCall::new()?;
    let mut all = vec![Contender::noop(&call)?, Contender::gybe("gybe-cni ADD", &call)?];
    all.push(Contender::floor(&call)?);
    all.extend(before.map(|before| Contender::gybe_before("gybe-cni ADD, before", before, &call)));
    all.extend(Contender::system_programs()?);
    Ok(all)
}

/// Asserts that the plugin wrote the rules that the other programs receive.
pub(crate) fn assert_default_rules(pod: &Pod) -> Result<(), Failure> {
    let found = pod.namespace.run(|| Nft.inspect())??;
    let differences = Nft.desired(&compile(&policies::default()?))?.differences(&found);
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    if lines.is_empty() { Ok(()) } else { Err(Failure::new(lines.join("\n"))) }
}

fn report(contenders: &[Contender], samples: &[[Sample; 2]], times: usize) -> Report {
    let medians: Vec<f64> = samples.iter().map(|[elapsed, _]| elapsed.median()).collect();
    let &[noop, gybe, ..] = medians.as_slice() else {
        return Report { tables: Vec::new(), targets: Vec::new() };
    };
    let row = |(contender, [elapsed, processor_time]): (&Contender, &[Sample; 2])| {
        let ratio = |other| format!("{:.2}", elapsed.median() / other);
        let (to_noop, to_gybe) = (ratio(noop), ratio(gybe));
        vec![contender.name.into(), elapsed.to_string(), to_noop, to_gybe, processor_time.to_string()]
    };
    let table = Table {
        title: format!("ADD of the default policy into a new namespace, median of {times}"),
        head: cells(["Program", "µs (quartiles)", "x no-op", "x gybe-cni", "µs of processor time"]),
        rows: contenders.iter().zip(samples).map(row).collect(),
    };
    let own = Target {
        what: "ADD of the default policy, against a program that does nothing".into(),
        measured: gybe / noop,
        limit: Limit::AtMost(1.4),
        unit: "x",
    };
    let others = contenders.iter().zip(&medians).filter(|(contender, _)| contender.is_of_the_system());
    let others = others.map(|(contender, median)| Target {
        what: format!("ADD faster than {}", contender.name),
        measured: median / gybe,
        limit: Limit::AtLeast(3.0),
        unit: "x",
    });
    Report { tables: vec![table], targets: std::iter::once(own).chain(others).collect() }
}
