//! The result of the scenario as text and as JSON, and which rows are wrong.

use super::add::Children;
use super::connections::{Control, SideEffect, follows};
use super::scenario::{Row, ScenarioResult};
use crate::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::model::policy::istio::PASSTHROUGH_V6;
use gybe_netfilter::model::ruleset::Family;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The judged result.
#[derive(Debug)]
pub struct Report {
    pub text: String,
    pub json: Value,
    /// What differs from the expectation.
    pub wrong: Vec<String>,
}

impl ScenarioResult {
    pub fn report(&self) -> Report {
        let faults = |row: &Row| {
            let name = format!("{} {}", family(row), row.connection.name);
            row.faults().into_iter().map(move |fault| format!("{name}: {fault}"))
        };
        let mut wrong: Vec<String> = self.rows.iter().flat_map(faults).collect();
        wrong.extend(self.runs_programs());
        Report { text: self.text(&wrong), json: self.json(&wrong), wrong }
    }

    fn runs_programs(&self) -> Option<String> {
        match self.add.children {
            Children::Counted { programs: 0, processes: 0 } | Children::Unknown => None,
            Children::Counted { programs, processes } => {
                Some(format!("the ADD ran {programs} programs and forked {processes} processes"))
            }
        }
    }

    fn text(&self, wrong: &[String]) -> String {
        let mut text = String::from(
            "A pod and the world are network namespaces; gybe-cni received the ADD that containerd sends.\n",
        );
        for family in [Family::V4, Family::V6] {
            let titles = [name_of(family), "TO", "WITHOUT GYBE", "WITH GYBE", "EXPECTED", "DECIDED BY"];
            let _ = writeln!(text, "\n    {}", line(titles.map(str::to_owned)));
            for row in self.rows.iter().filter(|row| row.connection.family() == family) {
                let mark = if row.faults().is_empty() { "ok" } else { "!!" };
                let _ = writeln!(text, " {mark} {}", line(row.cells()));
            }
        }
        let _ = writeln!(text, "\nADD: {}", self.add_summary());
        if let Some(rule) = self.without {
            let _ = writeln!(text, "After the ADD, rule {rule} was removed.");
        }
        for fault in wrong {
            let _ = writeln!(text, "wrong: {fault}");
        }
        let fine = self.rows.iter().filter(|row| row.faults().is_empty()).count();
        let _ = writeln!(text, "{fine} of {} connections reached the expected destination.", self.rows.len());
        text
    }

    fn add_summary(&self) -> String {
        let ms = self.add.took.as_secs_f64() * 1000.0;
        match self.add.children {
            Children::Counted { programs, processes } => format!(
                "{ms:.1} ms, traced with ptrace from its first instruction: {programs} programs run, {processes} processes forked."
            ),
            Children::Unknown => {
                format!("{ms:.1} ms. The programs it ran are not known: ptrace is not allowed here.")
            }
        }
    }

    fn json(&self, wrong: &[String]) -> Value {
        let (watched, programs, processes) = match self.add.children {
            Children::Counted { programs, processes } => (true, Some(programs), Some(processes)),
            Children::Unknown => (false, None, None),
        };
        json!({
            "as_expected": wrong.is_empty(),
            "wrong": wrong,
            "without": self.without.map(|rule| rule.0),
            "add": {
                "milliseconds": self.add.took.as_secs_f64() * 1000.0,
                "watched": watched, "programs": programs, "processes": processes,
            },
            "connections": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }
}

impl Row {
    /// Returns what differs from the expectation.
    fn faults(&self) -> Vec<String> {
        let (expected, target) = (self.connection.after, self.connection.client.to);
        let mut faults = Vec::new();
        if !matches!((self.connection.before, &self.before),
            (Some(expected), ConnectionOutcome::Replied(found)) if found.by == expected)
            && !matches!((self.connection.before, &self.before), (None, ConnectionOutcome::Failed(_)))
        {
            faults.push(format!("{} already without Gybe", short(&self.before)));
        }
        match &self.after {
            ConnectionOutcome::Replied(found) if found.by == expected => {
                let is_redirected =
                    expected.starts_with("envoy:") && self.connection.before != Some(expected);
                if is_redirected && found.original != Some(target) {
                    faults.push(format!("{expected} cannot read the original destination {target}"));
                }
            }
            found => faults.push(format!("{} instead of {expected}", short(found))),
        }
        if !self.is_as_predicted() {
            faults.push(format!("the rules predict {:?}", self.trace.first));
        }
        if let Some(rule) = self.trace.rule().filter(|_| !self.counted) {
            faults.push(format!("rule {rule} did not count it"));
        }
        faults
    }

    fn is_as_predicted(&self) -> bool {
        let client = &self.connection.client;
        let side_effect = match client.source.address {
            Some(source) if source == PASSTHROUGH_V6 => SideEffect::AddsSource,
            _ => SideEffect::None,
        };
        follows(self.trace.first, Control { to: client.to, outcome: &self.before }, side_effect, &self.after)
    }

    fn decided_by(&self) -> &str {
        self.trace.rule().unwrap_or("no rule")
    }

    fn cells(&self) -> [String; 6] {
        [
            self.connection.name.to_owned(),
            self.connection.client.to.to_string(),
            short(&self.before),
            short(&self.after),
            self.connection.after.to_owned(),
            self.decided_by().to_owned(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "name": self.connection.name,
            "family": family(self),
            "to": self.connection.client.to.to_string(),
            "without": self.before.to_string(),
            "with": self.after.to_string(),
            "expected": self.connection.after,
            "rule": self.trace.rule(),
            "ok": self.faults().is_empty(),
        })
    }
}

fn family(row: &Row) -> &'static str {
    name_of(row.connection.family())
}

fn name_of(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// The outcome in the width of a column.
fn short(outcome: &ConnectionOutcome) -> String {
    match outcome {
        ConnectionOutcome::Replied(reply) => reply.by.clone(),
        ConnectionOutcome::Timeout => "no answer".to_owned(),
        ConnectionOutcome::Refused => "refused".to_owned(),
        ConnectionOutcome::Failed(errno) => format!("{errno:?}"),
    }
}

fn line([name, to, before, after, expected, rule]: [String; 6]) -> String {
    format!("{name:<28} {to:<22} {before:<14} {after:<12} {expected:<12} {rule}").trim_end().to_owned()
}
