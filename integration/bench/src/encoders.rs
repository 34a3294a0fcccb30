//! Gybe's nftables encoder beside the reference encoders: from the rule set to the kernel's acknowledgement.
//!
//! `gybe-referee-times` (`integration/referees`) measures, because it links C libraries and has another licence.

use crate::measures::Sample;
use crate::programs::{built_program, command};
use crate::report::{Report, Table, cells};
use gybe_integration::failure::Failure;

/// The measurements of an encoder, or what it lacks for the policy.
#[derive(Debug, Clone, PartialEq)]
enum Measured {
    Microseconds(Vec<f64>),
    Lacking(String),
}

/// A policy, an encoder, and its measurements.
type Row = (String, String, Measured);

/// # Errors
/// When the program is not built, or fails.
pub fn measure(times: usize) -> Result<Report, Failure> {
    let program = built_program("gybe-referee-times")?;
    let output = command(&program).arg(times.to_string()).output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("{}: {}: {errors}", program.display(), output.status)));
    }
    let rows = parse(&String::from_utf8(output.stdout)?)?;
    Ok(Report { tables: vec![table(rows, times)], targets: Vec::new() })
}

/// Parses lines of a policy, an encoder, and microseconds or what the encoder lacks.
fn parse(output: &str) -> Result<Vec<Row>, Failure> {
    let mut rows: Vec<Row> = Vec::new();
    for line in output.lines() {
        let [policy, encoder, value] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(Failure::new(format!("gybe-referee-times printed {line:?}")));
        };
        let row = rows.iter_mut().find(|(p, e, _)| p == policy && e == encoder);
        match (row, value.parse::<f64>()) {
            (Some((_, _, Measured::Microseconds(all))), Ok(one)) => all.push(one),
            (None, one) => {
                let measured =
                    one.map_or(Measured::Lacking(value.into()), |one| Measured::Microseconds(vec![one]));
                rows.push((policy.into(), encoder.into(), measured));
            }
            _ => return Err(Failure::new(format!("gybe-referee-times printed {line:?} once more"))),
        }
    }
    Ok(rows)
}

fn table(rows: Vec<Row>, times: usize) -> Table {
    // The first encoder of a policy is Gybe's.
    let mut gybe = (String::new(), f64::NAN);
    let row = |(policy, encoder, measured): Row| match measured {
        Measured::Lacking(what) => vec![policy, encoder, what, String::new()],
        Measured::Microseconds(all) => {
            let sample = Sample::sorted(all);
            if gybe.0 != policy {
                gybe = (policy.clone(), sample.median());
            }
            vec![policy, encoder, sample.to_string(), format!("{:.2}", sample.median() / gybe.1)]
        }
    };
    Table {
        title: format!(
            "From the rule set to the kernel's acknowledgement, in one process, median of {times}"
        ),
        head: cells(["Policy", "Encoder", "µs (quartiles)", "x Gybe"]),
        rows: rows.into_iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_grouped_by_policy_and_encoder() {
        let output = [
            "a\tGybe\t20",
            "a\tnftnl\t50",
            "a\trustables\tno ranges",
            "a\tGybe\t10",
            "a\tGybe\t30",
            "b\tGybe\t5",
            "b\tnftnl\t10",
        ]
        .join("\n");
        let table = table(parse(&output).unwrap(), 3);
        let rows: Vec<_> = table.rows.iter().map(|row| row.join("|")).collect();
        assert_eq!(
            rows,
            [
                "a|Gybe|20.0 (10.0 - 20.0)|1.00",
                "a|nftnl|50.0 (50.0 - 50.0)|2.50",
                "a|rustables|no ranges|",
                "b|Gybe|5.00 (5.00 - 5.00)|1.00",
                "b|nftnl|10.0 (10.0 - 10.0)|2.00",
            ]
        );
        assert!(parse("a\tGybe\tno ranges\na\tGybe\t5\n").is_err());
        assert!(parse("a line\n").is_err());
    }
}
