//! The values that rules tell apart: for each property of a packet one of every region between the
//! bounds that any rule names.

use crate::observed::expr::Expr;
use crate::observed::{Component, Field, Observed, Set, Statement, Symbols};
use crate::policy::PortRange;
use crate::ruleset::{Match, Networks, Ruleset};
use crate::xt::{ConntrackTest, IdTest, PortEnd, XtMatch};
use std::collections::BTreeSet;
use std::net::IpAddr;

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
    fn bits(self) -> u32 {
        match self {
            Self::SourceV6 | Self::DestinationV6 => 128,
            Self::SourcePort | Self::DestinationPort => 16,
            Self::SourceV4 | Self::DestinationV4 | Self::Uid | Self::Gid | Self::Mark => 32,
        }
    }

    fn greatest(self) -> u128 {
        u128::MAX >> (128 - self.bits())
    }

    fn source(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::SourceV4 } else { Self::SourceV6 }
    }

    fn destination(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::DestinationV4 } else { Self::DestinationV6 }
    }
}

/// A test of one property.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Test {
    property: Property,
    /// Bits that count.
    mask: u128,
    /// Values from first to last.
    ranges: Vec<(u128, u128)>,
}

impl Test {
    fn passes(&self, value: u128) -> bool {
        let value = value & self.mask;
        self.ranges.iter().any(|(first, last)| *first <= value && value <= *last)
    }
}

/// All tests that rules make.
#[derive(Debug, Default)]
pub(super) struct Values {
    tests: Vec<Test>,
    /// Names of interfaces.
    pub(super) interfaces: BTreeSet<String>,
}

/// As a number that is compared with others of its kind.
pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Values {
    /// Adds a test, unless the same is there.
    fn test(&mut self, property: Property, mask: u128, ranges: Vec<(u128, u128)>) {
        let test = Test { property, mask, ranges };
        if !self.tests.contains(&test) {
            self.tests.push(test);
        }
    }

    fn ranges(&mut self, property: Property, ranges: Vec<(u128, u128)>) {
        self.test(property, property.greatest(), ranges);
    }

    /// One value of every region, `first` among them where it has one of its own. `kind` tells apart what
    /// no rule does.
    pub(super) fn of(&self, property: Property, first: &[u128], kind: impl Fn(u128) -> u8) -> Vec<u128> {
        let tests: Vec<&Test> = self.tests.iter().filter(|test| test.property == property).collect();
        let greatest = property.greatest();
        let mut candidates: Vec<u128> = first.to_vec();
        for test in &tests {
            for (low, high) in &test.ranges {
                let beyond = [low.checked_sub(1), high.checked_add(1).filter(|value| *value <= greatest)];
                candidates.extend([*low, *high, *low | (greatest & !test.mask)]);
                candidates.extend(beyond.into_iter().flatten());
            }
        }
        let mut seen = BTreeSet::new();
        let region = |value: &u128| {
            let passed: Vec<bool> = tests.iter().map(|test| test.passes(*value)).collect();
            (kind(*value), passed)
        };
        candidates.retain(|value| seen.insert(region(value)));
        candidates
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
    pub(super) fn add_observed(&mut self, ns: &Observed) {
        for chain in &ns.chains {
            for rule in &chain.rules {
                let mut symbols = Symbols::default();
                for statement in &rule.statements {
                    match statement {
                        Statement::Expr(Expr::Lookup { set, at, .. }) => {
                            if let Some(set) = ns.set(&chain.table, set) {
                                self.add_set(set, *at, &symbols);
                            }
                        }
                        Statement::Expr(Expr::Match(test)) | Statement::Match(test) => self.add_xt(test),
                        Statement::Expr(expr) => self.add_expr(expr, &symbols),
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
                            self.interfaces
                                .extend(interfaces.into_iter().flatten().map(|test| test.name.clone()));
                        }
                        Statement::Target(_) => {}
                    }
                    if let Statement::Expr(expr) = statement {
                        symbols.note(expr);
                    }
                }
            }
        }
    }

    fn add_expr(&mut self, expr: &Expr, symbols: &Symbols) {
        let (at, first, last) = match expr {
            Expr::Compare { at, value, .. } => (*at, value, value),
            Expr::Range { at, first, last, .. } => (*at, first, last),
            _ => return,
        };
        if let Some(field) = symbols.field(at) {
            self.add_field(field, &[(first, last)]);
        }
    }

    fn add_set(&mut self, set: &Set, at: usize, symbols: &Symbols) {
        let key = symbols.key(at, set.key_length, &set.parts);
        let mut from = 0;
        for (length, field) in &key {
            let part = |bytes: &[u8]| bytes.get(from..from + length).unwrap_or_default().to_vec();
            let bounds: Vec<_> = set.elements.iter().map(|one| (part(&one.first), part(&one.last))).collect();
            if let Some(field) = field {
                match key.len() {
                    1 => self.add_field(field, &bounds),
                    // Which values go with which counts, so each is a region of its own.
                    _ => bounds.iter().for_each(|one| self.add_field(field, std::slice::from_ref(one))),
                }
            }
            from += length.next_multiple_of(4);
        }
    }

    fn add_field<B: AsRef<[u8]>>(&mut self, component: &Component, bounds: &[(B, B)]) {
        let is_v6 = component.length > 4;
        let property = match component.field {
            Field::Source if is_v6 => Property::SourceV6,
            Field::Source => Property::SourceV4,
            Field::Destination if is_v6 => Property::DestinationV6,
            Field::Destination => Property::DestinationV4,
            Field::SourcePort => Property::SourcePort,
            Field::DestinationPort => Property::DestinationPort,
            Field::Uid => Property::Uid,
            Field::Gid => Property::Gid,
            Field::Mark => Property::Mark,
            Field::InInterface | Field::OutInterface => {
                let name = |bytes: &[u8]| {
                    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
                    String::from_utf8_lossy(name).into_owned()
                };
                self.interfaces.extend(bounds.iter().map(|(first, _)| name(first.as_ref())));
                return;
            }
            _ => return,
        };
        let is_little = component.is_host_order != component.is_swapped && cfg!(target_endian = "little");
        let width = usize::try_from(property.bits() / 8).unwrap_or(16);
        let read = |bytes: &[u8], filler: u8| {
            let mut bytes = bytes.to_vec();
            bytes.resize(width, filler);
            if is_little {
                bytes.reverse();
            }
            bytes.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte))
        };
        // Of a network only the first bytes may be compared: the rest is anything.
        let all = |bytes: &[u8]| bytes.len() >= width;
        let mask = component.mask.as_ref().map_or(property.greatest(), |mask| read(mask, 0));
        let range = |(first, last): &(B, B)| {
            let (first, last) = (first.as_ref(), last.as_ref());
            (read(first, 0), read(last, if all(last) { 0 } else { 0xff }))
        };
        self.test(property, mask, bounds.iter().map(range).collect());
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
            XtMatch::Mark(test) => {
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
