//! What a pass over a node did and left, for a person and for a program.

use super::answer::{Answer, Exit};
use crate::error::chain;
use crate::host::install::Pass;
use crate::host::install::change::{Change, Problem};
use crate::host::install::perform::PerformError;
use crate::host::install::plan::Plan;
use crate::pod::manifest::printable;
use serde_json::{Value, json};

/// What would be done; no when something stands in the way.
pub(super) fn foreseen(plan: &Plan) -> Answer {
    let text = lines(plan.changes.iter().map(|change| format!("would {change}"))) + &problems(&plan.problems);
    let text = if text.is_empty() { "nothing to do\n".to_owned() } else { text };
    let json = json!({ "dry_run": true, "redirected": plan.judgement.is_met(), "changes": steps(&plan.changes), "problems": problems_json(&plan.problems) });
    let exit = if plan.problems.iter().any(Problem::blocks) { Exit::No } else { Exit::Yes };
    Answer { text, json, exit, notes: Vec::new() }
}

/// What was done, what failed and what is left.
pub(super) fn passed(pass: &Pass) -> (String, Value) {
    let failed: Vec<String> = pass.performed.failed.iter().map(|failed| told(&failed.why)).collect();
    let (planned, done) = (pass.plan.changes.len(), pass.performed.done);
    let all = lines(pass.plan.changes.iter().map(ToString::to_string));
    let taken = match (planned, done) {
        (0, _) => "nothing to do\n".to_owned(),
        (planned, done) if planned == done => all,
        (planned, done) => format!("{done} of {planned} steps taken:\n{all}"),
    };
    let text = taken
        + &lines(failed.iter().map(|failed| format!("failed: {failed}")))
        + &problems(&pass.left.problems);
    let json = json!({
        "changes": steps(&pass.plan.changes),
        "done": done,
        "failed": failed,
        "left": steps(&pass.left.changes),
        "problems": problems_json(&pass.left.problems),
    });
    (text, json)
}

fn steps(changes: &[Change]) -> Vec<String> {
    changes.iter().map(ToString::to_string).collect()
}

fn lines(all: impl Iterator<Item = String>) -> String {
    all.map(|line| printable(&line) + "\n").collect()
}

fn problems(problems: &[Problem]) -> String {
    lines(problems.iter().map(|problem| match problem.hint() {
        Some(hint) => format!("{}; {hint}", chain(problem)),
        None => chain(problem),
    }))
}

fn problems_json(problems: &[Problem]) -> Vec<Value> {
    let one = |problem: &Problem| json!({ "what": chain(problem), "hint": problem.hint(), "blocks": problem.blocks() });
    problems.iter().map(one).collect()
}

fn told(why: &PerformError) -> String {
    match why.hint() {
        Some(hint) => format!("{}; {hint}", chain(why)),
        None => chain(why),
    }
}
