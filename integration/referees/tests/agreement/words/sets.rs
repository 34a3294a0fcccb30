//! The named sets of a rule set, in the kernel's words.

use super::matches::padded;
use gybe_netfilter::ruleset::{Elements, Ruleset};
use std::net::Ipv4Addr;

/// A named set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Set {
    /// Its name.
    pub name: String,
    /// Its number within one batch, by which a rule may refer to it.
    pub id: u32,
    /// nft's number for the type of its elements (`enum datatypes`, include/datatype.h of nftables).
    pub key_type: u32,
    /// Bytes of an element.
    pub key_length: u32,
    /// Does it hold ranges, or single values?
    pub holds: Holds,
    /// What its user data tell nft.
    pub printed: Printed,
    /// What is in it.
    pub elements: Vec<Element>,
}

/// What a set is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Values, each for itself.
    Values,
    /// Ranges: each is its first value and, marked as an end, the one after its last.
    Ranges,
}

/// How nft prints the elements of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Printed {
    /// As their type says.
    AsTyped,
    /// As numbers of this machine. nft takes ids for numbers of the wire unless user data tell.
    HostOrder,
}

/// One element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Element {
    /// Its bytes.
    pub key: Vec<u8>,
    /// Is it where a range begins (or a value), or the first value after one?
    pub bound: Bound,
}

/// Which side of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    /// The range begins here.
    Start,
    /// It has ended before here.
    End,
}

/// All sets, in the order of the rules that use them.
pub(crate) fn sets(rules: &Ruleset) -> Vec<Set> {
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

fn form(elements: &Elements<'_>) -> (u32, u32, Holds, Printed) {
    match elements {
        Elements::V4(_) => (7, 4, Holds::Ranges, Printed::AsTyped),
        Elements::V6(_) => (8, 16, Holds::Ranges, Printed::AsTyped),
        Elements::Ports(_) => (13, 2, Holds::Ranges, Printed::AsTyped),
        Elements::Uids(_) => (24, 4, Holds::Values, Printed::HostOrder),
        Elements::Gids(_) => (25, 4, Holds::Values, Printed::HostOrder),
        Elements::Interfaces(_) => (41, 16, Holds::Values, Printed::HostOrder),
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

/// Ranges of keys of so many bytes. What touches becomes one; what reaches the last key has no end.
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
