//! The matches of a rule that become named sets, with the names and elements of these sets.
//!
//! A match with one value is a comparison. A match with two or more values is a lookup in a named set, whose cost does
//! not grow with the list. This module decides it for all renderers.

use super::{Match, Networks, Rule, Ruleset};
use crate::model::policy::{InterfaceName, PortSet};
use ipnet::{Ipv4Net, Ipv6Net};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// A list of values that is stored in a named set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedList<'r> {
    /// The match of this list, as an index into [`Rule::matches`].
    pub at: usize,
    /// The set's name.
    pub name: Cow<'static, str>,
    /// The elements; the variant is the set's type.
    pub elements: Elements<'r>,
}

/// The elements of a named list. Ports and networks are intervals, the others single values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elements<'r> {
    /// Port ranges.
    Ports(&'r PortSet),
    /// IPv4 networks; [`v4_ranges`] merges them.
    V4(&'r [Ipv4Net]),
    /// IPv6 networks; [`v6_ranges`] merges them.
    V6(&'r [Ipv6Net]),
    /// User ids.
    Uids(&'r BTreeSet<u32>),
    /// Group ids.
    Gids(&'r BTreeSet<u32>),
    /// Interface names.
    Interfaces(&'r BTreeSet<InterfaceName>),
}

impl Rule {
    /// Returns the rule's lists of two or more values, in the order of its matches.
    ///
    /// A single list has the id of the rule as its name. If there are several, each name has a suffix for the listed
    /// values (`-ports`, `-uids`).
    pub fn lists(&self) -> Vec<NamedList<'_>> {
        let long: Vec<_> =
            self.matches.iter().enumerate().filter_map(|(at, m)| Some((at, long_list(m)?))).collect();
        let several = long.len() > 1;
        let name = |suffix: &str| match several {
            false => Cow::Borrowed(self.id.0),
            true => Cow::Owned(format!("{}-{suffix}", self.id)),
        };
        let named = |(at, (suffix, elements))| NamedList { at, name: name(suffix), elements };
        long.into_iter().map(named).collect()
    }
}

impl Ruleset {
    /// Returns every named list, in the order of the rules.
    pub fn lists(&self) -> Vec<NamedList<'_>> {
        self.rules().flat_map(|(_, rule)| rule.lists()).collect()
    }
}

/// Returns the list of a match whose number of values is not one, and the suffix of its name.
fn long_list(of: &Match) -> Option<(&'static str, Elements<'_>)> {
    let (suffix, values, elements) = match of {
        Match::InInterface(names) => ("in-interfaces", names.len(), Elements::Interfaces(names)),
        Match::OutInterface(names) => ("out-interfaces", names.len(), Elements::Interfaces(names)),
        Match::Source(_, Networks::V4(nets)) => ("sources", nets.len(), Elements::V4(nets)),
        Match::Source(_, Networks::V6(nets)) => ("sources", nets.len(), Elements::V6(nets)),
        Match::Destination(_, Networks::V4(nets)) => ("destinations", nets.len(), Elements::V4(nets)),
        Match::Destination(_, Networks::V6(nets)) => ("destinations", nets.len(), Elements::V6(nets)),
        Match::SourcePort(_, ports) => ("source-ports", ports.ranges().len(), Elements::Ports(ports)),
        Match::DestinationPort(_, ports) => ("ports", ports.ranges().len(), Elements::Ports(ports)),
        Match::OwnerUid(ids) => ("uids", ids.len(), Elements::Uids(ids)),
        Match::OwnerGid(ids) => ("gids", ids.len(), Elements::Gids(ids)),
        Match::Family(_)
        | Match::Protocol(_)
        | Match::Mark(..)
        | Match::ConnectionMark(_)
        | Match::State(_) => return None,
    };
    (values != 1).then_some((suffix, elements))
}

/// Returns the networks as the smallest list of ranges, ascending. Networks that overlap or touch become one range.
pub fn v4_ranges(nets: &[Ipv4Net]) -> Vec<RangeInclusive<Ipv4Addr>> {
    let bounds = nets.iter().map(|net| (net.network().to_bits(), net.broadcast().to_bits()));
    merged(bounds, |end| end.checked_add(1))
        .map(|(first, last)| Ipv4Addr::from_bits(first)..=Ipv4Addr::from_bits(last))
        .collect()
}

/// Returns the networks as the smallest list of ranges, as [`v4_ranges`] does.
pub fn v6_ranges(nets: &[Ipv6Net]) -> Vec<RangeInclusive<Ipv6Addr>> {
    let bounds = nets.iter().map(|net| (net.network().to_bits(), net.broadcast().to_bits()));
    merged(bounds, |end| end.checked_add(1))
        .map(|(first, last)| Ipv6Addr::from_bits(first)..=Ipv6Addr::from_bits(last))
        .collect()
}

/// Merges ranges that overlap or touch. `next` returns the value after its argument, or `None` after the greatest.
fn merged<T: Ord + Copy>(
    ranges: impl Iterator<Item = (T, T)>,
    next: impl Fn(T) -> Option<T>,
) -> impl Iterator<Item = (T, T)> {
    let mut sorted: Vec<(T, T)> = ranges.collect();
    sorted.sort_unstable();
    let mut merged: Vec<(T, T)> = Vec::with_capacity(sorted.len());
    for (first, last) in sorted {
        match merged.last_mut() {
            Some((_, end)) if next(*end).is_none_or(|after| first <= after) => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ruleset::{Is, RuleId, Transport, Verdict};

    fn rule(matches: Vec<Match>) -> Rule {
        Rule { id: RuleId("some-rule"), matches, verdict: Verdict::Return }
    }

    fn names(matches: Vec<Match>) -> Vec<(usize, String)> {
        rule(matches).lists().into_iter().map(|list| (list.at, list.name.into_owned())).collect()
    }

    fn ports(ports: &[u16]) -> Match {
        Match::DestinationPort(Is::In, ports.iter().copied().collect())
    }

    fn uids(ids: &[u32]) -> Match {
        Match::OwnerUid(ids.iter().copied().collect())
    }

    #[test]
    fn a_single_value_or_range_makes_no_list() {
        assert!(names(vec![Match::Protocol(Transport::Tcp), ports(&[80, 81, 82]), uids(&[1337])]).is_empty());
    }

    #[test]
    fn a_single_list_has_the_name_of_its_rule() {
        assert_eq!(names(vec![Match::Mark(Is::In, 1.into()), uids(&[1, 2])]), [(1, "some-rule".into())]);
    }

    #[test]
    fn two_lists_of_one_rule_have_different_names() {
        let both = names(vec![ports(&[1, 3]), uids(&[1, 2])]);
        assert_eq!(both, [(0, "some-rule-ports".into()), (1, "some-rule-uids".into())]);
    }

    #[test]
    fn networks_that_touch_or_overlap_become_one_range() {
        let nets: Vec<Ipv4Net> =
            ["11.0.0.0/16", "10.0.0.0/8", "10.1.0.0/16", "128.0.0.0/1"].map(|n| n.parse().unwrap()).to_vec();
        let address = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        let expected = [
            address("10.0.0.0")..=address("11.0.255.255"),
            address("128.0.0.0")..=address("255.255.255.255"),
        ];
        assert_eq!(v4_ranges(&nets), expected);
        let nets: Vec<Ipv6Net> = ["8000::/1", "::/1"].map(|n| n.parse().unwrap()).to_vec();
        assert_eq!(v6_ranges(&nets), [Ipv6Addr::UNSPECIFIED..=Ipv6Addr::from_bits(u128::MAX)]);
    }
}
