//! Rules as typed values, independent of a tool: all renderers read the same value.
//!
//! Within a chain, the first rule whose matches all apply and whose verdict is terminal decides.

mod chain;
mod lists;

pub use chain::{ChainName, Hook, Stage};
pub use lists::{Elements, NamedList, v4_ranges, v6_ranges};

use crate::model::policy::{Families, InterfaceName, MaskedMark, Port, PortSet};
use ipnet::{Ipv4Net, Ipv6Net};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The rules of one network namespace, applied all or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// The families of these rules; a renderer with one table per family writes only these.
    pub families: Families,
    /// The chains in the order of their creation.
    pub chains: Vec<Chain>,
}

/// A list of rules, reached from a hook or by [`Verdict::Goto`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The chain's name.
    pub name: ChainName,
    /// The rules in order. `compile` returns no empty chain; [`Ruleset::without`] may leave one.
    pub rules: Vec<Rule>,
}

/// The id of a rule: the same string in code, kernel comment, log and test. Unique in a Ruleset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub &'static str);

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// One rule: its verdict applies to packets that satisfy every match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its id.
    pub id: RuleId,
    /// The matches; all of them must apply.
    pub matches: Vec<Match>,
    /// The verdict for a matching packet.
    pub verdict: Verdict,
}

/// Membership in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    /// The value is in the list.
    In,
    /// The value is not in the list.
    NotIn,
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The name in nft, with which the names of iptables' programs and tables begin.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    /// The kernel's number: `NFPROTO_*` (include/uapi/linux/netfilter.h) and `AF_*` are the same.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    pub(crate) fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.number() == number)
    }

    pub(crate) fn loopback(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
            Self::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    pub(crate) fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }
}

/// The family of a table of nf_tables: one address family, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableFamily {
    /// IPv4 alone, as every table of iptables for IPv4.
    Ip,
    /// IPv6 alone.
    Ip6,
    /// Both.
    Inet,
}

impl TableFamily {
    /// Its name in nft.
    pub fn name(self) -> &'static str {
        self.only().map_or("inet", Family::name)
    }

    /// The one address family; `None` for both.
    pub(crate) fn only(self) -> Option<Family> {
        match self {
            Self::Ip => Some(Family::V4),
            Self::Ip6 => Some(Family::V6),
            Self::Inet => None,
        }
    }

    /// The family with this number (`NFPROTO_*`); `None` for those that see no packets of the IP layer.
    pub(crate) fn numbered(number: u8) -> Option<Self> {
        match Family::numbered(number) {
            Some(family) => Some(family.into()),
            None => (number == 1).then_some(Self::Inet),
        }
    }

    /// Reports whether packets of this family pass its tables.
    pub(crate) fn applies_to(self, family: Family) -> bool {
        self.only().is_none_or(|only| only == family)
    }
}

impl From<Family> for TableFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::Ip,
            Family::V6 => Self::Ip6,
        }
    }
}

/// Which of the kernel's two engines runs rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engine {
    /// nf_tables; iptables-nft writes there, in tables `ip` and `ip6` of iptables' own names.
    NfTables,
    /// `ip_tables` and `ip6_tables`, the older one: iptables-legacy.
    Legacy,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A transport protocol with ports. No other one is redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// The name in rules and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }

    /// The number in an IP header (include/uapi/linux/in.h).
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// The transport protocol with that number.
    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| transport.number() == number)
    }
}

/// Networks of one family, canonical. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Networks {
    /// IPv4 networks.
    V4(Vec<Ipv4Net>),
    /// IPv6 networks.
    V6(Vec<Ipv6Net>),
}

impl Networks {
    /// Their family.
    pub fn family(&self) -> Family {
        match self {
            Self::V4(_) => Family::V4,
            Self::V6(_) => Family::V6,
        }
    }

    /// Reports whether one of them contains `address`; an address of the other family is in none.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self, address) {
            (Self::V4(nets), IpAddr::V4(address)) => nets.iter().any(|net| net.contains(&address)),
            (Self::V6(nets), IpAddr::V6(address)) => nets.iter().any(|net| net.contains(&address)),
            _ => false,
        }
    }
}

/// The conntrack state of a packet's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionState {
    /// Part of a known connection, or related to one.
    EstablishedOrRelated,
    /// Not part of a connection, and not able to start one.
    Invalid,
}

/// One condition on a packet.
///
/// A match on ports or owners applies only to packets with a transport header or a local socket, also with
/// [`Is::NotIn`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Its family.
    Family(Family),
    /// Its transport protocol.
    Protocol(Transport),
    /// The input interface is one of these.
    InInterface(BTreeSet<InterfaceName>),
    /// The output interface is one of these.
    OutInterface(BTreeSet<InterfaceName>),
    /// Its source address. A packet of the other family does not match, whichever [`Is`].
    Source(Is, Networks),
    /// Its destination address, likewise.
    Destination(Is, Networks),
    /// Its source port. Stands after a [`Match::Protocol`].
    SourcePort(Is, PortSet),
    /// Its destination port. Stands after a [`Match::Protocol`].
    DestinationPort(Is, PortSet),
    /// The user id of the socket that sent it is one of these.
    OwnerUid(BTreeSet<u32>),
    /// The group id of that socket is one of these.
    OwnerGid(BTreeSet<u32>),
    /// Its mark.
    Mark(Is, MaskedMark),
    /// Its connection's mark.
    ConnectionMark(MaskedMark),
    /// Its connection's state.
    State(ConnectionState),
}

/// The effect of a rule on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Ends the evaluation at this stage; the packet continues as without Gybe.
    Return,
    /// Drops the packet.
    Drop,
    /// Continues in the named chain; a packet that no rule there decides continues as without Gybe.
    Goto(ChainName),
    /// Changes the destination to this port of the pod itself.
    Redirect(Port),
    /// Delivers the packet to the transparent socket on this port, and marks it.
    Tproxy {
        /// The port of the transparent socket.
        port: Port,
        /// The packet mark, by which routing delivers it locally.
        mark: u32,
    },
    /// Sets the packet mark and ends the evaluation at this stage.
    Divert(u32),
    /// Sets the packet mark; the next rule follows.
    SetMark(u32),
    /// Sets these bits of the connection's mark; the next rule follows.
    SetConnectionMark(MaskedMark),
    /// Copies the packet mark to the connection; the next rule follows.
    SaveMark,
    /// Copies the connection's mark to the packet; the next rule follows.
    RestoreMark,
    /// Selects this conntrack zone unless an earlier rule has selected one; the next rule follows.
    Zone(u16),
}

impl Rule {
    /// The family of this rule; `None` for rules of both families.
    pub fn family(&self) -> Option<Family> {
        self.matches.iter().find_map(|m| match m {
            Match::Family(family) => Some(*family),
            Match::Source(_, nets) | Match::Destination(_, nets) => Some(nets.family()),
            _ => None,
        })
    }
}

impl Ruleset {
    /// The chain with that name, if there is one.
    pub fn chain(&self, name: ChainName) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.name == name)
    }

    /// All rules with their chain, in order.
    pub fn rules(&self) -> impl Iterator<Item = (ChainName, &Rule)> {
        self.chains.iter().flat_map(|chain| chain.rules.iter().map(move |rule| (chain.name, rule)))
    }

    /// The ruleset without one rule; `None` when there is no rule with that id. For demonstrations and mutation tests,
    /// which show the purpose of a rule.
    pub fn without(&self, id: &str) -> Option<Self> {
        self.rules().any(|(_, rule)| rule.id.0 == id).then(|| {
            let mut rest = self.clone();
            for chain in &mut rest.chains {
                chain.rules.retain(|rule| rule.id.0 != id);
            }
            rest
        })
    }
}
