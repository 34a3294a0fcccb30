//! The keys of sets: their types, conversion of values to key ranges, and ranges as text.
//!
//! A key is stored as a 128-bit big-endian number with the key's bytes first and zeros after them, so that the same
//! code compares and merges ranges of every type.

use super::expr::interface;
use crate::model::ruleset::{Elements, v4_ranges, v6_ranges};
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

/// The keys from `first` to `last`, both included; equal for a single value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyRange {
    pub(super) first: u128,
    pub(super) last: u128,
}

impl KeyType {
    const ALL: [Self; 6] = [Self::Port, Self::V4, Self::V6, Self::Uid, Self::Gid, Self::Interface];

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

    /// Returns the type with this number in `nft`.
    pub(super) fn numbered(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.number() == number)
    }

    /// The type's number in `nft` (`enum datatypes` in nftables' `include/datatype.h`). The kernel stores it without
    /// using it; `nft` prints keys by it.
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

    /// The length of a key in bytes.
    pub(super) fn length(self) -> u8 {
        match self {
            Self::Port => 2,
            Self::V4 | Self::Uid | Self::Gid => 4,
            Self::V6 | Self::Interface => 16,
        }
    }

    /// Reports whether sets of this type hold intervals. Filling a set of single ports takes seconds (docs/RULES.md,
    /// section 5.3).
    pub(super) fn is_interval(self) -> bool {
        matches!(self, Self::Port | Self::V4 | Self::V6)
    }

    /// Reports whether keys are in host byte order. The set's user data must state it: without it, `nft` prints 1337 as
    /// 956628992 and an interface name as an empty string.
    pub(super) fn is_host_order(self) -> bool {
        matches!(self, Self::Uid | Self::Gid | Self::Interface)
    }

    /// Formats a range as `nft` prints it, such as `80-90`.
    pub(super) fn text(self, range: KeyRange) -> String {
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

/// The number of zero bits after a key of `length` bytes in its 128-bit number.
fn shift(length: usize) -> u32 {
    128_u32.saturating_sub(u32::try_from(length).unwrap_or(16).saturating_mul(8))
}

/// Returns the 128-bit number of a key. Bytes after the sixteenth are ignored.
pub(super) fn number(bytes: &[u8]) -> u128 {
    let mut key = [0; 16];
    for (to, from) in key.iter_mut().zip(bytes) {
        *to = *from;
    }
    u128::from_be_bytes(key)
}

impl KeyRange {
    /// The range of the single key with these bytes.
    pub(super) fn one(bytes: &[u8]) -> Self {
        let key = number(bytes);
        Self { first: key, last: key }
    }

    /// Returns the key after `last`, or `None` when `last` is the greatest key. `length`: of a key, in bytes.
    pub(super) fn end(self, length: u8) -> Option<u128> {
        self.last.checked_add(1_u128.checked_shl(shift(usize::from(length)))?)
    }

    /// The range from `first` to the key before `end`; without an `end`, to the greatest key. `length`: of a key, in
    /// bytes.
    pub(super) fn until(first: u128, end: Option<u128>, length: u8) -> Self {
        let shift = shift(usize::from(length));
        let last = end.map_or(u128::MAX, |end| end.wrapping_sub(1));
        // A length of 0, which no set of the kernel has, shifts by all 128 bits.
        let cut = last.checked_shr(shift).and_then(|kept| kept.checked_shl(shift));
        Self { first, last: cut.unwrap_or_default() }
    }
}

/// Returns the key ranges of the elements, ascending.
pub(super) fn ranges(elements: &Elements<'_>) -> Vec<KeyRange> {
    let shift = KeyType::of(elements).shift();
    let between = |first: u128, last: u128| KeyRange { first: first << shift, last: last << shift };
    let mut all: Vec<KeyRange> = match elements {
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
            ids.iter().map(|id| KeyRange::one(&id.to_ne_bytes())).collect()
        }
        Elements::Interfaces(names) => names.iter().map(|name| KeyRange::one(&interface(name))).collect(),
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
        assert_eq!(
            KeyRange::until(port(80), Some(port(90)), 2),
            KeyRange { first: port(80), last: port(89) }
        );
        assert_eq!(KeyRange::until(port(80), None, 2).last, port(0xffff));
        assert_eq!(KeyRange::until(0, None, 0), KeyRange { first: 0, last: 0 }, "a key of no bytes");
    }
}
