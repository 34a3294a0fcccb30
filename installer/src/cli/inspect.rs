//! `gybe inspect`: what of ours a namespace holds, with counters.

use super::answer::{Answer, Failure};
use super::backend::BackendArg;
use super::namespace::NetnsArg;
use clap::Args;
use gybe_netfilter::backend::{Inventory, Item, Part, PartKind};
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
        let backend = self.backend.choose()?;
        let there = self.netns.open()?;
        let found = there.inside(|| backend.inspect())?;
        let found = found
            .map_err(|why| Failure::hinted(format!("cannot read the rules in {}", there.path()), why))?;
        let text = match found.is_empty() {
            true => format!("nothing of ours in {}\n", there.path()),
            false => listing(backend.name(), &found),
        };
        Ok(Answer::yes(text, as_json(backend.name(), &found)))
    }
}

/// What iptables holds has no one table to name.
fn listing(backend: &str, found: &Inventory) -> String {
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
