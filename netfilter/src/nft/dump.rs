//! The inventory of one of Gybe's tables as the kernel lists it, and the one that it should list of a namespace's rules.
//!
//! Rules are compared as the bytes of their expressions, with counters at zero. `found` parses the entries of the
//! kernel's lists.

mod found;

use super::chain::{self, Base, TABLE};
use super::error::NftError;
use super::key::{KeyType, ranges};
use super::lists::{self, ListStop, Lister, Lists};
use super::socket::NftSocket;
use super::{expr, set};
use crate::kernel::netlink::attr::Writer;
use crate::kernel::uapi::*;
use crate::model::inventory::{Inventory, Item, Part, PartKind};
use crate::model::ruleset::{Chain, NamedList, Ruleset};
pub(crate) use found::comment;
pub(super) use found::{element, set_form};
use nix::errno::Errno;

/// The inventory that the kernel lists once `rules` are applied.
pub(super) fn desired(rules: &Ruleset) -> Inventory {
    let chains = rules.chains.iter().map(desired_chain);
    Inventory::of(chains.chain(rules.lists().iter().map(desired_set)).collect())
}

/// Reports whether `found` is exactly `rules`. Compares part by part, because all sets together may have tens of
/// thousands of elements.
pub(super) fn holds(rules: &Ruleset, found: &Inventory) -> bool {
    let lists = rules.lists();
    let mut parts = rules.chains.iter().map(desired_chain).chain(lists.iter().map(desired_set));
    found.parts.len() == rules.chains.len() + lists.len() && parts.all(|part| found.holds(&part))
}

fn desired_chain(chain: &Chain) -> Part {
    let items = chain.rules.iter().map(|rule| {
        let mut writer = Writer::default();
        expr::write(&mut writer, rule);
        let form = writer.finish().unwrap_or_default();
        Item { id: rule.id.0.to_owned(), form, packets: Some(0), bytes: Some(0) }
    });
    Part {
        kind: PartKind::Chain,
        name: chain.name.as_str().to_owned(),
        form: chain::form(Base::of(chain.name).as_ref()),
        items: items.collect(),
    }
}

fn desired_set(list: &NamedList<'_>) -> Part {
    let key = KeyType::of(&list.elements);
    Part {
        kind: PartKind::Set,
        name: list.name.clone().into_owned(),
        form: set_form(key.number(), u32::from(key.length()), set::flags(key)),
        items: ranges(&list.elements).into_iter().map(|range| element(Some(key), range)).collect(),
    }
}

/// Reads the table with a namespace's rules; empty when there is none.
pub(super) fn inventory(connection: &mut NftSocket) -> Result<Inventory, NftError> {
    inventory_of(TABLE, connection)
}

/// Reads a table of Gybe, or another one of family `inet`.
pub(crate) fn inventory_of(table: &str, connection: &mut NftSocket) -> Result<Inventory, NftError> {
    inventory_by(table, &mut |request, sequence, limit| connection.0.list(request, sequence, limit))
}

/// [`inventory_of`] from a lister.
pub(crate) fn inventory_by(table: &str, lister: &mut Lister<'_>) -> Result<Inventory, NftError> {
    lists::of_one_generation(lister, NFPROTO_INET, |lists| attempt(table, lists))
}

/// Reads all lists once.
fn attempt(table: &str, lists: &mut Lists<'_, '_>) -> Result<Inventory, ListStop> {
    let sets = match lists.all(lists::SETS, |w| w.text(NFTA_SET_TABLE, table)) {
        Err(ListStop::Failed(NftError::List { source: Errno::ENOENT, .. })) => {
            return Ok(Inventory::default());
        }
        sets => sets?,
    };
    let chains = lists.all(lists::CHAINS, |w| w.text(NFTA_CHAIN_TABLE, table))?;
    let rules = lists.all(lists::RULES, |w| w.text(NFTA_RULE_TABLE, table))?;
    let tables = lists.all(lists::TABLES, |_| ())?;
    let mut parts = found::chains(table, &chains, &rules);
    parts.extend(found::table_flags(table, &tables));
    for set in found::sets(table, &sets) {
        let elements = lists.elements(NFPROTO_INET, table.as_bytes(), &set.name)?;
        parts.push(set.part(&elements).ok_or(ListStop::Changed)?);
    }
    let inventory = Inventory::of(parts);
    // A name appears twice only in a list that changed between two of its datagrams.
    if inventory.has_duplicate_names() { Err(ListStop::Changed) } else { Ok(inventory) }
}

#[cfg(test)]
mod tests;
