//! Formats the plan of a pass (dry run), or its changes and the remaining problems, as text and as JSON.

use super::output::{CommandOutput, Exit};
use super::style::{bad, doubtful};
use crate::error::chain;
use crate::host::apply::FailedChange;
use crate::host::change::Change;
use crate::host::pass::Pass;
use crate::host::plan::Plan;
use crate::host::problem::Problem;
use crate::pod::manifest::printable;
use gybe_netfilter::model::Hint;
use serde_json::{Value, json};

pub(super) const NOTHING: &str = "nothing to do\n";

/// Returns the output of a dry run; exit code 1 if a problem blocks the plan.
pub(super) fn dry_run(plan: &Plan) -> CommandOutput {
    let text = lines(plan.changes.iter().map(|change| format!("would {change}"))) + &problems(&plan.problems);
    let text = if text.is_empty() { NOTHING.to_owned() } else { text };
    let json = json!({
        "dry_run": true,
        "redirected": plan.judgement.is_redirected(),
        "changes": sentences(&plan.changes),
        "problems": problems_json(&plan.problems),
    });
    let exit = if plan.problems.iter().any(Problem::blocks) { Exit::No } else { Exit::Yes };
    CommandOutput { text, json, exit, notes: Vec::new() }
}

/// Returns the text of a pass: its changes, those that failed, and the remaining problems.
pub(super) fn text(pass: &Pass) -> String {
    let (changes, failed) = (&pass.plan.changes, &pass.applied.failed);
    let attempted = pass.applied.done + failed.len();
    let has_failed = |change: &Change| failed.iter().any(|failed| failed.change == *change);
    let done = changes.iter().take(attempted).filter(|change| !has_failed(change));
    let skipped = changes.iter().skip(attempted).map(Change::to_string);
    let done = if changes.is_empty() { NOTHING.to_owned() } else { lines(done.map(past_tense)) };
    // A hint that several failures share is printed once, after the last of them.
    let has_hint_later = |at: usize, hint| failed.iter().skip(at + 1).any(|later| later.why.hint() == hint);
    let failed = failed.iter().enumerate().map(|(at, change)| match has_hint_later(at, change.why.hint()) {
        true => chain(&change.why),
        false => change.with_hint(),
    });
    done + &marked(&bad("failed:"), failed)
        + &marked(&doubtful("not done:"), skipped)
        + &problems(&pass.left.problems)
}

pub(super) fn json(pass: &Pass) -> Value {
    let failed: Vec<String> = pass.applied.failed.iter().map(FailedChange::with_hint).collect();
    json!({
        "changes": sentences(&pass.plan.changes),
        "done": pass.applied.done,
        "failed": failed,
        "left": sentences(&pass.left.changes),
        "problems": problems_json(&pass.left.problems),
    })
}

/// Returns `placed program gybe` for `place program gybe`.
fn past_tense(change: &Change) -> String {
    let change = change.to_string();
    let (verb, object) = change.split_once(' ').unwrap_or((&change, ""));
    let verb = match verb {
        "write" => "wrote".to_owned(),
        verb if verb.ends_with('e') => format!("{verb}d"),
        verb => format!("{verb}ed"),
    };
    format!("{verb} {object}")
}

fn sentences(changes: &[Change]) -> Vec<String> {
    changes.iter().map(ToString::to_string).collect()
}

fn lines(texts: impl Iterator<Item = String>) -> String {
    texts.map(|text| printable(&text) + "\n").collect()
}

/// Lines that begin with the mark.
fn marked(mark: &str, texts: impl Iterator<Item = String>) -> String {
    texts.map(|text| format!("{mark} {}\n", printable(&text))).collect()
}

fn problems(problems: &[Problem]) -> String {
    lines(problems.iter().map(|problem| match problem.hint() {
        Some(hint) => format!("{}; {hint}", chain(problem)),
        None => chain(problem),
    }))
}

fn problems_json(problems: &[Problem]) -> Vec<Value> {
    problems.iter().map(problem_json).collect()
}

fn problem_json(problem: &Problem) -> Value {
    json!({ "what": chain(problem), "hint": problem.hint(), "blocks": problem.blocks() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::apply::{AppliedChanges, ChangeError};
    use crate::host::observe::{FileName, PerDirectory};

    #[test]
    fn a_line_has_colour_at_its_start_alone() {
        let change = |name| Change::RemoveProgram(FileName::new(name).unwrap());
        let changes = vec![change("failed:"), change("not done:")];
        let why = ChangeError::Overtaken { path: "/opt/failed:".into() };
        let failed = vec![FailedChange { change: changes[0].clone(), why, works_without: false }];
        let pass = Pass {
            plan: Plan { changes, ..Plan::default() },
            applied: AppliedChanges { done: 0, failed },
            left: Plan::default(),
            conflicts: PerDirectory::default(),
            waiting: Vec::new(),
            due: None,
        };
        let (failed, not_done) = (bad("failed:"), doubtful("not done:"));
        assert_eq!(
            text(&pass),
            format!(
                "{failed} another program changed /opt/failed: at the same time\n\
                 {not_done} remove program not done:\n"
            )
        );
    }
}
