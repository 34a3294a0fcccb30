//! The results of a scenario: what was expected and what was observed.

use std::fmt::Debug;

use gybe_bench::report::{Report, Table, cells};
use gybe_integration::failure::Failure;

use crate::scenario::none;

/// The results of a scenario so far.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    rows: Vec<Vec<String>>,
    wrong: usize,
    /// Before the title of each row.
    part: String,
}

impl Checks {
    /// Records whether an observed value is the expected one.
    pub(crate) fn equal<T: Debug + PartialEq>(&mut self, what: &str, observed: &T, expected: &T) {
        self.record(what, observed == expected, &format!("{observed:?}"), &format!("{expected:?}"));
    }

    /// Records whether an observed value is as `expected` describes it.
    pub(crate) fn holds(&mut self, what: &str, is_met: bool, observed: &impl Debug, expected: &str) {
        self.record(what, is_met, &format!("{observed:?}"), expected);
    }

    /// Records what these versions cannot show, and why.
    pub(crate) fn not_run(&mut self, what: &str, reason: &str) {
        self.rows.push(vec![self.part.clone() + what, String::new(), format!("NOT RUN: {reason}")]);
    }

    /// Names what the next results are about.
    pub(crate) fn part(&mut self, name: &str) {
        self.part = format!("{name}: ");
    }

    fn record(&mut self, what: &str, is_met: bool, observed: &str, expected: &str) {
        let verdict = if is_met { "as expected".to_owned() } else { format!("NOT AS EXPECTED: {observed}") };
        self.wrong += usize::from(!is_met);
        self.rows.push(vec![self.part.clone() + what, expected.to_owned(), verdict]);
    }

    /// Returns the table of all results, and the target that none is wrong.
    pub(crate) fn report(self, title: &str) -> Report {
        Report {
            targets: vec![none(&format!("{title}: not as expected"), self.wrong)],
            tables: vec![Table {
                title: title.to_owned(),
                head: cells(["What", "Expected", "Observed"]),
                rows: self.rows,
            }],
        }
    }
}

/// Returns the report of a scenario that an error ended.
pub(crate) fn failed(title: &str, error: &Failure) -> Report {
    let mut checks = Checks::default();
    let error = format!("{error:?}");
    checks.holds("the scenario", false, &error.lines().next(), "ends without an error");
    checks.report(title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_value_misses_the_target() {
        let mut checks = Checks::default();
        checks.equal("right", &1, &1);
        assert!(checks.report("title").targets.iter().all(gybe_bench::report::Target::is_met));
        let mut checks = Checks::default();
        checks.equal("wrong", &1, &2);
        checks.holds("right", true, &1, "one");
        let report = checks.report("title");
        assert!(!report.targets.iter().any(gybe_bench::report::Target::is_met));
        assert_eq!(report.tables.first().map(|table| table.rows.len()), Some(2));
    }
}
