//! One neutral rule as the iptables rules that together mean the same: lists become several rules.
//!
//! Only products are multiplied out (two user ids on two interfaces: four rules). Carrying out a
//! verdict that asks the next rule a second time changes nothing, so overlaps are harmless.

use super::networks::Addresses;
use super::token::{End, Target, Token, Transport};
use crate::policy::{InterfaceName, PortRange, PortSet};
use crate::ruleset::{ChainName, Family, Is, Match, Protocol, Rule, Verdict};
use std::collections::BTreeSet;

/// One iptables rule, still typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    tokens: Vec<Token>,
    target: Target,
}

impl Line {
    /// A line of these words; brings them into the order `iptables-save` prints.
    pub(super) fn new(mut tokens: Vec<Token>, target: Target) -> Self {
        tokens.sort_by_key(Token::rank);
        Self { tokens, target }
    }

    /// Its words.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        self.tokens.iter().for_each(|token| token.write(&mut words));
        self.target.write(&mut words);
        words
    }
}

/// The iptables rules of `family` for `rule`; none when it is about the other family, or about
/// nothing. `divert` names the chain that carries out a divert to a mark.
pub(super) fn expand(rule: &Rule, family: Family, divert: impl Fn(u32) -> String) -> Vec<Line> {
    let Some(shape) = Shape::of(rule, family) else { return Vec::new() };
    let target = match rule.verdict {
        Verdict::Return => Target::Return,
        Verdict::Drop => Target::Drop,
        Verdict::Goto(chain) => Target::Goto(ChainName::iptables(chain).to_owned()),
        Verdict::Redirect(port) => Target::Redirect(port),
        Verdict::Tproxy { port, mark } => Target::Tproxy { family, port, mark },
        Verdict::Divert(mark) => Target::Goto(divert(mark)),
        Verdict::SetMark(mark) => Target::SetMark(mark),
        Verdict::SaveMark => Target::SaveMark,
        Verdict::RestoreMark => Target::RestoreMark,
        Verdict::Zone(zone) => Target::Zone(zone),
    };
    let line = |mut tokens: Vec<Token>| {
        tokens.push(Token::Comment(rule.id));
        Line::new(tokens, target.clone())
    };
    shape.choices().into_iter().map(line).collect()
}

/// What a rule asks, each property that iptables takes only once brought to one place.
#[derive(Default)]
struct Shape<'a> {
    source: Option<Addresses>,
    destination: Option<Addresses>,
    arrives_by: Option<BTreeSet<InterfaceName>>,
    leaves_by: Option<BTreeSet<InterfaceName>>,
    protocols: Option<BTreeSet<Transport>>,
    ports: Vec<(End, Is, &'a PortSet)>,
    /// For each further match the tokens of which one must apply.
    others: Vec<Vec<Token>>,
}

impl<'a> Shape<'a> {
    /// `None`: the rule is about the other family.
    fn of(rule: &'a Rule, family: Family) -> Option<Self> {
        let mut shape = Self::default();
        for wish in &rule.matches {
            shape.ask(wish, family)?;
        }
        // Both targets write a port, and a port match reads one: iptables wants to know whose.
        let needs_ports = matches!(rule.verdict, Verdict::Redirect(_) | Verdict::Tproxy { .. });
        if shape.protocols.is_none() && (needs_ports || !shape.ports.is_empty()) {
            shape.protocols = Some(BTreeSet::from([Transport::Tcp, Transport::Udp]));
        }
        Some(shape)
    }

    fn ask(&mut self, wish: &'a Match, family: Family) -> Option<()> {
        match wish {
            Match::Family(wanted) => return (*wanted == family).then_some(()),
            Match::Source(_, nets) | Match::Destination(_, nets) if nets.family() != family => return None,
            Match::Source(is, nets) => narrow(&mut self.source, Addresses::of(*is, nets), Addresses::and),
            Match::Destination(is, nets) => {
                narrow(&mut self.destination, Addresses::of(*is, nets), Addresses::and);
            }
            Match::InInterface(names) => narrow(&mut self.arrives_by, names.clone(), |a, b| &a & &b),
            Match::OutInterface(names) => narrow(&mut self.leaves_by, names.clone(), |a, b| &a & &b),
            Match::Protocol(which) => narrow(&mut self.protocols, transports(*which), |a, b| &a & &b),
            Match::SourcePort(is, ports) => self.ports.push((End::Source, *is, ports)),
            Match::DestinationPort(is, ports) => self.ports.push((End::Destination, *is, ports)),
            Match::OwnerUid(ids) => self.others.push(owners(ids, Token::Uid)),
            Match::OwnerGid(ids) => self.others.push(owners(ids, Token::Gid)),
            Match::Mark(is, mark) => self.others.push(vec![Token::Mark(*is, *mark)]),
            Match::ConnectionMark(mark) => self.others.push(vec![Token::ConnectionMark(*mark)]),
            Match::State(state) => self.others.push(vec![Token::State(*state)]),
        }
        Some(())
    }

    fn choices(self) -> Vec<Vec<Token>> {
        let mut drafts = vec![Vec::new()];
        drafts = times(&drafts, &addresses(self.source, Token::Source));
        drafts = times(&drafts, &addresses(self.destination, Token::Destination));
        drafts = times(&drafts, &interfaces(self.arrives_by, Token::InInterface));
        drafts = times(&drafts, &interfaces(self.leaves_by, Token::OutInterface));
        if let Some(protocols) = self.protocols {
            let with = |protocol| {
                let drafts = times(&drafts, &[Some(Token::Protocol(protocol))]);
                self.ports.iter().fold(drafts, |drafts, (end, is, set)| {
                    times(&drafts, &port_choices(protocol, *end, *is, set))
                })
            };
            drafts = protocols.into_iter().flat_map(with).collect();
        }
        self.others
            .into_iter()
            .fold(drafts, |drafts, any| times(&drafts, &any.into_iter().map(Some).collect::<Vec<_>>()))
    }
}

/// Every draft with every choice; the choice of nothing leaves a draft as it is.
fn times(drafts: &[Vec<Token>], choices: &[Option<Token>]) -> Vec<Vec<Token>> {
    let with = |draft: &Vec<Token>, choice: &Option<Token>| {
        draft.iter().cloned().chain(choice.clone()).collect::<Vec<_>>()
    };
    drafts.iter().flat_map(|draft| choices.iter().map(|choice| with(draft, choice))).collect()
}

fn narrow<T>(property: &mut Option<T>, more: T, and: impl FnOnce(T, T) -> T) {
    *property = Some(match property.take() {
        None => more,
        Some(before) => and(before, more),
    });
}

fn transports(protocol: Protocol) -> BTreeSet<Transport> {
    match protocol {
        Protocol::Tcp => BTreeSet::from([Transport::Tcp]),
        Protocol::Udp => BTreeSet::from([Transport::Udp]),
    }
}

/// The id -1 is nobody's (`INVALID_UID`, include/linux/uidgid.h), and iptables refuses to ask for it.
fn owners(ids: &BTreeSet<u32>, token: impl Fn(u32) -> Token) -> Vec<Token> {
    ids.iter().copied().filter(|id| *id != u32::MAX).map(token).collect()
}

fn addresses(of: Option<Addresses>, token: impl Fn(Is, ipnet::IpNet) -> Token) -> Vec<Option<Token>> {
    let Some(of) = of else { return vec![None] };
    of.choices().into_iter().map(|choice| choice.map(|(is, net)| token(is, net))).collect()
}

fn interfaces(
    of: Option<BTreeSet<InterfaceName>>,
    token: impl Fn(InterfaceName) -> Token,
) -> Vec<Option<Token>> {
    let Some(of) = of else { return vec![None] };
    of.into_iter().map(|name| Some(token(name))).collect()
}

/// The multiport match holds 15 numbers, and a range takes two (`XT_MULTI_PORTS`,
/// include/uapi/linux/netfilter/xt_multiport.h).
const SLOTS: usize = 15;

fn port_choices(protocol: Transport, end: End, is: Is, set: &PortSet) -> Vec<Option<Token>> {
    let slots: usize = set.ranges().iter().map(|range| slots(*range)).sum();
    match (is, set.ranges()) {
        (Is::NotIn, []) => vec![None],
        (_, [all]) if all.bounds() == (0, u16::MAX) && is == Is::In => vec![None],
        (_, [all]) if all.bounds() == (0, u16::MAX) => Vec::new(),
        (_, [one]) => vec![Some(Token::Port(protocol, end, is, *one))],
        (Is::NotIn, some) if slots <= SLOTS => vec![Some(Token::Ports(end, is, some.to_vec()))],
        (Is::NotIn, _) => port_choices(protocol, end, Is::In, &all_but(set)),
        (Is::In, some) => filled(some)
            .into_iter()
            .map(|ranges| match ranges.as_slice() {
                [one] => Some(Token::Port(protocol, end, is, *one)),
                _ => Some(Token::Ports(end, is, ranges)),
            })
            .collect(),
    }
}

fn slots(range: PortRange) -> usize {
    let (first, last) = range.bounds();
    if first == last { 1 } else { 2 }
}

/// As few lists as hold all ranges.
fn filled(ranges: &[PortRange]) -> Vec<Vec<PortRange>> {
    let (mut lists, mut free) = (Vec::<Vec<PortRange>>::new(), 0);
    for range in ranges {
        match lists.last_mut() {
            Some(list) if slots(*range) <= free => list.push(*range),
            _ => {
                lists.push(vec![*range]);
                free = SLOTS;
            }
        }
        free -= slots(*range);
    }
    lists
}

fn all_but(set: &PortSet) -> PortSet {
    let firsts = set.ranges().iter().map(|range| range.bounds().1.checked_add(1));
    let lasts = set.ranges().iter().map(|range| range.bounds().0.checked_sub(1));
    let gaps = std::iter::once(Some(0)).chain(firsts).zip(lasts.chain([Some(u16::MAX)]));
    gaps.filter_map(|(first, last)| PortRange::new(first?, last?)).collect()
}
