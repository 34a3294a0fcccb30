//! Gybe's iptables rules as an inventory: one part for each of Gybe's chains and for each other chain that leads into
//! one, named by the words in which iptables is asked for it (`ip nat ISTIO_OUTPUT`).

use super::layout::family_name;
use super::rules::{IptablesRules, RuleText, TableRules};
use crate::inventory::{Inventory, Item, Part, PartKind};
use crate::ruleset::{Family, Stage};
use std::collections::BTreeMap;

/// The inventory of both families.
pub(super) fn inventory(rules: &IptablesRules) -> Inventory {
    let tables = rules.iter().flat_map(|(family, tables)| {
        tables.iter().flat_map(move |(stage, table)| parts(*family, *stage, table))
    });
    Inventory::of(tables.collect())
}

fn parts(family: Family, stage: Stage, table: &TableRules) -> impl Iterator<Item = Part> {
    let full_name = move |chain: &str| format!("{} {} {chain}", family_name(family), stage.table());
    let part = move |(chain, rules): (&String, &Vec<RuleText>)| Part {
        kind: PartKind::Chain,
        name: full_name(chain),
        form: Vec::new(),
        items: items(rules),
    };
    table.chains.iter().chain(&table.hooks).map(part)
}

/// The rules of one chain. A rule with lists is several rules here: `id`, `id#2`, `id#3`, in order.
fn items(rules: &[RuleText]) -> Vec<Item> {
    let mut counts = BTreeMap::<String, usize>::new();
    let items = rules.iter().map(|rule| {
        // The rules that carry out a divert have no id.
        let id = Some(rule.comment()).filter(|id| !id.is_empty()).unwrap_or_else(|| rule.target());
        let count = counts.entry(id.clone()).or_default();
        *count += 1;
        Item {
            id: if *count == 1 { id } else { format!("{id}#{count}") },
            form: rule.text().as_bytes().to_vec(),
            packets: rule.counters.map(|counters| counters.packets),
            bytes: rule.counters.map(|counters| counters.bytes),
        }
    });
    items.collect()
}
