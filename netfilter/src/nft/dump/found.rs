//! Parses the entries of the kernel's lists: chains with their rules, and sets with their elements.
//!
//! Objects outside of the table are skipped. Objects in it that Gybe did not write get a name that identifies them.

use crate::kernel::netlink::attr::{Attributes, Writer};
use crate::kernel::uapi::*;
use crate::model::inventory::{Item, Part, PartKind};
use crate::nft::chain::{self, Base};
use crate::nft::expr;
use crate::nft::key::{self, KeyRange, KeyType};
use crate::nft::lists::ListEntry;

/// The chains of the table, each with its rules in order.
pub(super) fn chains(table: &str, chains: &[ListEntry], rules: &[ListEntry]) -> Vec<Part> {
    let mut parts: Vec<Part> = chains.iter().filter_map(|entry| chain(table, &entry.attributes())).collect();
    for entry in rules {
        let rule = entry.attributes();
        let name = text(&rule, NFTA_RULE_CHAIN);
        let chain = parts.iter_mut().find(|part| Some(&part.name) == name.as_ref());
        if let (Some(chain), true) = (chain, is_in(table, &rule, NFTA_RULE_TABLE)) {
            chain.items.push(self::rule(&rule));
        }
    }
    parts
}

fn chain(table: &str, chain: &Attributes<'_>) -> Option<Part> {
    let name = text(chain, NFTA_CHAIN_NAME).filter(|_| is_in(table, chain, NFTA_CHAIN_TABLE))?;
    let form = chain::form(Base::read(chain).as_ref());
    Some(Part { kind: PartKind::Chain, name, form, items: Vec::new() })
}

/// A rule's form is its expressions, counters at zero.
fn rule(rule: &Attributes<'_>) -> Item {
    let mut writer = Writer::default();
    let (mut packets, mut bytes) = (None, None);
    for element in rule.nested(NFTA_RULE_EXPRESSIONS) {
        let expression = Attributes::of(element.value);
        if expression.get(NFTA_EXPR_NAME).is_some_and(|name| name.text() == b"counter") {
            let counter = expression.nested(NFTA_EXPR_DATA);
            packets = counter.be64(NFTA_COUNTER_PACKETS);
            bytes = counter.be64(NFTA_COUNTER_BYTES);
            expr::count(&mut writer);
        } else {
            writer.attr(NFTA_LIST_ELEM, element.value);
        }
    }
    Item { id: name_of(rule), form: writer.finish().unwrap_or_default(), packets, bytes }
}

/// A rule's comment, or its handle when it has none.
fn name_of(rule: &Attributes<'_>) -> String {
    let handle = || rule.be64(NFTA_RULE_HANDLE).unwrap_or_default();
    comment(rule).unwrap_or_else(|| format!("handle {}", handle()))
}

/// The comment of a rule: the first entry of its user data (`NFTNL_UDATA_RULE_COMMENT`), not printable bytes escaped.
pub(crate) fn comment(rule: &Attributes<'_>) -> Option<String> {
    match rule.get(NFTA_RULE_USERDATA)?.value {
        [0, length, text @ ..] => {
            Some(text.get(..usize::from(length.saturating_sub(1)))?.escape_ascii().to_string())
        }
        _ => None,
    }
}

/// The flags of the table (`enum nft_table_flags`, include/uapi/linux/netfilter/nf_tables.h, v6.18).
/// Gybe's tables have none of them. The kernel evaluates no rule of a dormant table.
pub(super) fn table_flags(table: &str, tables: &[ListEntry]) -> Vec<Part> {
    let tables = tables.iter().map(|entry| entry.attributes());
    let flags = tables.filter(|entry| is_in(table, entry, NFTA_TABLE_NAME));
    let flags = flags.filter_map(|entry| entry.be32(NFTA_TABLE_FLAGS)).fold(0, |all, some| all | some);
    [(1, "dormant"), (2, "owner"), (4, "persist")]
        .into_iter()
        .filter(|(flag, _)| flags & flag != 0)
        .map(|(_, name)| Part {
            kind: PartKind::TableFlag,
            name: name.into(),
            form: Vec::new(),
            items: Vec::new(),
        })
        .collect()
}

/// A set of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundSet {
    /// As the kernel has it, for the request for its elements.
    pub(super) name: Vec<u8>,
    number: u32,
    length: u32,
    flags: u32,
}

/// The sets of the table.
pub(super) fn sets(table: &str, entries: &[ListEntry]) -> Vec<FoundSet> {
    let sets = entries.iter().map(|entry| entry.attributes());
    let number = |set: &Attributes<'_>, kind| set.be32(kind).unwrap_or_default();
    sets.filter(|set| is_in(table, set, NFTA_SET_TABLE))
        .filter_map(|set| {
            Some(FoundSet {
                name: set.get(NFTA_SET_NAME)?.text().to_vec(),
                number: number(&set, NFTA_SET_KEY_TYPE),
                length: number(&set, NFTA_SET_KEY_LEN),
                flags: number(&set, NFTA_SET_FLAGS),
            })
        })
        .collect()
}

impl FoundSet {
    /// The set with its listed elements.
    /// Returns none when the list has an element twice ([`has_duplicates`](super::super::lists::has_duplicates)).
    pub(super) fn part(self, entries: &[ListEntry]) -> Option<Part> {
        let key = KeyType::numbered(self.number).filter(|key| u32::from(key.length()) == self.length);
        let mut ranges: Vec<KeyRange> = match self.flags & NFT_SET_INTERVAL {
            0 => elements(entries).map(|(first, _)| KeyRange { first, last: first }).collect(),
            _ => paired(elements(entries).collect(), u8::try_from(self.length).unwrap_or(16)),
        };
        ranges.sort_unstable();
        if ranges.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
            return None;
        }
        let catch_all = has_catch_all(entries).then(|| Item {
            id: "*".to_owned(),
            form: Vec::new(),
            packets: None,
            bytes: None,
        });
        let mut form = set_form(self.number, self.length, self.flags);
        // Longer than the form of any set that Gybe writes.
        form.extend(has_statement(entries).then_some(1));
        Some(Part {
            kind: PartKind::Set,
            form,
            name: self.name.escape_ascii().to_string(),
            items: ranges.into_iter().map(|range| element(key, range)).chain(catch_all).collect(),
        })
    }
}

/// The attributes of each listed element.
fn listed(entries: &[ListEntry]) -> impl Iterator<Item = Attributes<'_>> {
    entries.iter().flat_map(ListEntry::elements).map(|element| Attributes::of(element.value))
}

/// Reports whether the set has the element that matches every key; Gybe writes none.
fn has_catch_all(entries: &[ListEntry]) -> bool {
    let flags = |element: Attributes<'_>| element.be32(NFTA_SET_ELEM_FLAGS);
    listed(entries).filter_map(flags).any(|flags| flags & NFT_SET_ELEM_CATCHALL != 0)
}

/// Reports whether an element has a statement, such as a limit, which can keep it from matching; Gybe writes none.
fn has_statement(entries: &[ListEntry]) -> bool {
    let kinds = [NFTA_SET_ELEM_EXPR, NFTA_SET_ELEM_EXPRESSIONS];
    listed(entries).any(|element| kinds.iter().any(|kind| element.get(*kind).is_some()))
}

/// The keys, each with whether it is the end of an interval.
fn elements(entries: &[ListEntry]) -> impl Iterator<Item = (u128, bool)> {
    listed(entries).filter_map(|element| {
        let key = Attributes::of(element.get(NFTA_SET_ELEM_KEY)?.value).get(NFTA_DATA_VALUE)?;
        let flags = element.be32(NFTA_SET_ELEM_FLAGS).unwrap_or_default();
        Some((key::number(key.value), flags & NFT_SET_ELEM_INTERVAL_END != 0))
    })
}

/// The intervals between the listed bounds. When no interval starts at zero, `nft` writes an end there, which ends
/// none.
fn paired(mut bounds: Vec<(u128, bool)>, length: u8) -> Vec<KeyRange> {
    // Where one interval ends and another starts, the end comes first.
    bounds.sort_unstable_by_key(|(key, is_end)| (*key, !is_end));
    let mut ranges = Vec::with_capacity(bounds.len() / 2 + 1);
    let mut open = None;
    for (key, is_end) in bounds {
        if let Some(first) = open.take() {
            ranges.push(KeyRange::until(first, Some(key), length));
        }
        open = (!is_end).then_some(key);
    }
    ranges.extend(open.map(|first| KeyRange::until(first, None, length)));
    ranges
}

/// The type, key length and flags of a set, as comparable bytes.
pub(in crate::nft) fn set_form(number: u32, length: u32, flags: u32) -> Vec<u8> {
    [number, length, flags].map(u32::to_be_bytes).concat()
}

/// An element: the text of its range, and the bounds as comparable bytes.
pub(in crate::nft) fn element(key: Option<KeyType>, range: KeyRange) -> Item {
    let id = key.map_or_else(|| format!("{:x}-{:x}", range.first, range.last), |key| key.text(range));
    let form = [range.first, range.last].map(u128::to_be_bytes).concat();
    Item { id, form, packets: None, bytes: None }
}

/// Reports whether the object is in the table; `kind` is the attribute with the name of its table.
fn is_in(table: &str, object: &Attributes<'_>, kind: u16) -> bool {
    object.get(kind).is_some_and(|name| name.text() == table.as_bytes())
}

fn text(object: &Attributes<'_>, kind: u16) -> Option<String> {
    object.name(kind)
}
