//! The results of a scenario: what was expected and what was observed.

use std::fmt::Debug;

use gybe_bench::report::{Report, Table, cells};
use gybe_integration::failure::Failure;

use super::application::{Answer, MESHED, Name, request_by_mutual_tls};
use super::commands::Verdicts;
use super::workstation::Workstation;
use crate::scenario::none;

/// The results of a scenario so far.
#[derive(Debug, Default)]
pub(super) struct Checks {
    rows: Vec<Vec<String>>,
    wrong: usize,
}

impl Checks {
    /// Records whether an observed value is the expected one.
    pub(super) fn equal<T: Debug + PartialEq>(&mut self, what: &str, observed: &T, expected: &T) {
        self.record(what, observed == expected, &format!("{observed:?}"), &format!("{expected:?}"));
    }

    /// Records whether an observed value is as `expected` describes it.
    pub(super) fn holds(&mut self, what: &str, is_met: bool, observed: &impl Debug, expected: &str) {
        self.record(what, is_met, &format!("{observed:?}"), expected);
    }

    /// Records whether a client's request to a target of this server passes by mutual TLS.
    pub(super) fn passes(
        &mut self,
        what: &str,
        workstation: &Workstation,
        [client, server]: [&str; 2],
        target: &str,
    ) -> Result<Answer, Failure> {
        let answer = request_by_mutual_tls(workstation, client, server, target)?;
        self.holds(what, answer.is_by(server, (MESHED, client)), &answer, "by mutual TLS");
        Ok(answer)
    }

    /// Records whether `gybe verify --all` finds these pods of the mesh redirected.
    pub(super) fn redirected(&mut self, what: &str, verdicts: &Verdicts, pods: &[&str]) {
        for name in pods {
            self.verdict(what, verdicts, (MESHED, name), "redirected");
        }
    }

    /// Records whether this is the verdict of `gybe verify --all` about a pod.
    pub(super) fn verdict(
        &mut self,
        what: &str,
        verdicts: &Verdicts,
        (namespace, name): Name<'_>,
        expected: &str,
    ) {
        let pod = format!("{namespace}/{name}");
        let verdict = verdicts.iter().find(|(name, _)| *name == pod).map(|(_, verdict)| verdict.as_str());
        let is_expected = verdict.is_some_and(|verdict| verdict.split(':').next() == Some(expected));
        let title = format!("{what}: `gybe verify --all` about {pod}");
        self.holds(&title, is_expected, &verdict, expected);
    }

    /// Records what these versions cannot show, and why.
    pub(super) fn not_run(&mut self, what: &str, reason: &str) {
        self.rows.push(vec![what.to_owned(), String::new(), format!("NOT RUN: {reason}")]);
    }

    fn record(&mut self, what: &str, is_met: bool, observed: &str, expected: &str) {
        let verdict = if is_met { "as expected".to_owned() } else { format!("NOT AS EXPECTED: {observed}") };
        self.wrong += usize::from(!is_met);
        self.rows.push(vec![what.to_owned(), expected.to_owned(), verdict]);
    }

    /// Returns the table of all results, and the target that none is wrong.
    pub(super) fn report(self, title: &str) -> Report {
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
pub(super) fn failed(title: &str, error: &Failure) -> Report {
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
