//! `gybe inspect`: lists Gybe's chains, rules and sets in a namespace, with counters.

use super::backend::{self, BackendArg};
use super::namespace::PodNamespaceArgs;
use super::output::{CommandError, CommandOutput};
use super::style::examples;
use crate::pod::manifest::printable;
use clap::Args;
use gybe_netfilter::apply::backend::{Backend, BackendError, BackendKind};
use gybe_netfilter::compile::has_ambient_rules;
use gybe_netfilter::model::inventory::{Inventory, Item, Part, PartKind};
use serde_json::{Value, json};
use std::fmt::Write;

/// List Gybe's chains, rules with their counters, and sets in a network namespace
///
/// The first line names the backend, whether the pod is ambient, and the command that lists the same rules without Gybe.
#[derive(Debug, Args)]
#[command(after_help = examples(&[
    "gybe inspect --netns /run/netns/shop",
    "gybe inspect --pod shop/cart-0",
    "gybe inspect --pid 4711 --json",
]))]
pub(super) struct InspectArgs {
    #[command(flatten)]
    namespace: PodNamespaceArgs,
    #[command(flatten)]
    backend: BackendArg,
}

impl InspectArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let namespace = self.namespace.open()?;
        let backends = self.backend.readers(&namespace)?;
        let found = namespace.inside(|| inspected(&backends))?;
        let found = found.map_err(|why| {
            CommandError::hinted(format!("cannot read the rules in {}", namespace.path()), why)
        })?;
        let notes = backend::notes(&backend::presence(&namespace)?.other_nat);
        let mut text = String::new();
        for (backend, found) in found.iter().filter(|(_, found)| !found.is_empty()) {
            let kind = if has_ambient_rules(found) { ", ambient" } else { "" };
            let command = native_command(*backend, &namespace.path().to_string());
            text += &format!("{backend}{kind}: {command}\n");
            text += &listing(*backend, found);
        }
        if text.is_empty() {
            text = format!("no rules of Gybe in {}\n", namespace.path());
        }
        Ok(CommandOutput::done(text, all_as_json(&found)).with_notes(notes))
    }
}

/// The command that lists the rules of this backend without Gybe.
fn native_command(backend: BackendKind, netns: &str) -> String {
    let pid = netns.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/ns/net"));
    let enter = match pid.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit())) {
        Some(pid) => format!("nsenter -t {pid} -n"),
        None => format!("nsenter --net={}", printable(netns)),
    };
    match backend {
        BackendKind::Nft => format!("{enter} nft list table inet gybe"),
        BackendKind::IptablesNft | BackendKind::IptablesLegacy => format!("{enter} {backend}-save -c"),
    }
}

/// What each backend has written.
type Inspected = Vec<(BackendKind, Inventory)>;

fn inspected(backends: &[Box<dyn Backend>]) -> Result<Inspected, BackendError> {
    backends.iter().map(|backend| Ok((backend.kind(), backend.inspect()?))).collect()
}

/// Returns the first backend's object. Rules of a second backend are a fault; they are in its member `other_backends`.
fn all_as_json(found: &[(BackendKind, Inventory)]) -> Value {
    let mut each = found.iter().map(|(backend, found)| as_json(*backend, found));
    let mut first = each.next().unwrap_or_default();
    let others: Vec<Value> = each.collect();
    if let (Some(members), false) = (first.as_object_mut(), others.is_empty()) {
        members.insert("other_backends".to_owned(), others.into());
    }
    first
}

/// The heading names nft's only table; iptables has several tables, so it names the backend.
fn listing(backend: BackendKind, found: &Inventory) -> String {
    if found.is_empty() {
        return String::new();
    }
    let head = if backend == BackendKind::Nft { "table inet gybe" } else { backend.name() };
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

fn as_json(backend: BackendKind, found: &Inventory) -> Value {
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
    let kind = match found.is_empty() {
        true => None,
        false => Some(if has_ambient_rules(found) { "ambient" } else { "sidecar" }),
    };
    json!({ "backend": backend.name(), "kind": kind, "flags": flags, "chains": chains, "sets": sets })
}
