//! Processor time of the client's thread for a connection over a veth pair between two namespaces, established and
//! reset.
//!
//! The kernel processes a packet in both namespaces mostly on the thread that sent it, so the client's time includes
//! the pod's rules in either direction.

mod pod_link;

use crate::measures::{Sample, in_turn};
use crate::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;
use pod_link::{Direction, PodLink, RuleForm};

/// Numbers of excluded ports and networks.
const COUNTS: [usize; 4] = [0, 1, 100, 1000];

/// # Errors
/// When the namespaces cannot be set up, or a connection does not reach the expected listener.
pub fn measure(rounds: usize) -> Result<Report, Failure> {
    let mut links = vec![PodLink::build(RuleForm::None, 0)?];
    for form in [RuleForm::Sets, RuleForm::Legacy, RuleForm::RulePerValue] {
        for count in COUNTS {
            links.push(PodLink::build(form, count)?);
        }
    }
    let samples = in_turn(rounds, &links, |link| {
        Ok::<_, Failure>([link.cost(Direction::Inbound)?, link.cost(Direction::Outbound)?])
    })?;
    let rows: Vec<Row<'_>> =
        links.iter().zip(&samples).map(|(link, samples)| Row { link, samples }).collect();
    Ok(report(&rows))
}

struct Row<'a> {
    link: &'a PodLink,
    /// Inbound, outbound.
    samples: &'a [Sample; 2],
}

fn report(rows: &[Row<'_>]) -> Report {
    let samples_of =
        |count| rows.iter().find(|row| row.link.is(RuleForm::Sets, count)).map(|row| row.samples);
    let medians = |samples: &[Sample; 2]| samples.each_ref().map(Sample::median);
    let default = samples_of(0).map_or([f64::NAN; 2], medians);
    let longest = samples_of(1000).map_or([f64::NAN; 2], medians);
    let row = |row: &Row<'_>| {
        let [inbound, outbound] = row.samples;
        let ratio = |sample: &Sample, default| format!("{:.2}", sample.median() / default);
        let (inbound_ratio, outbound_ratio) = (ratio(inbound, default[0]), ratio(outbound, default[1]));
        let excluded = row.link.excluded().to_string();
        vec![
            row.link.name().into(),
            excluded,
            inbound.to_string(),
            inbound_ratio,
            outbound.to_string(),
            outbound_ratio,
        ]
    };
    let table = Table {
        title: "Client processor time per connection".into(),
        head: cells([
            "Rules",
            "excluded",
            "inbound µs (quartiles)",
            "x default",
            "outbound µs (quartiles)",
            "x default",
        ]),
        rows: rows.iter().map(row).collect(),
    };
    let target = |direction: &str, longest: f64, default: f64| Target {
        what: format!(
            "{direction} connection with 1000 excluded ports and networks, against the default policy"
        ),
        measured: longest / default,
        limit: Limit::AtMost(1.1),
        unit: "x",
    };
    let targets = vec![target("inbound", longest[0], default[0]), target("outbound", longest[1], default[1])];
    Report { tables: vec![table], targets }
}
