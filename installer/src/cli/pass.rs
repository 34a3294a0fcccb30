//! Prints the plan of a pass (dry run), or its changes and the remaining problems, as text and as JSON.

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

/// The output of a dry run; exit code 1 if a problem blocks the plan.
pub(super) fn planned(plan: &Plan) -> CommandOutput {
    let text = lines(plan.changes.iter().map(|change| format!("would {change}"))) + &problems(&plan.problems);
    let text = if text.is_empty() { NOTHING.to_owned() } else { text };
    let json = json!({
        "dry_run": true,
        "redirected": plan.judgement.is_redirected(),
        "changes": steps(&plan.changes),
        "problems": problems_json(&plan.problems),
    });
    let exit = if plan.problems.iter().any(Problem::blocks) { Exit::No } else { Exit::Yes };
    CommandOutput { text, json, exit, notes: Vec::new() }
}

/// The output of a pass: its changes, those that failed, and the remaining problems.
pub(super) fn text(pass: &Pass) -> String {
    let (changes, failed) = (&pass.plan.changes, &pass.applied.failed);
    let attempted = pass.applied.done + failed.len();
    let has_failed = |change: &Change| failed.iter().any(|failed| failed.change == *change);
    let done = changes.iter().take(attempted).filter(|change| !has_failed(change));
    let skipped = changes.iter().skip(attempted).map(|change| format!("not done: {change}"));
    let done = if changes.is_empty() { NOTHING.to_owned() } else { lines(done.map(past_tense)) };
    let has_hint_later = |at: usize, hint| failed.iter().skip(at + 1).any(|later| later.why.hint() == hint);
    let failed = lines(failed.iter().enumerate().map(|(at, one)| match has_hint_later(at, one.why.hint()) {
        true => format!("failed: {}", chain(&one.why)),
        false => format!("failed: {}", one.with_hint()),
    }));
    done + &coloured("failed:", bad, &failed)
        + &coloured("not done:", doubtful, &lines(skipped))
        + &problems(&pass.left.problems)
}

pub(super) fn json(pass: &Pass) -> Value {
    let failed: Vec<String> = pass.applied.failed.iter().map(FailedChange::with_hint).collect();
    json!({
        "changes": steps(&pass.plan.changes),
        "done": pass.applied.done,
        "failed": failed,
        "left": steps(&pass.left.changes),
        "problems": problems_json(&pass.left.problems),
    })
}

/// `place program gybe` as `placed program gybe`.
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

fn steps(changes: &[Change]) -> Vec<String> {
    changes.iter().map(ToString::to_string).collect()
}

fn lines(all: impl Iterator<Item = String>) -> String {
    all.map(|line| printable(&line) + "\n").collect()
}

/// Colours the prefix of each line.
fn coloured(prefix: &str, colour: fn(&str) -> String, lines: &str) -> String {
    lines.replace(prefix, &colour(prefix))
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
