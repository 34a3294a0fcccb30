//! The rules: typed and neutral. They name no tool, and every renderer reads the same value.
//!
//! Within a chain the first rule whose matches all apply, and whose verdict ends the walk, decides.

mod chain;
mod lists;

pub use chain::{ChainName, Hook, Stage};
pub use lists::{Elements, NamedList, v4_ranges, v6_ranges};

use crate::policy::{Families, InterfaceName, Port, PortSet};
use ipnet::{Ipv4Net, Ipv6Net};
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

/// All rules for one network namespace: applied whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// Families these rules are about; a renderer with one table per family writes only these.
    pub families: Families,
    /// Chains in the order they are written.
    pub chains: Vec<Chain>,
}

/// A list of rules, reached from a hook or by [`Verdict::Goto`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Which one.
    pub name: ChainName,
    /// Rules, first to last. `compile` writes no chain without rules; [`Ruleset::without`] may empty one.
    pub rules: Vec<Rule>,
}

/// The name of a rule: the same string in code, kernel comment, log and test. Unique in a Ruleset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub &'static str);

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// One rule: when every match applies, the verdict is carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its name.
    pub id: RuleId,
    /// What a packet must be, all of it.
    pub matches: Vec<Match>,
    /// What then becomes of it.
    pub verdict: Verdict,
}

/// Inside a list or outside of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    /// The value is one of the list.
    In,
    /// It is none of them.
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

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Transport protocols a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP alone.
    Tcp,
    /// UDP alone.
    Udp,
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

    /// Is `address` in one of them? An address of the other family is not.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self, address) {
            (Self::V4(nets), IpAddr::V4(address)) => nets.iter().any(|net| net.contains(&address)),
            (Self::V6(nets), IpAddr::V6(address)) => nets.iter().any(|net| net.contains(&address)),
            _ => false,
        }
    }
}

/// What conntrack says of a packet's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionState {
    /// Part of a known connection, or related to one.
    EstablishedOrRelated,
    /// Not part of any, and not fit to start one.
    Invalid,
}

/// One thing a packet must be.
///
/// A match on ports or owners applies only to packets that have them: without a transport header
/// or a local socket it does not apply, also when it asks [`Is::NotIn`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Its family.
    Family(Family),
    /// Its transport protocol.
    Protocol(Protocol),
    /// The interface it came in by is one of these.
    InInterface(BTreeSet<InterfaceName>),
    /// The interface it leaves by is one of these.
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
    Mark(Is, u32),
    /// Its connection's mark.
    ConnectionMark(u32),
    /// Its connection's state.
    State(ConnectionState),
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// We are done with it at this stage: it goes on as if we were not there.
    Return,
    /// It is gone.
    Drop,
    /// The named chain decides; what that chain does not take goes on as if we were not there.
    Goto(ChainName),
    /// Its destination becomes this port of the pod itself.
    Redirect(Port),
    /// It is handed to the transparent socket on this port and marked.
    Tproxy {
        /// Where the transparent socket listens.
        port: Port,
        /// The mark the packet gets, so that routing delivers it locally.
        mark: u32,
    },
    /// It gets this mark and the stage ends for it.
    Divert(u32),
    /// It gets this mark; the next rule is asked.
    SetMark(u32),
    /// Its connection gets its mark; the next rule is asked.
    SaveMark,
    /// It gets its connection's mark; the next rule is asked.
    RestoreMark,
    /// It is tracked in this conntrack zone, if no earlier rule chose one; the next rule is asked.
    Zone(u16),
}

impl Rule {
    /// The one family this rule is about, or `None` when it is about both.
    pub fn family(&self) -> Option<Family> {
        self.matches.iter().find_map(|m| match m {
            Match::Family(family) => Some(*family),
            Match::Source(_, nets) | Match::Destination(_, nets) => Some(nets.family()),
            _ => None,
        })
    }
}

impl Ruleset {
    /// The chain of that name, if it has any rules.
    pub fn chain(&self, name: ChainName) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.name == name)
    }

    /// All rules with their chain, in the order they are written.
    pub fn rules(&self) -> impl Iterator<Item = (ChainName, &Rule)> {
        self.chains.iter().flat_map(|chain| chain.rules.iter().map(move |rule| (chain.name, rule)))
    }

    /// The same rules less one; `None` when there is none of that name.
    ///
    /// For demonstrations and mutation tests: shows what a rule is there for.
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
