//! The tests of the rules of a namespace.

use super::super::parts::parts;
use super::{Property, Values, number};
use crate::inspect::live::rules::expr::{Data, Expr};
use crate::inspect::live::rules::{
    Component, Field, LiveChain, LiveRule, LoadedFields, NamespaceRules, Set, Statement, location,
};
use crate::inspect::walk::Budget;
use crate::model::policy::PortRange;
use crate::model::ruleset::TableFamily;
use crate::xt::{ConntrackTest, IdTest, PortEnd, XtMatch};
use std::collections::BTreeMap;

/// The first operator that compares the order of values: `NFT_CMP_LT`, which the others follow.
const FIRST_ORDER: u32 = 2;

/// At most this many comparisons that cannot be evaluated are reported.
const NAMED: usize = 5;

impl Values {
    /// Adds the tests of all rules of a namespace.
    pub(in crate::inspect::verdict) fn add(&mut self, ns: &NamespaceRules, budget: &Budget) {
        for chain in &ns.chains {
            for rule in &chain.rules {
                if !budget.spend(rule.statements.len()) {
                    return;
                }
                // A rule that only counts or logs changes nothing.
                if rule.statements.iter().any(Statement::acts) {
                    self.add_rule(ns, chain, rule, budget);
                }
            }
        }
    }

    fn add_rule(&mut self, ns: &NamespaceRules, chain: &LiveChain, rule: &LiveRule, budget: &Budget) {
        self.may_match_replies = !rule.is_ours;
        let mut registers = RuleRegisters { loaded: LoadedFields::default(), family: chain.table.family };
        let mut all_read = true;
        for statement in &rule.statements {
            match statement {
                Statement::Expr(Expr::Lookup { set, at, .. }) => {
                    if let Some(set) =
                        ns.set(&chain.table, set).filter(|set| budget.spend(set.elements.len()))
                    {
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
                registers.loaded.track(expr);
            }
        }
        if !all_read && self.not_evaluated.len() < NAMED {
            let location = location(chain);
            self.not_evaluated.push(format!("comparison not evaluated: {location}: {}", rule.text));
        }
    }

    /// Adds the values that an expression tells apart; false when they cannot be listed.
    fn add_expr(&mut self, expr: &Expr, registers: &RuleRegisters) -> bool {
        let (at, bounds) = match expr {
            Expr::Compare { op, at, value } if *op >= FIRST_ORDER => (*at, Bounds::Order(value)),
            Expr::Compare { at, value, .. } => (*at, Bounds::Ranges(vec![(value, value)])),
            Expr::Range { at, first, last, .. } => (*at, Bounds::Ranges(vec![(first, last)])),
            _ => return true,
        };
        let component = registers.loaded.field(at);
        component.is_some_and(|component| self.add_component(component, &bounds, registers.family))
    }

    fn add_set(&mut self, set: &Set, at: usize, registers: &RuleRegisters) -> bool {
        let key = registers.loaded.key(at, set.key_length, &set.parts);
        let (mut from, mut all_read) = (0, true);
        for (length, component) in &key {
            let part = |bytes: &'_ [u8]| bytes.get(from..from + length).unwrap_or_default().to_vec();
            let bounds: Vec<_> = set.elements.iter().map(|one| (part(&one.first), part(&one.last))).collect();
            // Elements with the same data are one group. In a key of several parts the combination decides, so each
            // element is a group of its own.
            let mut groups: BTreeMap<(usize, &Data), Vec<ByteRange<'_>>> = BTreeMap::new();
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

    /// Adds the values that a comparison tells apart; false when they cannot be listed.
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
        // The kernel compares bytes, whose order is not that of little-endian numbers.
        let is_read = !component.is_inverted
            && (is_by_value || !is_little)
            && (parts.len() == 1 || !component.is_swapped);
        if parts.is_empty() || !is_read {
            // The walk tries both results of a test of anything else.
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
                // The first part that differs decides, so each bound is a value of its own.
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
type ByteRange<'b> = (&'b [u8], &'b [u8]);

/// What the registers of a rule hold, and the family of its table.
struct RuleRegisters {
    loaded: LoadedFields,
    family: TableFamily,
}

/// What a value is compared with.
enum Bounds<'b> {
    /// Inside any of these or outside; first and last may be the same.
    Ranges(Vec<ByteRange<'b>>),
    /// Below, at or above.
    Order(&'b [u8]),
}

impl<'b> Bounds<'b> {
    fn all(&self) -> Vec<ByteRange<'b>> {
        match self {
            Self::Ranges(ranges) => ranges.clone(),
            Self::Order(value) => vec![(value, value)],
        }
    }
}

fn bounds(range: PortRange) -> (u128, u128) {
    let (first, last) = range.bounds();
    (first.into(), last.into())
}
