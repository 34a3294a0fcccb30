//! Expands one rule of the ruleset to iptables rules with the same meaning: a list becomes several rules.
//!
//! A small product of lists is multiplied out (two user ids on two interfaces: four rules). A large product becomes one
//! chain per list, so that the number of rules is the sum of the lists' lengths: one rule for each entry of the first
//! list calls a chain that tests the second. Overlaps are harmless, because verdicts that continue with the next rule
//! are idempotent.

use super::networks::MatchedAddresses;
use super::token::{PortSide, RuleTarget, Token};
use crate::model::policy::{InterfaceName, PortRange, PortSet};
use crate::model::ruleset::{ChainName, Family, Is, Match, Rule, Transport, Verdict};
use std::collections::BTreeSet;

/// One iptables rule as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RuleLine {
    tokens: Vec<Token>,
    target: RuleTarget,
}

impl RuleLine {
    /// A line of these tokens, sorted in the order of `iptables-save`.
    pub(super) fn new(mut tokens: Vec<Token>, target: RuleTarget) -> Self {
        tokens.sort_by_key(Token::rank);
        Self { tokens, target }
    }

    /// The arguments of the rule.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        self.tokens.iter().for_each(|token| token.write(&mut words));
        self.target.write(&mut words);
        words
    }
}

/// A product of at most this many rules is multiplied out: a jump to another chain costs a packet more than a few
/// rules, and earlier versions of Gybe wrote such rules, which still compare as equal.
const MAX_PRODUCT: usize = 128;

/// The iptables rules of one rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expansion {
    /// The rules in the rule's own chain.
    pub lines: Vec<RuleLine>,
    /// The rules of further chains; each chain calls the next.
    pub lists: Vec<(String, Vec<RuleLine>)>,
}

/// The names of further chains.
pub(super) struct ChainNames<'n> {
    /// The chain that carries out a divert with a mark.
    pub divert: &'n dyn Fn(u32) -> String,
    /// The number of list chains that the table has already.
    pub lists: usize,
}

/// A rule needs more iptables rules than the limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Excess {
    /// The number it needs.
    pub rules: usize,
}

/// Returns the iptables rules of `family` for `rule`, at most `limit`; none when the rule is for the other family or
/// cannot match.
pub(super) fn expand(
    rule: &Rule,
    family: Family,
    names: &ChainNames<'_>,
    limit: usize,
) -> Result<Expansion, Excess> {
    let Some(merged) = MergedMatches::of(rule, family) else { return Ok(Expansion::default()) };
    let target = match rule.verdict {
        Verdict::Return => RuleTarget::Return,
        Verdict::Drop => RuleTarget::Drop,
        Verdict::Goto(chain) => RuleTarget::Goto(ChainName::iptables(chain).to_owned()),
        Verdict::Redirect(port) => RuleTarget::Redirect(port),
        Verdict::Tproxy { port, mark } => RuleTarget::Tproxy { family, port, mark },
        Verdict::Divert(mark) => RuleTarget::Goto((names.divert)(mark)),
        Verdict::SetMark(mark) => RuleTarget::SetMark(mark),
        Verdict::SetConnectionMark(mark) => RuleTarget::SetConnectionMark(mark),
        Verdict::SaveMark => RuleTarget::SaveMark,
        Verdict::RestoreMark => RuleTarget::RestoreMark,
        Verdict::Zone(zone) => RuleTarget::Zone(zone),
    };
    // In a called chain these verdicts return to the calling chain.
    let returns = matches!(rule.verdict, Verdict::Return | Verdict::Goto(_));
    let mut factors = merged.factors();
    let product = factors.iter().fold(1, |product: usize, factor| product.saturating_mul(factor.len()));
    let outer = if product > MAX_PRODUCT && !returns { outer(&mut factors) } else { Vec::new() };
    let called: usize = outer.iter().map(Vec::len).sum();
    let product = factors.iter().fold(1, |product: usize, factor| product.saturating_mul(factor.len()));
    let rules = product.saturating_add(called);
    if rules > limit {
        return Err(Excess { rules });
    }
    let line = |mut tokens: Vec<Token>, target: RuleTarget| {
        tokens.push(Token::Comment(rule.id));
        RuleLine::new(tokens, target)
    };
    let mut chains: Vec<Vec<RuleLine>> = outer
        .into_iter()
        .enumerate()
        .map(|(at, factor)| {
            let list = RuleTarget::Jump(list_chain(names.lists + at));
            factor.into_iter().map(|tokens| line(tokens, list.clone())).collect()
        })
        .collect();
    chains.push(choices(&factors).into_iter().map(|tokens| line(tokens, target.clone())).collect());
    let mut chains = chains.into_iter();
    let lines = chains.next().unwrap_or_default();
    let lists = chains.enumerate().map(|(at, lines)| (list_chain(names.lists + at), lines)).collect();
    Ok(Expansion { lines, lists })
}

fn list_chain(at: usize) -> String {
    format!("ISTIO_LIST_{}", at + 1)
}

/// One condition of a rule: the alternatives, one line each.
type Factor = Vec<Vec<Token>>;

/// Removes and returns all lists but the longest, the shortest first. The last factor stays: it has the protocol,
/// which must be in the same rule as the target.
fn outer(factors: &mut Vec<Factor>) -> Vec<Factor> {
    let Some(with_target) = factors.pop() else { return Vec::new() };
    let (mut lists, mut kept): (Vec<_>, Vec<_>) = factors.drain(..).partition(|factor| factor.len() > 1);
    lists.sort_by_key(Vec::len);
    if with_target.len() == 1 {
        kept.extend(lists.pop());
    }
    kept.push(with_target);
    *factors = kept;
    lists
}

/// Returns every combination of one alternative of each factor.
fn choices(factors: &[Factor]) -> Vec<Vec<Token>> {
    factors.iter().fold(vec![Vec::new()], |drafts, factor| combine(&drafts, factor))
}

/// The matches of a rule, merged by property, because iptables accepts each option once.
#[derive(Default)]
struct MergedMatches<'a> {
    source: Option<MatchedAddresses>,
    destination: Option<MatchedAddresses>,
    arrives_by: Option<BTreeSet<InterfaceName>>,
    leaves_by: Option<BTreeSet<InterfaceName>>,
    protocols: Option<BTreeSet<Transport>>,
    ports: Vec<(PortSide, Is, &'a PortSet)>,
    /// The alternatives of each further match.
    others: Vec<Vec<Token>>,
}

impl<'a> MergedMatches<'a> {
    /// Returns `None` for a rule of the other family.
    fn of(rule: &'a Rule, family: Family) -> Option<Self> {
        let mut merged = Self::default();
        for condition in &rule.matches {
            merged.add(condition, family)?;
        }
        // iptables accepts these targets and port matches only in a rule with a protocol.
        let needs_ports = matches!(rule.verdict, Verdict::Redirect(_) | Verdict::Tproxy { .. });
        if merged.protocols.is_none() && (needs_ports || !merged.ports.is_empty()) {
            merged.protocols = Some(BTreeSet::from(Transport::ALL));
        }
        Some(merged)
    }

    fn add(&mut self, condition: &'a Match, family: Family) -> Option<()> {
        match condition {
            Match::Family(only) => return (*only == family).then_some(()),
            Match::Source(_, nets) | Match::Destination(_, nets) if nets.family() != family => return None,
            Match::Source(is, nets) => {
                narrow(&mut self.source, MatchedAddresses::of(*is, nets), MatchedAddresses::and);
            }
            Match::Destination(is, nets) => {
                narrow(&mut self.destination, MatchedAddresses::of(*is, nets), MatchedAddresses::and);
            }
            Match::InInterface(names) => narrow(&mut self.arrives_by, names.clone(), |a, b| &a & &b),
            Match::OutInterface(names) => narrow(&mut self.leaves_by, names.clone(), |a, b| &a & &b),
            Match::Protocol(which) => narrow(&mut self.protocols, BTreeSet::from([*which]), |a, b| &a & &b),
            Match::SourcePort(is, ports) => self.ports.push((PortSide::Source, *is, ports)),
            Match::DestinationPort(is, ports) => self.ports.push((PortSide::Destination, *is, ports)),
            Match::OwnerUid(ids) => self.others.push(owners(ids, Token::Uid)),
            Match::OwnerGid(ids) => self.others.push(owners(ids, Token::Gid)),
            Match::Mark(is, mark) => self.others.push(vec![Token::Mark(*is, *mark)]),
            Match::ConnectionMark(mark) => self.others.push(vec![Token::ConnectionMark(*mark)]),
            Match::State(state) => self.others.push(vec![Token::State(*state)]),
        }
        Some(())
    }

    /// Returns the factors. Protocol and ports come last, because port matches and targets with a port must be in one
    /// rule with the protocol.
    fn factors(self) -> Vec<Factor> {
        let mut factors = vec![
            single(addresses(self.source, Token::Source)),
            single(addresses(self.destination, Token::Destination)),
            single(interfaces(self.arrives_by, Token::InInterface)),
            single(interfaces(self.leaves_by, Token::OutInterface)),
        ];
        factors.extend(self.others.into_iter().map(|any| single(any.into_iter().map(Some).collect())));
        let with_ports = |protocol| {
            let protocol_alone = vec![vec![Token::Protocol(protocol)]];
            self.ports.iter().fold(protocol_alone, |drafts, (end, is, set)| {
                combine(&drafts, &single(port_choices(protocol, *end, *is, set)))
            })
        };
        factors.push(match self.protocols {
            Some(protocols) => protocols.into_iter().flat_map(with_ports).collect(),
            None => vec![Vec::new()],
        });
        factors
    }
}

/// A factor whose alternatives have one token each, or none.
fn single(choices: Vec<Option<Token>>) -> Factor {
    choices.into_iter().map(|choice| choice.into_iter().collect()).collect()
}

/// Returns every combination of a draft and a choice.
fn combine(drafts: &[Vec<Token>], choices: &Factor) -> Vec<Vec<Token>> {
    let with = |draft: &Vec<Token>, choice: &Vec<Token>| [draft.as_slice(), choice].concat();
    drafts.iter().flat_map(|draft| choices.iter().map(|choice| with(draft, choice))).collect()
}

fn narrow<T>(property: &mut Option<T>, more: T, and: impl FnOnce(T, T) -> T) {
    *property = Some(match property.take() {
        None => more,
        Some(before) => and(before, more),
    });
}

/// Omits the id -1, which no process can have (`INVALID_UID`, include/linux/uidgid.h) and iptables refuses.
fn owners(ids: &BTreeSet<u32>, token: impl Fn(u32) -> Token) -> Vec<Token> {
    ids.iter().copied().filter(|id| *id != u32::MAX).map(token).collect()
}

fn addresses(of: Option<MatchedAddresses>, token: impl Fn(Is, ipnet::IpNet) -> Token) -> Vec<Option<Token>> {
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

fn port_choices(protocol: Transport, end: PortSide, is: Is, set: &PortSet) -> Vec<Option<Token>> {
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

/// Distributes the ranges to lists of at most [`SLOTS`] slots, in order.
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
