//! The keys of sets: which types there are, values as ranges of keys, and ranges as text.
//!
//! A key of any type is kept as the 128-bit number that its bytes begin, so that ranges of every
//! type are compared, merged and counted on in one way.

use super::value;
use crate::ruleset::{Elements, v4_ranges, v6_ranges};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The type of a set's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyType {
    Port,
    V4,
    V6,
    Uid,
    Gid,
    Interface,
}

/// Keys from first to last, both included; a single value is both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Range {
    pub(super) first: u128,
    pub(super) last: u128,
}

impl KeyType {
    const ALL: [Self; 6] = [Self::Port, Self::V4, Self::V6, Self::Uid, Self::Gid, Self::Interface];

    /// The type of that list's keys.
    pub(super) fn of(elements: &Elements<'_>) -> Self {
        match elements {
            Elements::Ports(_) => Self::Port,
            Elements::V4(_) => Self::V4,
            Elements::V6(_) => Self::V6,
            Elements::Uids(_) => Self::Uid,
            Elements::Gids(_) => Self::Gid,
            Elements::Interfaces(_) => Self::Interface,
        }
    }

    /// The type that `nft` gives this number.
    pub(super) fn numbered(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.number() == number)
    }

    /// Its number. The kernel only keeps it; `nft` reads it to know how to print keys
    /// (`enum datatypes` in nftables' `include/datatype.h`).
    pub(super) fn number(self) -> u32 {
        match self {
            Self::V4 => 7,
            Self::V6 => 8,
            Self::Port => 13,
            Self::Uid => 24,
            Self::Gid => 25,
            Self::Interface => 41,
        }
    }

    /// Bytes of a key.
    pub(super) fn length(self) -> u8 {
        match self {
            Self::Port => 2,
            Self::V4 | Self::Uid | Self::Gid => 4,
            Self::V6 | Self::Interface => 16,
        }
    }

    /// Do its sets hold intervals? A plain set of ports takes seconds to fill (docs/RULES.md, section 5.3).
    pub(super) fn is_interval(self) -> bool {
        matches!(self, Self::Port | Self::V4 | Self::V6)
    }

    /// Are its keys in the machine's byte order? `nft` has to be told, or it prints 1337 as 956628992
    /// and a name as nothing.
    pub(super) fn is_host_order(self) -> bool {
        matches!(self, Self::Uid | Self::Gid | Self::Interface)
    }

    /// A range of it as people write it.
    pub(super) fn text(self, range: Range) -> String {
        let value = |key: u128| match self {
            Self::Port => (key >> self.shift()).to_string(),
            Self::V4 => {
                Ipv4Addr::from_bits(u32::try_from(key >> self.shift()).unwrap_or_default()).to_string()
            }
            Self::V6 => Ipv6Addr::from_bits(key).to_string(),
            Self::Uid | Self::Gid => {
                let [a, b, c, d, ..] = key.to_be_bytes();
                u32::from_ne_bytes([a, b, c, d]).to_string()
            }
            Self::Interface => {
                let bytes = key.to_be_bytes();
                let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
                name.escape_ascii().to_string()
            }
        };
        match range.first == range.last {
            true => value(range.first),
            false => format!("{}-{}", value(range.first), value(range.last)),
        }
    }

    fn shift(self) -> u32 {
        shift(usize::from(self.length()))
    }
}

/// How far left a key of that many bytes stands in 128 bits.
fn shift(length: usize) -> u32 {
    128_u32.saturating_sub(u32::try_from(length).unwrap_or(16).saturating_mul(8))
}

/// A key's bytes as the number they begin; bytes after the sixteenth do not count.
pub(super) fn number(bytes: &[u8]) -> u128 {
    let mut key = [0; 16];
    for (to, from) in key.iter_mut().zip(bytes) {
        *to = *from;
    }
    u128::from_be_bytes(key)
}

impl Range {
    /// The one key with these bytes.
    pub(super) fn one(bytes: &[u8]) -> Self {
        let key = number(bytes);
        Self { first: key, last: key }
    }

    /// The key after the last; `None` when there is none. `length` is that of a key in bytes.
    pub(super) fn end(self, length: u8) -> Option<u128> {
        self.last.checked_add(1_u128.checked_shl(shift(usize::from(length)))?)
    }

    /// From `first` up to but not including `end`, or to the end of all keys.
    pub(super) fn until(first: u128, end: Option<u128>, length: u8) -> Self {
        let shift = shift(usize::from(length));
        let last = end.map_or(u128::MAX, |end| end.wrapping_sub(1));
        // A key of no bytes, of which no set of the kernel's is, leaves none of them.
        let cut = last.checked_shr(shift).and_then(|kept| kept.checked_shl(shift));
        Self { first, last: cut.unwrap_or_default() }
    }
}

/// The elements as ranges of keys, ascending.
pub(super) fn ranges(elements: &Elements<'_>) -> Vec<Range> {
    let shift = KeyType::of(elements).shift();
    let between = |first: u128, last: u128| Range { first: first << shift, last: last << shift };
    let mut all: Vec<Range> = match elements {
        Elements::Ports(ports) => {
            let bounds = ports.ranges().iter().map(|range| range.bounds());
            bounds.map(|(first, last)| between(first.into(), last.into())).collect()
        }
        Elements::V4(nets) => {
            let ranges = v4_ranges(nets).into_iter();
            ranges.map(|r| between(r.start().to_bits().into(), r.end().to_bits().into())).collect()
        }
        Elements::V6(nets) => {
            let ranges = v6_ranges(nets).into_iter();
            ranges.map(|r| between(r.start().to_bits(), r.end().to_bits())).collect()
        }
        Elements::Uids(ids) | Elements::Gids(ids) => {
            ids.iter().map(|id| Range::one(&id.to_ne_bytes())).collect()
        }
        Elements::Interfaces(names) => names.iter().map(|name| Range::one(&value::interface(name))).collect(),
    };
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_before_the_key_that_ends_it() {
        let port = |number: u128| number << 112;
        assert_eq!(Range::until(port(80), Some(port(90)), 2), Range { first: port(80), last: port(89) });
        assert_eq!(Range::until(port(80), None, 2).last, port(0xffff));
        assert_eq!(Range::until(0, None, 0), Range { first: 0, last: 0 }, "a key of no bytes");
    }
}
