//! The values of a packet that rules distinguish: for each property one value of every region between the bounds of
//! rules. `rules` reads the tests from rules.

mod rules;

use crate::inspect::walk::Budget;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The greatest product of candidates and tests of one property.
const MAX_TESTED: usize = 10_000_000;
/// The most tests and ranges that are stored.
const MAX_STORED: usize = 200_000;
/// How many candidates one range has at most.
const CANDIDATES: usize = 5;
/// The most candidates of one property.
const MAX_CANDIDATES: usize = CANDIDATES * MAX_STORED;
/// Tests of a number that take as long as a step of a walk.
const TESTED_PER_STEP: usize = 8;

/// A property of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Property {
    SourceV4,
    SourceV6,
    DestinationV4,
    DestinationV6,
    SourcePort,
    DestinationPort,
    Uid,
    Gid,
    Mark,
}

impl Property {
    /// The length in bytes.
    pub(super) fn length(self) -> usize {
        match self {
            Self::SourceV6 | Self::DestinationV6 => 16,
            Self::SourcePort | Self::DestinationPort => 2,
            Self::SourceV4 | Self::DestinationV4 | Self::Uid | Self::Gid | Self::Mark => 4,
        }
    }

    fn greatest(self) -> u128 {
        u128::MAX >> (128 - 8 * self.length())
    }

    /// No connection has port 0.
    fn least(self) -> u128 {
        u128::from(matches!(self, Self::SourcePort | Self::DestinationPort))
    }

    fn source(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::SourceV4 } else { Self::SourceV6 }
    }

    fn destination(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::DestinationV4 } else { Self::DestinationV6 }
    }
}

/// A test of one property.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    property: Property,
    /// The tested bits.
    mask: u128,
    /// Values from first to last, sorted, none touching the next.
    ranges: Vec<(u128, u128)>,
}

impl Test {
    fn passes(&self, value: u128) -> bool {
        let value = value & self.mask;
        let after = self.ranges.partition_point(|(first, _)| *first <= value);
        after.checked_sub(1).and_then(|at| self.ranges.get(at)).is_some_and(|(_, last)| value <= *last)
    }
}

/// The first port that clients choose from by default (`ip_local_port_range`).
const EPHEMERAL: u128 = 32_768;

/// All tests that rules make.
#[derive(Debug, Default)]
pub(super) struct Values {
    tests: BTreeSet<Test>,
    /// The number of tests and their ranges, also of those beyond [`MAX_STORED`].
    stored: usize,
    /// The rule that is read is another owner's. It may be meant for replies, which have the ports of the
    /// first packet exchanged.
    may_match_replies: bool,
    /// Names of interfaces.
    pub(super) interfaces: BTreeSet<String>,
    /// Comparisons whose values are not tried, one sentence each.
    pub(super) not_evaluated: Vec<String>,
}

/// An address as a number.
pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Values {
    fn test(&mut self, property: Property, mask: u128, mut ranges: Vec<(u128, u128)>) {
        let greatest = property.greatest();
        let cleared = greatest & !mask;
        // The network of a prefix is a range.
        let mask = match cleared.wrapping_add(1).count_ones() {
            0 | 1 => {
                ranges.iter_mut().for_each(|(_, last)| *last |= cleared);
                greatest
            }
            _ => mask,
        };
        let ranges = merged(ranges);
        match property {
            // A drop of port 22 loses no reply: clients do not connect from such a port.
            Property::DestinationPort if self.may_match_replies && mask == greatest => {
                let of_clients = ranges.iter().filter(|(_, last)| *last >= EPHEMERAL);
                let of_clients: Vec<_> =
                    of_clients.map(|(first, last)| (*first.max(&EPHEMERAL), *last)).collect();
                if !of_clients.is_empty() {
                    self.insert(Test { property: Property::SourcePort, mask, ranges: of_clients });
                }
            }
            Property::SourcePort if self.may_match_replies => {
                let ranges = ranges.clone();
                self.insert(Test { property: Property::DestinationPort, mask, ranges });
            }
            _ => {}
        }
        self.insert(Test { property, mask, ranges });
    }

    fn insert(&mut self, test: Test) {
        if self.tests.contains(&test) {
            return;
        }
        self.stored = self.stored.saturating_add(1 + test.ranges.len());
        if self.stored <= MAX_STORED {
            self.tests.insert(test);
        }
    }

    fn ranges(&mut self, property: Property, ranges: Vec<(u128, u128)>) {
        self.test(property, property.greatest(), ranges);
    }

    /// One value of every region, those of `first` before others of their region. Values of different `kind` are
    /// of different regions. `None` when there are too many to compute.
    pub(super) fn of(
        &self,
        property: Property,
        first: &[u128],
        kind: impl Fn(u128) -> u8,
        budget: &Budget,
    ) -> Option<Vec<u128>> {
        let tests: Vec<&Test> = self.tests.iter().filter(|test| test.property == property).collect();
        let (least, greatest) = (property.least(), property.greatest());
        let is_bounded = |candidates: usize| {
            let tested = candidates.saturating_mul(tests.len());
            candidates <= MAX_CANDIDATES && tested <= MAX_TESTED && budget.spend(tested / TESTED_PER_STEP)
        };
        let ranges: usize = tests.iter().map(|test| test.ranges.len()).sum();
        if self.stored > MAX_STORED || !is_bounded(first.len() + CANDIDATES * ranges) {
            return None;
        }
        let mut candidates: Vec<u128> = first.to_vec();
        for test in &tests {
            for (low, high) in &test.ranges {
                let beyond = [low.checked_sub(1), high.checked_add(1).filter(|value| *value <= greatest)];
                candidates.extend([(*low).max(least), *high, *low | (greatest & !test.mask)]);
                candidates.extend(beyond.into_iter().flatten());
            }
        }
        candidates.retain(|value| *value >= least);
        let region = |value: &u128| {
            let passed: Vec<bool> = tests.iter().map(|test| test.passes(*value)).collect();
            (kind(*value), passed)
        };
        let one_of_each = |candidates: &mut Vec<u128>| {
            let mut regions = BTreeSet::new();
            candidates.retain(|value| regions.insert(region(value)));
        };
        one_of_each(&mut candidates);
        // Masks combine: each value also with and without the bits of each mask.
        for test in tests.iter().filter(|test| test.mask != greatest) {
            let lowest_bit = test.mask & test.mask.wrapping_neg();
            let patterns = 3 * test.ranges.len();
            if !is_bounded(candidates.len().saturating_mul(1 + patterns)) {
                return None;
            }
            let patterns = test.ranges.iter().flat_map(|(low, high)| [*low, *high, *low ^ lowest_bit]);
            let combined: Vec<u128> = patterns
                .flat_map(|bits| {
                    candidates.iter().map(move |value| (value & !test.mask) | (bits & test.mask))
                })
                .filter(|value| *value >= least)
                .collect();
            candidates.extend(combined);
            one_of_each(&mut candidates);
        }
        Some(candidates)
    }
}

/// Sorts the ranges, and merges those that overlap or touch.
fn merged(mut ranges: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::new();
    for (first, last) in ranges.into_iter().filter(|(first, last)| first <= last) {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged
}

#[cfg(test)]
mod tests;
