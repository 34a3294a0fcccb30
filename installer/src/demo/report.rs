//! What the play showed, told to a person or to a program. Decides which rows are wrong, and no more.

use super::predicted::{SideEffect, follows};
use super::scenario::{Row, ScenarioResult};
use super::traced::Observed;
use crate::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::compile::PASSTHROUGH_V6;
use gybe_netfilter::ruleset::Family;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The play, judged.
#[derive(Debug)]
pub struct Report {
    /// For a person.
    pub text: String,
    /// For a program.
    pub json: Value,
    /// What went otherwise than it must; nothing when all is well.
    pub wrong: Vec<String>,
}

impl ScenarioResult {
    /// Judges it and puts it into words.
    pub fn report(&self) -> Report {
        let faults = |row: &Row| {
            let name = format!("{} {}", family(row), row.connection.name);
            row.faults().into_iter().map(move |fault| format!("{name}: {fault}"))
        };
        let mut wrong: Vec<String> = self.rows.iter().flat_map(faults).collect();
        wrong.extend(self.ran_something());
        Report { text: self.text(&wrong), json: self.json(&wrong), wrong }
    }

    fn ran_something(&self) -> Option<String> {
        match self.add.seen {
            Observed::All { programs: 0, processes: 0 } | Observed::Nothing => None,
            Observed::All { programs, processes } => {
                Some(format!("the ADD ran {programs} programs and forked {processes} processes"))
            }
        }
    }

    fn text(&self, wrong: &[String]) -> String {
        let mut text = String::from(
            "A pod and the world, made of network namespaces; gybe-cni was given the ADD that containerd sends.\n",
        );
        for wanted in [Family::V4, Family::V6] {
            let titles = [name_of(wanted), "TO", "WITHOUT GYBE", "WITH GYBE", "EXPECTED", "DECIDED BY"];
            let _ = writeln!(text, "\n    {}", line(titles.map(str::to_owned)));
            for row in self.rows.iter().filter(|row| row.connection.family() == wanted) {
                let mark = if row.faults().is_empty() { "ok" } else { "!!" };
                let _ = writeln!(text, " {mark} {}", line(row.cells()));
            }
        }
        let _ = writeln!(text, "\nADD: {}", self.told_of_add());
        if let Some(rule) = self.without {
            let _ = writeln!(text, "After the ADD rule {rule} was taken out.");
        }
        for fault in wrong {
            let _ = writeln!(text, "wrong: {fault}");
        }
        let fine = self.rows.iter().filter(|row| row.faults().is_empty()).count();
        let _ = writeln!(text, "{fine} of {} connections went where they must.", self.rows.len());
        text
    }

    fn told_of_add(&self) -> String {
        let ms = self.add.took.as_secs_f64() * 1000.0;
        match self.add.seen {
            Observed::All { programs, processes } => format!(
                "{ms:.1} ms, watched by ptrace from its first instruction: {programs} programs run, {processes} processes forked."
            ),
            Observed::Nothing => format!("{ms:.1} ms. What it ran is not known: ptrace is not allowed here."),
        }
    }

    fn json(&self, wrong: &[String]) -> Value {
        let (watched, programs, processes) = match self.add.seen {
            Observed::All { programs, processes } => (true, Some(programs), Some(processes)),
            Observed::Nothing => (false, None, None),
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
    /// What is wrong with it; nothing when all is as it should be.
    fn faults(&self) -> Vec<String> {
        let (wanted, target) = (self.connection.after, self.connection.call.to);
        let mut faults = Vec::new();
        if !matches!((self.connection.before, &self.before),
            (Some(wanted), ConnectionOutcome::Answered(found)) if found.by == wanted)
            && !matches!((self.connection.before, &self.before), (None, ConnectionOutcome::Failed(_)))
        {
            faults.push(format!("{} without Gybe already", short(&self.before)));
        }
        match &self.after {
            ConnectionOutcome::Answered(found) if found.by == wanted => {
                let turned = wanted.starts_with("envoy:") && self.connection.before != Some(wanted);
                if turned && found.original != Some(target) {
                    faults.push(format!("{wanted} cannot learn that it was for {target}"));
                }
            }
            found => faults.push(format!("{} instead of {wanted}", short(found))),
        }
        if !self.foretold() {
            faults.push(format!("the rules foretell {:?}", self.trace.outcome));
        }
        if let Some(rule) = self.trace.decided_by.filter(|_| !self.counted) {
            faults.push(format!("rule {rule} did not count it"));
        }
        faults
    }

    /// Does what happened follow from what the rules say?
    fn foretold(&self) -> bool {
        let call = &self.connection.call;
        let beside = match call.disguise.source {
            Some(source) if source == PASSTHROUGH_V6 => SideEffect::ItsSource,
            _ => SideEffect::Nothing,
        };
        follows(self.trace.outcome, (call.to, &self.before), beside, &self.after)
    }

    fn decided_by(&self) -> &'static str {
        self.trace.decided_by.map_or("no rule", |rule| rule.0)
    }

    fn cells(&self) -> [String; 6] {
        [
            self.connection.name.to_owned(),
            self.connection.call.to.to_string(),
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
            "to": self.connection.call.to.to_string(),
            "without": self.before.to_string(),
            "with": self.after.to_string(),
            "expected": self.connection.after,
            "rule": self.trace.decided_by.map(|rule| rule.0),
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

/// A fate in the width of a column.
fn short(fate: &ConnectionOutcome) -> String {
    match fate {
        ConnectionOutcome::Answered(answer) => answer.by.clone(),
        ConnectionOutcome::Timeout => "no answer".to_owned(),
        ConnectionOutcome::Refused => "refused".to_owned(),
        ConnectionOutcome::Failed(errno) => format!("{errno:?}"),
    }
}

fn line([name, to, before, after, wanted, rule]: [String; 6]) -> String {
    format!("{name:<28} {to:<22} {before:<14} {after:<12} {wanted:<12} {rule}").trim_end().to_owned()
}
