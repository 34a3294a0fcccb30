//! The path of a connection through the rules of a namespace, as text and as JSON.

use gybe_netfilter::inspect::live::{LiveRules, LiveStep, LiveTrace, Outcome};
use serde_json::{Value, json};
use std::fmt::Write;

pub(super) fn text(live: &LiveTrace) -> String {
    let mut text = String::new();
    for step in &live.steps {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {step}");
    }
    let _ = writeln!(text, "{} ({})", live.outcome, reason(live));
    text
}

fn reason(live: &LiveTrace) -> String {
    if let Some(obstacle) = &live.obstacle {
        return obstacle.clone();
    }
    match (&live.order, &live.decided_by) {
        (Some([first, second]), _) => {
            format!("the kernel does not report which of these comes first: {first}; {second}")
        }
        (None, Some(LiveStep { id: Some(id), .. })) => format!("rule {id}"),
        (None, Some(step)) if live.outcome == Outcome::Unknown => format!("it depends on {step}"),
        (None, Some(step)) => format!("by {step}"),
        (None, None) if live.outcome == Outcome::Unknown => "not all rules were evaluated".to_owned(),
        (None, None) => "no rule applies".to_owned(),
    }
}

/// The name of an outcome, and the port that it leads to.
pub(super) fn outcome(outcome: Outcome) -> (&'static str, Option<u16>) {
    match outcome {
        Outcome::Untouched => ("untouched", None),
        Outcome::Redirected(port) => ("redirected", Some(port.get())),
        Outcome::Intercepted(port) => ("intercepted", Some(port.get())),
        Outcome::Translated(_) => ("translated", None),
        Outcome::Dropped => ("dropped", None),
        Outcome::RepliesLost => ("answers-lost", None),
        Outcome::Unknown => ("unknown", None),
    }
}

pub(super) fn json(live: &LiveTrace) -> Value {
    let (outcome, port) = outcome(live.outcome);
    let translated = match live.outcome {
        Outcome::Translated(address) => Some(address),
        _ => None,
    };
    let decided_by = live.decided_by.as_ref();
    json!({
        "outcome": outcome,
        "port": port,
        "to": translated,
        "decided_by": decided_by.and_then(|step| step.id.clone()),
        "by": decided_by.map(step),
        "obstacle": live.obstacle,
        "steps": live.steps.iter().map(step).collect::<Vec<_>>(),
        "zone": live.zone,
        "mark": live.mark,
    })
}

fn step(step: &LiveStep) -> Value {
    json!({ "place": step.place, "rule": step.rule, "id": step.id, "ours": step.is_ours })
}

/// Returns notes about rules that were not evaluated, and about eBPF programs that can only pass or drop.
pub(super) fn notes(rules: &LiveRules) -> Vec<String> {
    let not_evaluated = rules.not_evaluated().iter().map(|one| format!("note: not evaluated: {one}"));
    not_evaluated.chain(rules.notes().iter().map(|note| format!("note: {note}"))).collect()
}
