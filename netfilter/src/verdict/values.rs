//! The values that rules tell apart: for each property of a packet one of every region between the
//! bounds that any rule names.

use super::parts::parts;
use crate::live::rules::expr::{Data, Expr};
use crate::live::rules::{
    Component, Field, LiveChain, LiveRule, NamespaceRules, Set, Statement, Symbols, TableFamily, place,
};
use crate::policy::PortRange;
use crate::ruleset::{Match, Networks, Ruleset};
use crate::xt::{ConntrackTest, IdTest, PortEnd, XtMatch};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// More candidates times tests of one property than this are not computed.
const MOST_TESTED: usize = 10_000_000;

/// `NFT_CMP_LT` and every operator behind it ask which of two values is greater.
const FIRST_ORDER: u32 = 2;

/// How many comparisons that cannot be evaluated are named.
const NAMED: usize = 5;

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
    /// In bytes.
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
    /// Bits that count.
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

/// All tests that rules make.
#[derive(Debug, Default)]
pub(super) struct Values {
    tests: BTreeSet<Test>,
    /// Names of interfaces.
    pub(super) interfaces: BTreeSet<String>,
    /// Comparisons whose values are not tried, one sentence each.
    pub(super) not_evaluated: Vec<String>,
}

/// As a number that is compared with others of its kind.
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
        self.tests.insert(Test { property, mask, ranges: merged(ranges) });
    }

    fn ranges(&mut self, property: Property, ranges: Vec<(u128, u128)>) {
        self.test(property, property.greatest(), ranges);
    }

    /// One value of every region, `first` among them where it has one of its own. `kind` tells apart what
    /// no rule does.
    /// `None` when they are too many to compute.
    pub(super) fn of(
        &self,
        property: Property,
        first: &[u128],
        kind: impl Fn(u128) -> u8,
    ) -> Option<Vec<u128>> {
        let tests: Vec<&Test> = self.tests.iter().filter(|test| test.property == property).collect();
        let (least, greatest) = (property.least(), property.greatest());
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
            let is_bounded = candidates.len().saturating_mul(tests.len()) <= MOST_TESTED;
            let mut regions = BTreeSet::new();
            is_bounded.then(|| candidates.retain(|value| regions.insert(region(value))))
        };
        one_of_each(&mut candidates)?;
        // Single bits combine: each value also with and without the bits of each mask.
        for test in tests.iter().filter(|test| test.mask != greatest) {
            let lowest_bit = test.mask & test.mask.wrapping_neg();
            let patterns = test.ranges.iter().flat_map(|(low, high)| [*low, *high, *low ^ lowest_bit]);
            let combined: Vec<u128> = patterns
                .flat_map(|bits| {
                    candidates.iter().map(move |value| (value & !test.mask) | (bits & test.mask))
                })
                .take(MOST_TESTED)
                .filter(|value| *value >= least)
                .collect();
            candidates.extend(combined);
            one_of_each(&mut candidates)?;
        }
        Some(candidates)
    }

    /// The tests of the desired rules.
    pub(super) fn add_desired(&mut self, rules: &Ruleset) {
        for (_, rule) in rules.rules() {
            for test in &rule.matches {
                self.add_match(test);
            }
        }
    }

    fn add_match(&mut self, test: &Match) {
        let ids = |ids: &BTreeSet<u32>| ids.iter().map(|id| (u128::from(*id), u128::from(*id))).collect();
        let ports = |ports: &[PortRange]| ports.iter().map(|range| bounds(*range)).collect();
        match test {
            Match::Source(_, nets) => {
                let (property, ranges) = networks(nets, [Property::SourceV4, Property::SourceV6]);
                self.ranges(property, ranges);
            }
            Match::Destination(_, nets) => {
                let (property, ranges) = networks(nets, [Property::DestinationV4, Property::DestinationV6]);
                self.ranges(property, ranges);
            }
            Match::SourcePort(_, set) => self.ranges(Property::SourcePort, ports(set.ranges())),
            Match::DestinationPort(_, set) => self.ranges(Property::DestinationPort, ports(set.ranges())),
            Match::OwnerUid(set) => self.ranges(Property::Uid, ids(set)),
            Match::OwnerGid(set) => self.ranges(Property::Gid, ids(set)),
            Match::Mark(_, mark) => self.ranges(Property::Mark, vec![((*mark).into(), (*mark).into())]),
            Match::InInterface(names) | Match::OutInterface(names) => {
                self.interfaces.extend(names.iter().map(|name| name.as_str().to_owned()));
            }
            Match::Family(_) | Match::Protocol(_) | Match::ConnectionMark(_) | Match::State(_) => {}
        }
    }

    /// The tests of all rules that are there.
    pub(super) fn add_observed(&mut self, ns: &NamespaceRules) {
        for chain in &ns.chains {
            for rule in &chain.rules {
                self.add_rule(ns, chain, rule);
            }
        }
    }

    fn add_rule(&mut self, ns: &NamespaceRules, chain: &LiveChain, rule: &LiveRule) {
        let mut registers = Registers { symbols: Symbols::default(), family: chain.table.family };
        let mut all_read = true;
        for statement in &rule.statements {
            match statement {
                Statement::Expr(Expr::Lookup { set, at, .. }) => {
                    if let Some(set) = ns.set(&chain.table, set) {
                        all_read &= self.add_set(set, *at, &registers);
                    }
                }
                Statement::Expr(Expr::Match(test)) | Statement::Match(test) => self.add_xt(test),
                Statement::Expr(expr) => all_read &= self.add_expr(expr, &registers),
                Statement::Header(header) => {
                    for test in [
                        header.source.map(|test| (Property::source(test.address), test)),
                        header.destination.map(|test| (Property::destination(test.address), test)),
                    ]
                    .into_iter()
                    .flatten()
                    {
                        let (property, test) = test;
                        let (value, mask) = (number(test.address), number(test.mask));
                        self.test(property, mask, vec![(value & mask, value & mask)]);
                    }
                    let interfaces = [&header.in_interface, &header.out_interface];
                    self.interfaces.extend(interfaces.into_iter().flatten().map(|test| test.name.clone()));
                }
                Statement::Target(_) => {}
            }
            if let Statement::Expr(expr) = statement {
                registers.symbols.note(expr);
            }
        }
        let counts = !all_read && rule.statements.iter().any(Statement::acts);
        if counts && self.not_evaluated.len() < NAMED {
            let place = place(chain);
            self.not_evaluated.push(format!("a comparison that is not evaluated: {place}: {}", rule.text));
        }
    }

    /// Reports whether the values that the expression tells apart are known.
    fn add_expr(&mut self, expr: &Expr, registers: &Registers) -> bool {
        let (at, bounds) = match expr {
            Expr::Compare { op, at, value } if *op >= FIRST_ORDER => (*at, Bounds::Order(value)),
            Expr::Compare { at, value, .. } => (*at, Bounds::Ranges(vec![(value, value)])),
            Expr::Range { at, first, last, .. } => (*at, Bounds::Ranges(vec![(first, last)])),
            _ => return true,
        };
        let component = registers.symbols.field(at);
        component.is_some_and(|component| self.add_component(component, &bounds, registers.family))
    }

    fn add_set(&mut self, set: &Set, at: usize, registers: &Registers) -> bool {
        let key = registers.symbols.key(at, set.key_length, &set.parts);
        let (mut from, mut all_read) = (0, true);
        for (length, component) in &key {
            let part = |bytes: &'_ [u8]| bytes.get(from..from + length).unwrap_or_default().to_vec();
            let bounds: Vec<_> = set.elements.iter().map(|one| (part(&one.first), part(&one.last))).collect();
            // Elements with the same data need not be told apart. Of a key of several parts which values go
            // with which counts, so each is told apart.
            let mut groups: BTreeMap<(usize, &Data), Vec<Range<'_>>> = BTreeMap::new();
            for (index, (element, (first, last))) in set.elements.iter().zip(&bounds).enumerate() {
                let apart = if key.len() == 1 { 0 } else { index };
                groups.entry((apart, &element.data)).or_default().push((first, last));
            }
            for ranges in groups.into_values() {
                let add =
                    |one: &Component| self.add_component(one, &Bounds::Ranges(ranges), registers.family);
                all_read &= component.is_some_and(add);
            }
            from += length.next_multiple_of(4);
        }
        all_read
    }

    /// Reports whether it is known which values the comparison tells apart.
    fn add_component(&mut self, component: &Component, bounds: &Bounds<'_>, family: TableFamily) -> bool {
        if matches!(component.field, Field::InInterface | Field::OutInterface) {
            let name = |bytes: &[u8]| {
                let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
                String::from_utf8_lossy(name).into_owned()
            };
            self.interfaces.extend(bounds.all().into_iter().map(|(first, _)| name(first)));
            return true;
        }
        let parts = parts(component, family);
        let is_little = component.is_host_order != component.is_swapped && cfg!(target_endian = "little");
        let is_by_value = matches!(bounds, Bounds::Ranges(ranges) if ranges.iter().all(|(a, b)| a == b));
        // The kernel compares bytes: of a number in the other order that tells nothing of its size.
        let is_read = !component.is_inverted
            && (is_by_value || !is_little)
            && (parts.len() == 1 || !component.is_swapped);
        if parts.is_empty() || !is_read {
            // Of what is no property here, the walk tries every value.
            return parts.is_empty();
        }
        for part in &parts {
            let read = |bytes: &[u8]| part.read(bytes, is_little);
            let mask = component.mask.as_ref();
            let (greatest, all) = (part.property.greatest(), vec![0xff; component.length]);
            let compared = bounds.all().first().map_or(0, |(first, _)| first.len());
            let counts = mask.unwrap_or(&all).get(..compared).or(mask.map(Vec::as_slice)).unwrap_or(&all);
            let Some(mask) = read(counts) else { continue };
            let pairs = bounds.all().into_iter();
            let values: Vec<_> = pairs.filter_map(|(a, b)| Some((read(a)?, read(b)?))).collect();
            match bounds {
                Bounds::Ranges(_) if parts.len() == 1 || is_by_value && values.len() == 1 => {
                    self.test(part.property, mask, values);
                }
                // Of several parts the first that differs decides: each bound is a value of its own.
                _ => {
                    for bound in values.into_iter().flat_map(|(first, last)| [first, last]) {
                        self.test(part.property, mask, vec![(0, bound)]);
                        self.test(part.property, mask, vec![(bound, greatest)]);
                    }
                }
            }
        }
        true
    }

    fn add_xt(&mut self, test: &XtMatch) {
        let id = |id: IdTest| vec![(u128::from(id.first), u128::from(id.last))];
        match test {
            XtMatch::Tcp(test) => self.ports(test.source.range, test.destination.range),
            XtMatch::Udp(test) => self.ports(test.source.range, test.destination.range),
            XtMatch::Multiport(test) => {
                let ranges: Vec<_> = test.ports.iter().map(|range| bounds(*range)).collect();
                if test.end != PortEnd::Destination {
                    self.ranges(Property::SourcePort, ranges.clone());
                }
                if test.end != PortEnd::Source {
                    self.ranges(Property::DestinationPort, ranges);
                }
            }
            XtMatch::Owner(test) => {
                test.uid.into_iter().for_each(|uid| self.ranges(Property::Uid, id(uid)));
                test.gid.into_iter().for_each(|gid| self.ranges(Property::Gid, id(gid)));
            }
            XtMatch::Mark(test) | XtMatch::ConnectionMark(test) => {
                let value = u128::from(test.value);
                self.test(Property::Mark, test.mask.into(), vec![(value, value)]);
            }
            XtMatch::IpRange(test) => {
                if let Some((_, [first, last])) = test.source {
                    self.ranges(Property::source(first), vec![(number(first), number(last))]);
                }
                if let Some((_, [first, last])) = test.destination {
                    self.ranges(Property::destination(first), vec![(number(first), number(last))]);
                }
            }
            XtMatch::Conntrack(test) => test.tests.iter().for_each(|test| self.connection(test)),
            XtMatch::AddressType(_) => {
                // 224.0.0.0/4 and ff00::/8.
                self.test(Property::DestinationV4, 0xf << 28, vec![(0xe << 28, 0xe << 28)]);
                self.test(Property::DestinationV6, 0xff << 120, vec![(0xff << 120, 0xff << 120)]);
            }
            _ => {}
        }
    }

    fn connection(&mut self, test: &ConntrackTest) {
        match test {
            ConntrackTest::Address { address, mask, .. } => {
                let (value, mask) = (number(*address) & number(*mask), number(*mask));
                for property in [Property::source(*address), Property::destination(*address)] {
                    self.test(property, mask, vec![(value, value)]);
                }
            }
            ConntrackTest::Port { range, .. } => self.ports(*range, *range),
            _ => {}
        }
    }

    fn ports(&mut self, source: PortRange, destination: PortRange) {
        self.ranges(Property::SourcePort, vec![bounds(source)]);
        self.ranges(Property::DestinationPort, vec![bounds(destination)]);
    }
}

/// First and last value.
type Range<'b> = (&'b [u8], &'b [u8]);

/// What the registers of a rule hold, and the family of its table.
struct Registers {
    symbols: Symbols,
    family: TableFamily,
}

/// What a value is compared with.
enum Bounds<'b> {
    /// Inside any of these or outside; first and last may be the same.
    Ranges(Vec<Range<'b>>),
    /// Below, at or above.
    Order(&'b [u8]),
}

impl<'b> Bounds<'b> {
    fn all(&self) -> Vec<Range<'b>> {
        match self {
            Self::Ranges(ranges) => ranges.clone(),
            Self::Order(value) => vec![(value, value)],
        }
    }
}

/// Sorted, and those that overlap or touch as one.
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

fn bounds(range: PortRange) -> (u128, u128) {
    let (first, last) = range.bounds();
    (first.into(), last.into())
}

fn networks(nets: &Networks, [v4, v6]: [Property; 2]) -> (Property, Vec<(u128, u128)>) {
    match nets {
        Networks::V4(nets) => {
            let range =
                |net: &ipnet::Ipv4Net| (net.network().to_bits().into(), net.broadcast().to_bits().into());
            (v4, nets.iter().map(range).collect())
        }
        Networks::V6(nets) => {
            let range = |net: &ipnet::Ipv6Net| (net.network().to_bits(), net.broadcast().to_bits());
            (v6, nets.iter().map(range).collect())
        }
    }
}

#[cfg(test)]
mod tests;
