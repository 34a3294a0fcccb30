//! Compiles a policy to rules: the only place that decides which rules exist, and their order.
//!
//! In every chain the first terminal rule decides. Exemptions therefore precede the captures they exempt from, and the
//! proxy's own traffic precedes every rule that could capture it. The meaning is Istio's (docs/ISTIO.md, sections 2 and
//! 6). The set of rules is Gybe's: one rule for a list of any length, and no rule that cannot change an outcome.

mod ambient;
mod inbound;
mod mangle;
mod outbound;
mod raw;

pub(crate) use ambient::has_ambient_id;
pub use ambient::{compile_ambient, compile_ambient_draining, has_ambient_rules};

use crate::model::policy::istio::{PASSTHROUGH_V4, PASSTHROUGH_V6};
use crate::model::policy::{CidrSet, Families, InterfaceName, Owners, Policy, PortSet, RedirectPolicy};
use crate::model::ruleset::{
    Chain, ChainName, Family, Is, Match, Networks, Rule, RuleId, Ruleset, Transport, Verdict,
};
use ipnet::{Ipv4Net, Ipv6Net};
use std::collections::BTreeSet;
use std::net::Ipv6Addr;

/// The rules of a sidecar's `policy` for one network namespace.
pub fn compile(policy: &RedirectPolicy) -> Ruleset {
    let chains = [
        // In the order of a packet's path: zones before conntrack, marks before NAT.
        raw::prerouting(policy),
        raw::output(policy),
        mangle::prerouting(policy),
        mangle::output(policy),
        inbound::prerouting(policy),
        outbound::output(policy),
        outbound::loopback(policy),
        outbound::capture(policy),
    ];
    compiled(policy.families, chains)
}

/// The rules of a policy of either kind.
pub fn compile_any(policy: &Policy) -> Ruleset {
    match policy {
        Policy::Sidecar(policy) => compile(policy),
        Policy::Ambient(policy) => compile_ambient(policy),
    }
}

/// The ruleset of these chains, without those that have no rule.
fn compiled(families: Families, chains: impl IntoIterator<Item = Chain>) -> Ruleset {
    let mut chains: Vec<Chain> = chains.into_iter().filter(|chain| !chain.rules.is_empty()).collect();
    if families == Families::V4Only {
        leave_ipv6_alone(&mut chains);
    }
    Ruleset { families, chains }
}

/// An inet table has packets of both families. Without IPv6, every rule at a hook matches IPv4, so that an IPv6 packet
/// matches no rule of Gybe (Istio's own nft rules capture it: difference D1).
fn leave_ipv6_alone(chains: &mut [Chain]) {
    for chain in chains.iter_mut().filter(|chain| chain.name.hook().is_some()) {
        for rule in chain.rules.iter_mut().filter(|rule| rule.family().is_none()) {
            rule.matches.insert(0, Match::Family(Family::V4));
        }
    }
}

impl Chain {
    fn new(name: ChainName) -> Self {
        Self { name, rules: Vec::new() }
    }

    fn rule(mut self, id: &'static str, matches: impl IntoIterator<Item = Match>, verdict: Verdict) -> Self {
        self.rules.push(Rule { id: RuleId(id), matches: matches.into_iter().collect(), verdict });
        self
    }

    /// Adds the rule when the condition holds.
    fn rule_if(
        self,
        condition: bool,
        id: &'static str,
        matches: impl IntoIterator<Item = Match>,
        verdict: Verdict,
    ) -> Self {
        if condition { self.rule(id, matches, verdict) } else { self }
    }

    /// Adds one rule for the networks of each family.
    fn rule_per_family(
        self,
        each: Vec<FamilyNetworks>,
        matches: impl Fn(Networks) -> Vec<Match>,
        verdict: Verdict,
    ) -> Self {
        each.into_iter()
            .fold(self, |chain, FamilyNetworks { id, networks }| chain.rule(id, matches(networks), verdict))
    }
}

/// The networks of one family, and the id of their rule.
struct FamilyNetworks {
    id: &'static str,
    networks: Networks,
}

/// Properties of a policy that several chains use.
impl RedirectPolicy {
    /// The networks of each enabled family that has any; `ids` for IPv4 and IPv6.
    fn per_family(&self, ids: [&'static str; 2], networks: &CidrSet) -> Vec<FamilyNetworks> {
        self.of_families(ids, networks.v4(), networks.v6())
    }

    fn of_families(&self, ids: [&'static str; 2], v4: &[Ipv4Net], v6: &[Ipv6Net]) -> Vec<FamilyNetworks> {
        networks_per_family(self.families, ids, v4, v6)
    }

    /// The pod's own loopback addresses: configurable in IPv4, `::1` in IPv6.
    fn loopback_per_family(&self, ids: [&'static str; 2]) -> Vec<FamilyNetworks> {
        self.of_families(ids, &[self.loopback.network()], &[Ipv6Net::from(Ipv6Addr::LOCALHOST)])
    }

    /// Connections that the inbound listener forwards to the application.
    fn passthrough_per_family(&self, ids: [&'static str; 2]) -> Vec<FamilyNetworks> {
        self.of_families(ids, &[Ipv4Net::from(PASSTHROUGH_V4)], &[Ipv6Net::from(PASSTHROUGH_V6)])
    }
}

fn networks_per_family(
    families: Families,
    ids: [&'static str; 2],
    v4: &[Ipv4Net],
    v6: &[Ipv6Net],
) -> Vec<FamilyNetworks> {
    let has_ipv6 = families == Families::V4AndV6;
    let v4 = (!v4.is_empty()).then(|| Networks::V4(v4.to_vec()));
    let v6 = (has_ipv6 && !v6.is_empty()).then(|| Networks::V6(v6.to_vec()));
    let pairs = ids.into_iter().zip([v4, v6]);
    pairs.filter_map(|(id, networks)| Some(FamilyNetworks { id, networks: networks? })).collect()
}

const TCP: Match = Match::Protocol(Transport::Tcp);
const UDP: Match = Match::Protocol(Transport::Udp);

/// The port of DNS servers.
const DNS_PORT: u16 = 53;

fn only(port: u16) -> PortSet {
    PortSet::from_iter([port])
}

fn any_uid(owners: &Owners) -> Match {
    Match::OwnerUid(owners.all())
}

fn any_gid(owners: &Owners) -> Match {
    Match::OwnerGid(owners.all())
}

fn over_loopback() -> Match {
    Match::OutInterface(BTreeSet::from([InterfaceName::loopback()]))
}

fn to(nets: Networks) -> Match {
    Match::Destination(Is::In, nets)
}

fn not_to(nets: Networks) -> Match {
    Match::Destination(Is::NotIn, nets)
}

fn dport(ports: PortSet) -> Match {
    Match::DestinationPort(Is::In, ports)
}

#[cfg(test)]
mod tests;
