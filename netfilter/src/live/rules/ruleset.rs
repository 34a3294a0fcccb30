//! Gybe's own rules in table `inet gybe`, read back as the ruleset that `crate::nft` writes.

use super::expr::{Code, Expr, NatKind};
use super::field::{Component, Field, LoadedFields};
use super::{LiveChain, LiveRule, NamespaceRules, Set, Statement};
use crate::compile::RULE_IDS;
use crate::nft::uapi::*;
use crate::policy::{CidrSet, Families, InterfaceName, Port, PortRange, PortSet};
use crate::ruleset::{
    Chain, ChainName, ConnectionState, Family, Is, Match, Networks, Protocol, Rule, RuleId, Ruleset, Verdict,
};
use ipnet::{IpNet, Ipv4Net, Ipv4Subnets, Ipv6Net, Ipv6Subnets};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Gybe's table has a rule or chain that Gybe does not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("chain {chain} has {what}, which Gybe does not write")]
pub struct NotOurRule {
    /// The chain.
    pub chain: String,
    /// The rule as text, or what is wrong with the chain.
    pub what: String,
}

/// Reads the rules of table `inet gybe`.
pub(crate) fn ruleset(found: &NamespaceRules) -> Result<Ruleset, NotOurRule> {
    let ours = found.chains.iter().filter(|chain| chain.table.is_ours());
    let chains = ours.map(|chain| self::chain(found, chain)).collect::<Result<Vec<_>, _>>()?;
    // Without IPv6 every rule at a hook tests for IPv4.
    let mut at_hooks =
        chains.iter().filter(|chain| chain.name.hook().is_some()).flat_map(|chain| &chain.rules);
    let families = match at_hooks.all(|rule| rule.family() == Some(Family::V4)) {
        true => Families::V4Only,
        false => Families::V4AndV6,
    };
    Ok(Ruleset { families, chains })
}

fn chain(found: &NamespaceRules, chain: &LiveChain) -> Result<Chain, NotOurRule> {
    let not_ours = |what: &str| NotOurRule { chain: chain.name.clone(), what: what.to_owned() };
    let name = chain_name(&chain.name).ok_or_else(|| not_ours("a name"))?;
    let rule = |live: &LiveRule| {
        rule(found, chain, live).ok_or_else(|| not_ours(&format!("the rule {:?}", live.text)))
    };
    Ok(Chain { name, rules: chain.rules.iter().map(rule).collect::<Result<_, _>>()? })
}

fn chain_name(name: &str) -> Option<ChainName> {
    ChainName::ALL.into_iter().find(|known| known.as_str() == name)
}

fn rule(found: &NamespaceRules, chain: &LiveChain, live: &LiveRule) -> Option<Rule> {
    let id = RULE_IDS.into_iter().find(|id| live.comment.as_deref() == Some(id))?;
    let mut reader = RuleReader::default();
    for statement in &live.statements {
        let Statement::Expr(expr) = statement else { return None };
        reader.read(expr, |name| found.set(&chain.table, name))?;
    }
    let (mut matches, verdict) = reader.finish()?;
    // The test of the family belongs to the match of an address.
    let has_address = matches.iter().any(|one| matches!(one, Match::Source(..) | Match::Destination(..)));
    matches.retain(|one| !(has_address && matches!(one, Match::Family(_))));
    Some(Rule { id: RuleId(id), matches, verdict })
}

/// The matches and actions of a rule, one expression after the other.
#[derive(Default)]
struct RuleReader {
    loaded: LoadedFields,
    matches: Vec<Match>,
    /// The first port of a range whose last port follows.
    first_port: Option<u16>,
    tproxy: Option<Port>,
    mark: Option<u32>,
    verdict: Option<Verdict>,
}

impl RuleReader {
    /// Returns `None` for an expression that Gybe does not write.
    fn read<'s>(&mut self, expr: &Expr, set: impl Fn(&str) -> Option<&'s Set>) -> Option<()> {
        match expr {
            Expr::Load { .. } | Expr::Bitwise { .. } | Expr::Value { .. } => self.loaded.track(expr),
            Expr::Nothing(name) if name == "counter" => {}
            Expr::Compare { op, at, value } => {
                let found = self.compared(*op, &self.loaded.field(*at)?.clone(), value)?;
                self.matches.extend(found);
            }
            Expr::Range { inverted: true, at, first, last } => {
                let range = PortRange::new(port(first)?, port(last)?)?;
                let found = ports(&self.loaded.field(*at)?.field, Is::NotIn, [range])?;
                self.matches.push(found);
            }
            Expr::Lookup { set: name, at, inverted, to: None } => {
                let is = if *inverted { Is::NotIn } else { Is::In };
                let found = listed(&self.loaded.field(*at)?.field, is, set(name)?)?;
                self.matches.push(found);
            }
            Expr::SetMark { from } => match self.loaded.constant(*from) {
                Some(mark) => self.mark = Some(number(mark)?),
                None if self.loaded.field(*from)?.field == Field::ConnectionMark => {
                    self.end(Verdict::RestoreMark)?;
                }
                None => return None,
            },
            Expr::SetConnectionMark { from } if self.loaded.field(*from)?.field == Field::Mark => {
                self.end(Verdict::SaveMark)?;
            }
            Expr::SetZone { from, direction: None } => {
                let zone = u16::from_ne_bytes(self.loaded.constant(*from)?.try_into().ok()?);
                self.end(Verdict::Zone(zone))?;
            }
            Expr::Nat(nat) if nat.kind == NatKind::Redirect => {
                let port = Port::new(port(self.loaded.constant(nat.port?)?)?)?;
                self.end(Verdict::Redirect(port))?;
            }
            Expr::Tproxy { port: Some(at), .. } => self.tproxy = Port::new(port(self.loaded.constant(*at)?)?),
            Expr::Verdict(code) => {
                let verdict = match (code, self.tproxy.take(), self.mark.take()) {
                    (Code::Accept, Some(port), Some(mark)) => Verdict::Tproxy { port, mark },
                    (Code::Accept, None, Some(mark)) => Verdict::Divert(mark),
                    (Code::Return, None, None) => Verdict::Return,
                    (Code::Drop, None, None) => Verdict::Drop,
                    (Code::Goto(chain), None, None) => Verdict::Goto(chain_name(chain)?),
                    _ => return None,
                };
                self.end(verdict)?;
            }
            _ => return None,
        }
        Some(())
    }

    fn end(&mut self, verdict: Verdict) -> Option<()> {
        self.verdict.replace(verdict).is_none().then_some(())
    }

    fn finish(self) -> Option<(Vec<Match>, Verdict)> {
        let verdict = match (self.verdict, self.tproxy, self.mark, self.first_port) {
            (Some(verdict), None, None, None) => verdict,
            (None, None, Some(mark), None) => Verdict::SetMark(mark),
            _ => return None,
        };
        Some((self.matches, verdict))
    }

    /// The match of a comparison; none for the first port of a range.
    fn compared(&mut self, op: u32, component: &Component, value: &[u8]) -> Option<Option<Match>> {
        let is = match op {
            NFT_CMP_EQ => Is::In,
            NFT_CMP_NEQ => Is::NotIn,
            NFT_CMP_GTE => {
                self.first_port = Some(port(value)?);
                return Some(None);
            }
            NFT_CMP_LTE => {
                let range = PortRange::new(self.first_port.take()?, port(value)?)?;
                return Some(Some(ports(&component.field, Is::In, [range])?));
            }
            _ => return None,
        };
        let is_in = is == Is::In;
        Some(Some(match &component.field {
            Field::Mark => Match::Mark(is, number(value)?),
            Field::ConnectionMark if is_in => Match::ConnectionMark(number(value)?),
            Field::ConnectionState if !is_in => match number(component.mask.as_deref()?)? {
                bits if bits == NF_CT_STATE_ESTABLISHED | NF_CT_STATE_RELATED => {
                    Match::State(ConnectionState::EstablishedOrRelated)
                }
                NF_CT_STATE_INVALID => Match::State(ConnectionState::Invalid),
                _ => return None,
            },
            Field::Family if is_in => Match::Family(match value {
                [NFPROTO_IPV4] => Family::V4,
                [NFPROTO_IPV6] => Family::V6,
                _ => return None,
            }),
            Field::Protocol if is_in => Match::Protocol(match value {
                [IPPROTO_TCP] => Protocol::Tcp,
                [IPPROTO_UDP] => Protocol::Udp,
                _ => return None,
            }),
            Field::InInterface if is_in => Match::InInterface(BTreeSet::from([interface(value)?])),
            Field::OutInterface if is_in => Match::OutInterface(BTreeSet::from([interface(value)?])),
            Field::Uid if is_in => Match::OwnerUid(BTreeSet::from([number(value)?])),
            Field::Gid if is_in => Match::OwnerGid(BTreeSet::from([number(value)?])),
            Field::Source => Match::Source(is, network(self.family()?, component, value)?),
            Field::Destination => Match::Destination(is, network(self.family()?, component, value)?),
            Field::SourcePort | Field::DestinationPort => {
                ports(&component.field, is, [PortRange::new(port(value)?, port(value)?)?])?
            }
            _ => return None,
        }))
    }

    /// The family that an earlier expression of the rule tests.
    fn family(&self) -> Option<Family> {
        self.matches.iter().find_map(|one| match one {
            Match::Family(family) => Some(*family),
            _ => None,
        })
    }
}

fn port(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn interface(bytes: &[u8]) -> Option<InterfaceName> {
    let name = bytes.split(|byte| *byte == 0).next()?;
    InterfaceName::parse(std::str::from_utf8(name).ok()?).ok()
}

fn ports(field: &Field, is: Is, ranges: impl IntoIterator<Item = PortRange>) -> Option<Match> {
    let ports: PortSet = ranges.into_iter().collect();
    match field {
        Field::SourcePort => Some(Match::SourcePort(is, ports)),
        Field::DestinationPort => Some(Match::DestinationPort(is, ports)),
        _ => None,
    }
}

/// An address, its first bytes, or a masked address.
fn network(family: Family, component: &Component, value: &[u8]) -> Option<Networks> {
    let bits = match &component.mask {
        Some(mask) => mask.iter().map(|byte| byte.count_ones()).sum(),
        None => u32::try_from(value.len()).ok()?.checked_mul(8)?,
    };
    let bits = u8::try_from(bits).ok()?;
    Some(match family {
        Family::V4 => Networks::V4(vec![Ipv4Net::new(Ipv4Addr::from(padded::<4>(value)?), bits).ok()?]),
        Family::V6 => Networks::V6(vec![Ipv6Net::new(Ipv6Addr::from(padded::<16>(value)?), bits).ok()?]),
    })
}

fn padded<const LENGTH: usize>(bytes: &[u8]) -> Option<[u8; LENGTH]> {
    let mut padded = [0; LENGTH];
    padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(padded)
}

/// The match with the elements of a set.
fn listed(field: &Field, is: Is, set: &Set) -> Option<Match> {
    let keys = || set.elements.iter().map(|element| element.first.as_slice());
    match field {
        Field::SourcePort | Field::DestinationPort => {
            let ranges = set.elements.iter().map(|one| PortRange::new(port(&one.first)?, port(&one.last)?));
            ports(field, is, ranges.collect::<Option<Vec<_>>>()?)
        }
        Field::Uid if is == Is::In => Some(Match::OwnerUid(keys().map(number).collect::<Option<_>>()?)),
        Field::Gid if is == Is::In => Some(Match::OwnerGid(keys().map(number).collect::<Option<_>>()?)),
        Field::InInterface if is == Is::In => {
            Some(Match::InInterface(keys().map(interface).collect::<Option<_>>()?))
        }
        Field::OutInterface if is == Is::In => {
            Some(Match::OutInterface(keys().map(interface).collect::<Option<_>>()?))
        }
        Field::Source => Some(Match::Source(is, networks(set)?)),
        Field::Destination => Some(Match::Destination(is, networks(set)?)),
        _ => None,
    }
}

/// The fewest networks with the addresses of the ranges.
fn networks(set: &Set) -> Option<Networks> {
    let mut nets: Vec<IpNet> = Vec::new();
    for element in &set.elements {
        match (exactly::<4>(&element.first), exactly::<4>(&element.last)) {
            (Some(first), Some(last)) => {
                nets.extend(Ipv4Subnets::new(first.into(), last.into(), 0).map(IpNet::V4));
            }
            _ => {
                let (first, last) = (exactly::<16>(&element.first)?, exactly::<16>(&element.last)?);
                nets.extend(Ipv6Subnets::new(first.into(), last.into(), 0).map(IpNet::V6));
            }
        }
    }
    let nets: CidrSet = nets.into_iter().collect();
    match set.key_length {
        4 => Some(Networks::V4(nets.v4().to_vec())),
        16 => Some(Networks::V6(nets.v6().to_vec())),
        _ => None,
    }
}

fn exactly<const LENGTH: usize>(bytes: &[u8]) -> Option<[u8; LENGTH]> {
    bytes.try_into().ok()
}
