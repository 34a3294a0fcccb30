//! Reads sets and maps, with their elements as ranges of keys.

use super::super::expr::{self, Data};
use super::super::{Element, Set};
use super::table_name;
use crate::kernel::netlink::attr::{Attribute, Attributes};
use crate::kernel::uapi::*;
use crate::nft::lists::ListEntry;

pub(super) fn set(entry: &ListEntry) -> Option<Set> {
    let set = entry.attributes();
    let number = |kind| set.be32(kind).unwrap_or_default();
    let table = table_name(entry.family(), set.name(NFTA_SET_TABLE)?)?;
    // 64 bytes at most (`NFT_DATA_VALUE_MAXLEN`).
    let key_length = u8::try_from(number(NFTA_SET_KEY_LEN)).ok()?.into();
    let flags = number(NFTA_SET_FLAGS);
    let description = set.nested(NFTA_SET_DESC);
    let parts = description.nested(2);
    let length = |part: Attribute<'_>| Attributes::of(part.value).be32(1);
    let parts: Vec<usize> = parts.filter_map(length).filter_map(|length| length.try_into().ok()).collect();
    Some(Set {
        table,
        name: set.name(NFTA_SET_NAME)?,
        key_length,
        is_interval: flags & NFT_SET_INTERVAL != 0,
        parts,
        objects: number(NFTA_SET_OBJ_TYPE),
        is_dynamic: flags & (NFT_SET_TIMEOUT | NFT_SET_EVAL) != 0,
        elements: Vec::new(),
        catch_all: None,
    })
}

/// Reports whether an element has a statement other than a counter: a limit or a quota keeps it from matching some
/// packets (`nft_set_elem_update_expr`, include/net/netfilter/nf_tables.h, v6.18).
fn may_not_match(element: &Attributes<'_>) -> bool {
    let list = element.nested(NFTA_SET_ELEM_EXPRESSIONS);
    let mut statements = element.get(NFTA_SET_ELEM_EXPR).into_iter().chain(list);
    statements.any(|one| {
        let name = Attributes::of(one.value).get(NFTA_EXPR_NAME);
        name.is_none_or(|name| !matches!(name.text(), b"counter" | b"last"))
    })
}

/// Adds the listed elements to the set.
pub(super) fn add_elements(set: &mut Set, entries: &[ListEntry]) {
    // The end of an interval comes before the start of the next at the same key.
    let mut bounds: Vec<(Vec<u8>, bool, Data)> = Vec::new();
    for entry in entries {
        for element in entry.elements() {
            let element = Attributes::of(element.value);
            let flags = element.be32(NFTA_SET_ELEM_FLAGS).unwrap_or_default();
            set.is_dynamic |= may_not_match(&element);
            let data = element.get(NFTA_SET_ELEM_DATA).map_or(Data::None, expr::data);
            let key = |kind| match element.get(kind).map(expr::data) {
                Some(Data::Value(key)) => Some(key),
                _ => None,
            };
            match (key(NFTA_SET_ELEM_KEY), key(NFTA_SET_ELEM_KEY_END)) {
                _ if flags & NFT_SET_ELEM_CATCHALL != 0 => set.catch_all = Some(data),
                (Some(first), Some(last)) => set.elements.push(Element { first, last, data }),
                (Some(first), None) if !set.is_interval || set.parts.len() > 1 => {
                    set.elements.push(Element { last: first.clone(), first, data });
                }
                (Some(bound), None) => bounds.push((bound, flags & NFT_SET_ELEM_INTERVAL_END != 0, data)),
                (None, _) => {}
            }
        }
    }
    bounds.sort_by(|(left, left_ends, _), (right, right_ends, _)| {
        (left, !left_ends).cmp(&(right, !right_ends))
    });
    let mut open: Option<(Vec<u8>, Data)> = None;
    for (bound, is_end, data) in bounds {
        if let Some((first, data)) = open.take() {
            set.elements.push(Element { first, last: before(&bound), data });
        }
        open = (!is_end).then_some((bound, data));
    }
    let to_the_end = |(first, data): (Vec<u8>, Data)| Element { last: vec![0xff; first.len()], first, data };
    set.elements.extend(open.map(to_the_end));
    set.elements.sort_by(|one, other| one.first.cmp(&other.first));
}

/// The key before this one.
fn before(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    for byte in key.iter_mut().rev() {
        let (less, borrows) = byte.overflowing_sub(1);
        *byte = less;
        if !borrows {
            break;
        }
    }
    key
}
