//! What is in our table, as the kernel lists it, and what it should list: two inventories to compare.
//!
//! Rules are compared as the bytes of their expressions with counters at zero (`found`
//! reads the kernel's entries; this module asks for them and puts them together).

mod found;

use super::batch::{GENERIC, TooLong};
use super::chain::TABLE;
use super::chain::{self, Base};
use super::error::NftError;
use super::expr;
use super::key::{KeyType, ranges};
use super::set;
use super::socket::Connection;
use super::uapi::*;
use crate::inventory::{Inventory, Item, Part, PartKind};
use crate::netlink::attr::{Attributes, Writer};
use crate::netlink::list::Listed;
use crate::netlink::message::{DUMP, Header, REQUEST};
use crate::netlink::socket::SocketError;
use crate::ruleset::{Chain, NamedList, Ruleset};
use found::FoundSet;
pub(crate) use found::comment;
use nix::errno::Errno;

/// How often a list that changed while it was read is read again.
const ATTEMPTS: u32 = 5;

/// The inventory that the kernel lists once `rules` are applied.
pub(super) fn desired(rules: &Ruleset) -> Inventory {
    let chains = rules.chains.iter().map(wanted_chain);
    Inventory::of(chains.chain(rules.lists().iter().map(wanted_set)).collect())
}

/// Reports whether `found` is exactly `rules`. Compares part by part, because all sets together may have tens of
/// thousands of elements.
pub(super) fn holds(rules: &Ruleset, found: &Inventory) -> bool {
    let lists = rules.lists();
    let mut parts = rules.chains.iter().map(wanted_chain).chain(lists.iter().map(wanted_set));
    found.parts.len() == rules.chains.len() + lists.len() && parts.all(|part| found.holds(&part))
}

fn wanted_chain(chain: &Chain) -> Part {
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

fn wanted_set(list: &NamedList<'_>) -> Part {
    let key = KeyType::of(&list.elements);
    Part {
        kind: PartKind::Set,
        name: list.name.clone().into_owned(),
        form: found::set_form(key.number(), u32::from(key.length()), set::flags(key)),
        items: ranges(&list.elements).into_iter().map(|range| found::element(Some(key), range)).collect(),
    }
}

/// Reads Gybe's table; empty when there is none.
pub(super) fn inventory(connection: &mut Connection) -> Result<Inventory, NftError> {
    inventory_by(&mut |request, sequence| connection.0.list(request, sequence))
}

/// [`inventory`] from a lister.
pub(crate) fn inventory_by(lister: &mut Lister<'_>) -> Result<Inventory, NftError> {
    for _ in 0..ATTEMPTS {
        if let Some(inventory) = attempt(lister)? {
            return Ok(inventory);
        }
    }
    Err(NftError::KeptChanging { attempts: ATTEMPTS })
}

/// Returns the list that a request with this sequence number asks for: the kernel, or a recording.
pub(crate) type Lister<'l> = dyn FnMut(&[u8], u32) -> Result<Listed, SocketError> + 'l;

/// Reads all lists once; `None` when the rules changed meanwhile.
fn attempt(lister: &mut Lister<'_>) -> Result<Option<Inventory>, NftError> {
    let mut lists = Lists { lister, generation: None, sequence: 0, family: NFPROTO_INET };
    let sets = match lists.ask("the sets", NFT_MSG_GETSET, |w| w.text(NFTA_SET_TABLE, TABLE)) {
        Ok(sets) => sets,
        Err(NftError::List { source: Errno::ENOENT, .. }) => return Ok(Some(Inventory::default())),
        Err(error) => return Err(error),
    };
    let chains = lists.ask("the chains", NFT_MSG_GETCHAIN, |w| w.text(NFTA_CHAIN_TABLE, TABLE))?;
    let rules = lists.ask("the rules", NFT_MSG_GETRULE, |w| w.text(NFTA_RULE_TABLE, TABLE))?;
    let tables = lists.ask("the tables", NFT_MSG_GETTABLE, |_| ())?;
    let (Some(sets), Some(chains), Some(rules), Some(tables)) = (sets, chains, rules, tables) else {
        return Ok(None);
    };
    let mut parts = found::chains(&chains, &rules);
    parts.extend(found::table_flags(&tables));
    for set in found::sets(&sets) {
        let Some(elements) = lists.elements(&set)? else { return Ok(None) };
        parts.push(set.part(&elements));
    }
    let inventory = Inventory::of(parts);
    // A name stands twice only in a list that changed between two of its datagrams.
    Ok((!inventory.has_twins()).then_some(inventory))
}

/// Several lists that are to show the same generation of the rules.
pub(crate) struct Lists<'a, 'l> {
    lister: &'a mut Lister<'l>,
    /// The generation's lower bits, which every entry bears (`nfnl_msg_put`, `res_id`).
    generation: Option<[u8; 2]>,
    sequence: u32,
    /// Whose tables are listed: `NFPROTO_*`.
    family: u8,
}

/// The attributes of each entry.
type Entries = Vec<Vec<u8>>;

/// One entry of a list of several families.
pub(crate) struct Entry(Vec<u8>);

impl Entry {
    /// `NFPROTO_*`.
    pub(crate) fn family(&self) -> u8 {
        self.0.first().copied().unwrap_or_default()
    }

    pub(crate) fn attributes(&self) -> Attributes<'_> {
        Attributes::of(self.0.get(GENERIC..).unwrap_or_default())
    }
}

impl<'a, 'l> Lists<'a, 'l> {
    /// Lists of the tables of every family.
    pub(crate) fn of_every_family(lister: &'a mut Lister<'l>) -> Self {
        Self { lister, generation: None, sequence: 0, family: NFPROTO_UNSPEC }
    }
}

impl Lists<'_, '_> {
    fn elements(&mut self, set: &FoundSet) -> Result<Option<Entries>, NftError> {
        let elements = self.elements_of(NFPROTO_INET, TABLE.as_bytes(), &set.name)?;
        Ok(elements.map(without_headers))
    }

    /// The elements of a set, by its table and name as the kernel has them.
    pub(crate) fn elements_of(
        &mut self,
        family: u8,
        table: &[u8],
        set: &[u8],
    ) -> Result<Option<Vec<Entry>>, NftError> {
        let of = std::mem::replace(&mut self.family, family);
        let elements = self.all("the elements of a set", NFT_MSG_GETSETELEM, |w| {
            w.text(NFTA_SET_ELEM_LIST_TABLE, table);
            w.text(NFTA_SET_ELEM_LIST_SET, set);
        });
        self.family = of;
        match elements {
            // It was listed a moment ago.
            Err(NftError::List { source: Errno::ENOENT, .. }) => Ok(None),
            outcome => outcome,
        }
    }

    /// Asks for a list; `None` when something changed since the lists before it.
    fn ask(
        &mut self,
        what: &'static str,
        kind: u16,
        filter: impl FnOnce(&mut Writer),
    ) -> Result<Option<Entries>, NftError> {
        Ok(self.all(what, kind, filter)?.map(without_headers))
    }

    /// The same with the family of each entry.
    pub(crate) fn all(
        &mut self,
        what: &'static str,
        kind: u16,
        filter: impl FnOnce(&mut Writer),
    ) -> Result<Option<Vec<Entry>>, NftError> {
        self.sequence += 1;
        let mut writer = Writer::with_capacity(256);
        let kind = NFNL_SUBSYS_NFTABLES << 8 | kind;
        let header = Header { kind, flags: REQUEST | DUMP, sequence: self.sequence };
        writer.message(header, &[self.family, 0, 0, 0], filter);
        let request = writer.finish().ok_or(TooLong)?;
        match (self.lister)(&request, self.sequence)? {
            Listed::Whole(entries) => Ok(self.of_one_generation(entries)),
            Listed::Changed => Ok(None),
            Listed::Refused(source) => Err(NftError::List { what, source }),
            Listed::Unknown(source) => Err(NftError::Listing { source }),
        }
    }

    fn of_one_generation(&mut self, entries: Entries) -> Option<Vec<Entry>> {
        for entry in &entries {
            let generation = entry.get(2..GENERIC)?.try_into().ok()?;
            if self.generation.replace(generation).is_some_and(|before| before != generation) {
                return None;
            }
        }
        Some(entries.into_iter().map(Entry).collect())
    }
}

/// Without the header that `of_one_generation` has found before each.
fn without_headers(entries: Vec<Entry>) -> Entries {
    let without = |Entry(mut entry): Entry| {
        entry.drain(..GENERIC.min(entry.len()));
        entry
    };
    entries.into_iter().map(without).collect()
}

#[cfg(test)]
mod tests;
