//! What a connection costs who makes it: processor time of the client's thread for each connection
//! over a veth pair between two namespaces, set up and reset.
//!
//! What the kernel does with a packet on its way through both namespaces it mostly does on the
//! thread that sent it, so the rules of the pod are in the client's time whoever is the client.

mod street;

use crate::report::{Limit, Report, Table, Target, cells};
use crate::sample::{Sample, in_turn};
use gybe_integration::failure::Failure;
use street::{Street, Way, Written};

/// How many ports and networks are excluded.
const COUNTS: [usize; 4] = [0, 1, 100, 1000];

/// Measures each direction under each set of rules that often.
///
/// # Errors
/// When a street cannot be built, or a connection does not end where it should.
pub fn measure(rounds: usize) -> Result<Report, Failure> {
    let mut streets = vec![Street::build(Written::Nothing, 0)?];
    for written in [Written::Sets, Written::Legacy, Written::RulePerValue] {
        for count in COUNTS {
            streets.push(Street::build(written, count)?);
        }
    }
    let samples = in_turn(rounds, &streets, |street| {
        Ok::<_, Failure>([street.cost(Way::Inbound)?, street.cost(Way::Outbound)?])
    })?;
    let rows: Vec<Row<'_>> =
        streets.iter().zip(&samples).map(|(street, ways)| Row { street, ways }).collect();
    Ok(report(&rows))
}

struct Row<'a> {
    street: &'a Street,
    /// Inbound, outbound.
    ways: &'a [Sample; 2],
}

fn report(rows: &[Row<'_>]) -> Report {
    let of = |count| rows.iter().find(|row| row.street.is(Written::Sets, count)).map(|row| row.ways);
    let medians = |ways: &[Sample; 2]| ways.each_ref().map(Sample::median);
    let default = of(0).map_or([f64::NAN; 2], medians);
    let longest = of(1000).map_or([f64::NAN; 2], medians);
    let row = |row: &Row<'_>| {
        let [inbound, outbound] = row.ways;
        let against = |sample: &Sample, default| format!("{:.2}", sample.median() / default);
        let (ins, outs) = (against(inbound, default[0]), against(outbound, default[1]));
        let excluded = row.street.excluded().to_string();
        vec![row.street.name().into(), excluded, inbound.to_string(), ins, outbound.to_string(), outs]
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
    let target = |(what, (longest, default)): (&str, (f64, f64))| Target {
        what: format!("{what} connection with 1000 excluded ports and networks, against the default policy"),
        measured: longest / default,
        limit: Limit::AtMost(1.1),
        unit: "x",
    };
    let ways = longest.into_iter().zip(default);
    let targets = ["inbound", "outbound"].into_iter().zip(ways).map(target).collect();
    Report { tables: vec![table], targets }
}
