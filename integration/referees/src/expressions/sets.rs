//! The named sets of a rule set.

use super::matches::padded;
use gybe_netfilter::model::ruleset::{Elements, Ruleset};
use std::net::Ipv4Addr;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    pub name: String,
    /// Its id within the batch, by which a rule may refer to it.
    pub id: u32,
    /// nft's number of the elements' type (`enum datatypes`, include/datatype.h of nftables).
    pub key_type: u32,
    /// The length of an element in bytes.
    pub key_length: u32,
    pub holds: SetContent,
    /// The byte order in its user data, which nft reads.
    pub printed: ValueOrder,
    pub elements: Vec<Element>,
}

/// The kind of a set's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetContent {
    Values,
    /// Ranges: each has its first value and, marked as an end, the value after its last.
    Ranges,
}

/// The byte order in which nft prints the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueOrder {
    /// That of their type.
    AsTyped,
    /// Host byte order. Without user data nft prints ids in network byte order.
    HostOrder,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    pub key: Vec<u8>,
    pub bound: Bound,
}

/// The side of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The first value of a range, or a single value.
    Start,
    /// The first value after a range.
    End,
}

/// Returns all sets in the order of the rules that use them.
pub fn sets(rules: &Ruleset) -> Vec<Set> {
    let lists = rules.lists();
    (1..)
        .zip(&lists)
        .map(|(id, list)| {
            let (key_type, key_length, holds, printed) = form(&list.elements);
            let elements = elements(&list.elements);
            Set { name: list.name.clone().into_owned(), id, key_type, key_length, holds, printed, elements }
        })
        .collect()
}

fn form(elements: &Elements<'_>) -> (u32, u32, SetContent, ValueOrder) {
    match elements {
        Elements::V4(_) => (7, 4, SetContent::Ranges, ValueOrder::AsTyped),
        Elements::V6(_) => (8, 16, SetContent::Ranges, ValueOrder::AsTyped),
        Elements::Ports(_) => (13, 2, SetContent::Ranges, ValueOrder::AsTyped),
        Elements::Uids(_) => (24, 4, SetContent::Values, ValueOrder::HostOrder),
        Elements::Gids(_) => (25, 4, SetContent::Values, ValueOrder::HostOrder),
        Elements::Interfaces(_) => (41, 16, SetContent::Values, ValueOrder::HostOrder),
    }
}

fn elements(of: &Elements<'_>) -> Vec<Element> {
    match of {
        Elements::Uids(ids) | Elements::Gids(ids) => values(ids.iter().map(|id| id.to_ne_bytes().to_vec())),
        Elements::Interfaces(names) => values(names.iter().map(padded)),
        Elements::Ports(ports) => ranges(
            ports.ranges().iter().map(|range| {
                let (first, last) = range.bounds();
                (u128::from(first), u128::from(last))
            }),
            2,
        ),
        Elements::V4(nets) => {
            let bits = |address: Ipv4Addr| u128::from(address.to_bits());
            ranges(nets.iter().map(|net| (bits(net.network()), bits(net.broadcast()))), 4)
        }
        Elements::V6(nets) => {
            ranges(nets.iter().map(|net| (net.network().to_bits(), net.broadcast().to_bits())), 16)
        }
    }
}

fn values(keys: impl IntoIterator<Item = Vec<u8>>) -> Vec<Element> {
    keys.into_iter().map(|key| Element { key, bound: Bound::Start }).collect()
}

/// Encodes ranges of keys of so many bytes. Adjacent ranges are merged; a range to the last key has no end.
fn ranges(bounds: impl Iterator<Item = (u128, u128)>, length: usize) -> Vec<Element> {
    let mut sorted: Vec<_> = bounds.collect();
    sorted.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::new();
    for (first, last) in sorted {
        match merged.last_mut() {
            Some((_, end)) if first.saturating_sub(1) <= *end => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    let last_key = u128::MAX >> (128 - 8 * length);
    let key = |value: u128| value.to_be_bytes()[16 - length..].to_vec();
    let element = |value, bound| Element { key: key(value), bound };
    let both = |(first, last)| {
        let end = (last != last_key).then(|| element(last + 1, Bound::End));
        [Some(element(first, Bound::Start)), end]
    };
    merged.into_iter().flat_map(both).flatten().collect()
}
