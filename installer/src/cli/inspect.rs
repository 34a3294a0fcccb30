//! `gybe inspect`: what of ours a namespace holds, with counters.

use super::answer::{Answer, Failure};
use super::backend::{self, BackendArg};
use super::namespace::NetnsArg;
use clap::Args;
use gybe_netfilter::backend::{Backend, BackendError};
use gybe_netfilter::inventory::{Inventory, Item, Part, PartKind};
use serde_json::{Value, json};
use std::fmt::Write;

/// Show what of ours a network namespace holds: chains, rules with their counters, sets.
#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    #[command(flatten)]
    netns: NetnsArg,
    #[command(flatten)]
    backend: BackendArg,
}

impl InspectArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let there = self.netns.open()?;
        let tools = self.backend.readers(&there)?;
        let found = there.inside(|| inspected(&tools))?;
        let found = found
            .map_err(|why| Failure::hinted(format!("cannot read the rules in {}", there.path()), why))?;
        let mut text: String = found.iter().map(|(backend, found)| listing(backend, found)).collect();
        if text.is_empty() {
            text = format!("nothing of ours in {}\n", there.path());
        }
        let notes = backend::notes(&backend::presence(&there)?.other_nat);
        Ok(Answer::yes(text, all_as_json(&found)).noting(notes))
    }
}

/// What each has written, by its name.
type Inspected = Vec<(&'static str, Inventory)>;

fn inspected(tools: &[Box<dyn Backend>]) -> Result<Inspected, BackendError> {
    tools.iter().map(|tool| Ok((tool.name(), tool.inspect()?))).collect()
}

/// One backend's, as it nearly always is; what others have written beside it is a fault, and named so.
fn all_as_json(found: &[(&'static str, Inventory)]) -> Value {
    let mut each = found.iter().map(|(backend, found)| as_json(backend, found));
    let mut first = each.next().unwrap_or_default();
    let others: Vec<Value> = each.collect();
    if let (Some(members), false) = (first.as_object_mut(), others.is_empty()) {
        members.insert("beside".to_owned(), others.into());
    }
    first
}

/// What iptables holds has no one table to name.
fn listing(backend: &str, found: &Inventory) -> String {
    if found.is_empty() {
        return String::new();
    }
    let head = if backend == "nft" { "table inet gybe" } else { backend };
    let mut text = format!("{head} {{\n");
    for part in &found.parts {
        match part.kind {
            PartKind::Chain => chain(&mut text, part),
            PartKind::Set => set(&mut text, part),
            PartKind::TableFlag => text += &format!("  flags {}\n", part.name),
        }
    }
    text + "}\n"
}

fn chain(text: &mut String, part: &Part) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  chain {} {{", part.name);
    let widest = part.items.iter().map(|item| item.id.len()).max().unwrap_or(0);
    for item in &part.items {
        let _ = writeln!(text, "    {:<widest$}{}", item.id, counters(item));
    }
    text.push_str("  }\n");
}

fn counters(item: &Item) -> String {
    match (item.packets, item.bytes) {
        (Some(packets), Some(bytes)) => format!("  packets {packets} bytes {bytes}"),
        _ => String::new(),
    }
}

fn set(text: &mut String, part: &Part) {
    let elements: Vec<&str> = part.items.iter().map(|item| item.id.as_str()).collect();
    let _ = writeln!(text, "  set {} {{ {} }}", part.name, elements.join(", "));
}

fn as_json(backend: &str, found: &Inventory) -> Value {
    let of_kind = |kind: PartKind| found.parts.iter().filter(move |part| part.kind == kind);
    let chains = of_kind(PartKind::Chain).map(|chain| {
        let rules = chain.items.iter();
        let rules = rules.map(|r| json!({ "id": r.id, "packets": r.packets, "bytes": r.bytes }));
        json!({ "name": chain.name, "rules": rules.collect::<Vec<_>>() })
    });
    let sets = of_kind(PartKind::Set).map(|set| {
        json!({ "name": set.name, "elements": set.items.iter().map(|item| &item.id).collect::<Vec<_>>() })
    });
    let flags: Vec<_> = of_kind(PartKind::TableFlag).map(|flag| &flag.name).collect();
    let (chains, sets) = (chains.collect::<Vec<_>>(), sets.collect::<Vec<_>>());
    json!({ "backend": backend, "flags": flags, "chains": chains, "sets": sets })
}
