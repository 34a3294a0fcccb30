//! The named sets of a rule set, in the kernel's words.

use super::matches::padded;
use gybe_netfilter::ruleset::{Elements, Ruleset, v4_ranges, v6_ranges};

/// A named set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
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
    /// Which way round nft prints its numbers.
    pub order: ByteOrder,
    /// What is in it.
    pub elements: Vec<Element>,
}

/// What a set is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Values, each for itself.
    Values,
    /// Ranges: each is its first value and, marked as an end, the one after its last.
    Ranges,
}

/// The byte order of a set's elements, as nft keeps it in the set's user data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// The machine's.
    Host,
    /// The wire's.
    Network,
}

impl ByteOrder {
    /// nft's number for it (`enum byteorder`, include/datatype.h of nftables).
    pub fn number(self) -> u32 {
        match self {
            Self::Host => 1,
            Self::Network => 2,
        }
    }
}

/// One element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// Its bytes.
    pub key: Vec<u8>,
    /// Is it where a range begins (or a value), or the first value after one?
    pub bound: Bound,
}

/// Which side of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The range begins here.
    Start,
    /// It has ended before here.
    End,
}

/// All sets, in the order of the rules that use them.
pub fn sets(rules: &Ruleset) -> Vec<Set> {
    let lists = rules.lists();
    (1..)
        .zip(&lists)
        .map(|(id, list)| {
            let (key_type, key_length, holds, order) = form(&list.elements);
            let elements = elements(&list.elements);
            Set { name: list.name.clone().into_owned(), id, key_type, key_length, holds, order, elements }
        })
        .collect()
}

fn form(elements: &Elements<'_>) -> (u32, u32, Holds, ByteOrder) {
    match elements {
        Elements::V4(_) => (7, 4, Holds::Ranges, ByteOrder::Network),
        Elements::V6(_) => (8, 16, Holds::Ranges, ByteOrder::Network),
        Elements::TcpAndUdp => (12, 1, Holds::Values, ByteOrder::Network),
        Elements::Ports(_) => (13, 2, Holds::Ranges, ByteOrder::Network),
        Elements::Uids(_) => (34, 4, Holds::Values, ByteOrder::Host),
        Elements::Gids(_) => (35, 4, Holds::Values, ByteOrder::Host),
        Elements::Interfaces(_) => (41, 16, Holds::Values, ByteOrder::Host),
    }
}

fn elements(of: &Elements<'_>) -> Vec<Element> {
    match of {
        Elements::TcpAndUdp => values([vec![6], vec![17]]),
        Elements::Uids(ids) | Elements::Gids(ids) => values(ids.iter().map(|id| id.to_ne_bytes().to_vec())),
        Elements::Interfaces(names) => values(names.iter().map(padded)),
        Elements::Ports(ports) => ranges(ports.ranges().iter().map(|range| {
            let (first, last) = range.bounds();
            (first.to_be_bytes().to_vec(), last.checked_add(1).map(|after| after.to_be_bytes().to_vec()))
        })),
        Elements::V4(nets) => ranges(v4_ranges(nets).iter().map(|range| {
            let after = range.end().to_bits().checked_add(1);
            (range.start().octets().to_vec(), after.map(|after| after.to_be_bytes().to_vec()))
        })),
        Elements::V6(nets) => ranges(v6_ranges(nets).iter().map(|range| {
            let after = range.end().to_bits().checked_add(1);
            (range.start().octets().to_vec(), after.map(|after| after.to_be_bytes().to_vec()))
        })),
    }
}

fn values(keys: impl IntoIterator<Item = Vec<u8>>) -> Vec<Element> {
    keys.into_iter().map(|key| Element { key, bound: Bound::Start }).collect()
}

/// A range that reaches the last value there is has no end.
fn ranges(bounds: impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)>) -> Vec<Element> {
    bounds
        .flat_map(|(first, after)| {
            let start = Element { key: first, bound: Bound::Start };
            let end = after.map(|key| Element { key, bound: Bound::End });
            [Some(start), end]
        })
        .flatten()
        .collect()
}
