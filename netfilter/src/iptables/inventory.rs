//! What of ours is there, in the words every backend shares: a part for each chain of ours and for
//! each chain of others that leads into one, named as people ask iptables for it (`ip nat ISTIO_OUTPUT`).

use super::holding::{Entry, Holding};
use super::layout::family_name;
use super::session::PerFamily;
use crate::backend::{Inventory, Item, Part, PartKind};
use crate::ruleset::{Family, Stage};
use std::collections::BTreeMap;

/// The inventory of what both families hold.
pub(super) fn inventory(holdings: &PerFamily) -> Inventory {
    let tables = holdings.iter().flat_map(|(family, tables)| {
        tables.iter().flat_map(move |(stage, holding)| parts(*family, *stage, holding))
    });
    Inventory::of(tables.collect())
}

fn parts(family: Family, stage: Stage, holding: &Holding) -> impl Iterator<Item = Part> {
    let place = move |chain: &str| format!("{} {} {chain}", family_name(family), stage.table());
    let part = move |(chain, entries): (&String, &Vec<Entry>)| Part {
        kind: PartKind::Chain,
        name: place(chain),
        form: Vec::new(),
        items: items(entries),
    };
    holding.chains.iter().chain(&holding.hooks).map(part)
}

/// A rule with lists is several here: `id`, `id#2`, `id#3`, in order.
fn items(entries: &[Entry]) -> Vec<Item> {
    let mut seen = BTreeMap::<String, usize>::new();
    let items = entries.iter().map(|entry| {
        // Carrying out a divert takes rules that no rule of ours names.
        let id = Some(entry.comment()).filter(|id| !id.is_empty()).unwrap_or_else(|| entry.target());
        let times = seen.entry(id.clone()).or_default();
        *times += 1;
        Item {
            id: if *times == 1 { id } else { format!("{id}#{times}") },
            form: entry.text().as_bytes().to_vec(),
            packets: entry.counters.map(|counters| counters.packets),
            bytes: entry.counters.map(|counters| counters.bytes),
        }
    });
    items.collect()
}
