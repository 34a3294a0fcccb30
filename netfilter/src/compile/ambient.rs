//! The rules of an ambient pod. The meaning is istio-cni's (docs/RULES.md, section 7); chains and set of rules are Gybe's.
//!
//! ```text
//! application ─► nat-output ─► ztunnel 15001, DNS ─► 15053 ─ mark M ─► leaves untouched
//! client ─► nat-prerouting ─► ztunnel 15006 (HBONE: 15008, without a rule)
//!        ztunnel ─ client's address, mark M ─► lo, "original-source" ─► application
//!        application ─ "answer-to-ztunnel" ─ mark C ─► table 100 ─► lo ─► ztunnel
//! ```

use super::{
    DNS_PORT, FamilyNetworks, TCP, UDP, compiled, dport, networks_per_family, not_to, only, over_loopback, to,
};
use crate::model::inventory::{Inventory, PartKind};
use crate::model::policy::ambient::{
    AmbientDns, AmbientInbound, AmbientPolicy, ORIGINAL_SOURCE_MARK, UPSTREAM_ZONE, ZTUNNEL_MARK,
};
use crate::model::policy::istio::{AGENT_DNS_PORT, INBOUND_PORT, OUTBOUND_PORT, TUNNEL_PORT};
use crate::model::policy::{Families, InterfaceName};
use crate::model::ruleset::{Chain, ChainName, Is, Match, Ruleset, Stage, Verdict};
use ipnet::{Ipv4Net, Ipv6Net};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The rules of `policy` for one network namespace.
pub fn compile_ambient(policy: &AmbientPolicy) -> Ruleset {
    let by_ztunnel = || Match::Mark(Is::In, ZTUNNEL_MARK);
    let not_by_ztunnel = || Match::Mark(Is::NotIn, ZTUNNEL_MARK);
    let loopback = |ids| per_family(policy, ids, Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    let probes = |ids| per_family(policy, ids, policy.probes.v4(), policy.probes.v6());
    let has_dns = policy.dns == AmbientDns::Captured;
    let has_inbound = policy.inbound == AmbientInbound::Captured;
    let when = |condition, each: Vec<FamilyNetworks>| if condition { each } else { Vec::new() };

    // ztunnel's query to the upstream server can have the five-tuple of the application's, and must not share its
    // translation. Zone 1 contains ztunnel's queries and the answers to them; only ztunnel's packets are marked.
    let raw_prerouting = Chain::new(ChainName::RawPrerouting).rule_if(
        has_dns,
        "zone-answers-to-ztunnel",
        [UDP, Match::SourcePort(Is::In, only(DNS_PORT)), not_by_ztunnel()],
        Verdict::Zone(UPSTREAM_ZONE),
    );
    let raw_output = Chain::new(ChainName::RawOutput).rule_if(
        has_dns,
        "zone-ztunnel-queries",
        [UDP, dport(only(DNS_PORT)), by_ztunnel()],
        Verdict::Zone(UPSTREAM_ZONE),
    );

    // ztunnel connects to the application from the client's address. The application's packets go to that address, so
    // they get a mark by which routing delivers them to ztunnel's socket instead.
    let mangle_prerouting = Chain::new(ChainName::ManglePrerouting).rule(
        "original-source",
        [by_ztunnel()],
        Verdict::SetConnectionMark(ORIGINAL_SOURCE_MARK),
    );
    let mangle_output = Chain::new(ChainName::MangleOutput).rule(
        "answer-to-ztunnel",
        [Match::ConnectionMark(ORIGINAL_SOURCE_MARK)],
        Verdict::RestoreMark,
    );

    let nat_prerouting = Chain::new(ChainName::NatPrerouting)
        // First: the outbound connections of a virtual machine arrive here and are not inbound ones.
        .rule_if(
            !policy.virtual_interfaces.is_empty(),
            "machine-to-ztunnel",
            [Match::InInterface(policy.virtual_interfaces.clone()), TCP],
            Verdict::Redirect(OUTBOUND_PORT),
        )
        // The kubelet's probes have no identity in the mesh.
        .rule_per_family(
            when(has_inbound, probes(["from-probe-v4", "from-probe-v6"])),
            |nets| vec![Match::Source(Is::In, nets), TCP],
            Verdict::Return,
        )
        // ztunnel itself listens for HBONE. Its own connections to the application arrive by lo.
        .rule_per_family(
            when(has_inbound, loopback(["inbound-to-ztunnel-v4", "inbound-to-ztunnel-v6"])),
            |nets| {
                let port = Match::DestinationPort(Is::NotIn, only(TUNNEL_PORT.get()));
                vec![not_to(nets), TCP, port, not_by_ztunnel()]
            },
            Verdict::Redirect(INBOUND_PORT),
        );

    let nat_output = Chain::new(ChainName::NatOutput)
        // Connections to the address of probes are left alone, too. The kernel evaluates this chain for the first packet
        // of a connection, so answers to probes do not come here.
        .rule_per_family(probes(["to-probe-v4", "to-probe-v6"]), |nets| vec![to(nets), TCP], Verdict::Return)
        // Before the rule for lo: queries over TCP to the pod's own addresses are captured too.
        .rule_per_family(
            when(has_dns, loopback(["dns-to-ztunnel-tcp-v4", "dns-to-ztunnel-tcp-v6"])),
            |nets| vec![not_to(nets), TCP, dport(only(DNS_PORT)), not_by_ztunnel()],
            Verdict::Redirect(AGENT_DNS_PORT),
        )
        // Connections of the pod to its own addresses, and ztunnel's to the application, are direct.
        .rule("to-own-pod", [over_loopback()], Verdict::Return)
        .rule_if(
            has_dns,
            "dns-to-ztunnel-udp",
            [UDP, dport(only(DNS_PORT)), not_by_ztunnel()],
            Verdict::Redirect(AGENT_DNS_PORT),
        )
        // A socket that sets mark C itself is left alone.
        .rule("to-original-source", [TCP, Match::Mark(Is::In, ORIGINAL_SOURCE_MARK)], Verdict::Return)
        // Redirected to itself, ztunnel's own connections would loop.
        .rule_per_family(
            loopback(["outbound-to-ztunnel-v4", "outbound-to-ztunnel-v6"]),
            |nets| vec![not_to(nets), TCP, not_by_ztunnel()],
            Verdict::Redirect(OUTBOUND_PORT),
        );

    compiled(
        policy.families,
        [raw_prerouting, raw_output, mangle_prerouting, mangle_output, nat_prerouting, nat_output],
    )
}

/// The rules for the open connections of a pod that is no longer ambient: none leads a new connection to ztunnel. The
/// chains for NAT stay, because without one the kernel stops translating the open connections.
pub fn compile_ambient_draining(families: Families) -> Ruleset {
    let mut rules = compile_ambient(&AmbientPolicy { families, ..AmbientPolicy::default() });
    // A query has no connection that stays open; so no kernel needs conntrack zones for this.
    rules.chains.retain(|chain| chain.name.stage() != Stage::Raw);
    for chain in &mut rules.chains {
        chain.rules.retain(|rule| !matches!(rule.verdict, Verdict::Redirect(_)));
    }
    rules
}

/// Reports whether one of these rules is of an ambient policy.
pub fn has_ambient_rules(found: &Inventory) -> bool {
    let chains = found.parts.iter().filter(|part| part.kind == PartKind::Chain);
    has_ambient_id(chains.flat_map(|part| &part.items).map(|item| item.id.as_str()))
}

/// Reports whether one of these ids of rules is of an ambient policy. No rule of a sidecar has such an id.
pub(crate) fn has_ambient_id<'i>(mut ids: impl Iterator<Item = &'i str>) -> bool {
    let virtual_interfaces = [InterfaceName::loopback()].into();
    let every_rule = compile_ambient(&AmbientPolicy { virtual_interfaces, ..AmbientPolicy::default() });
    ids.any(|id| every_rule.rules().any(|(_, rule)| rule.id.0 == id))
}

/// Pairs each id with the address of its family, for the enabled families.
fn per_family(
    policy: &AmbientPolicy,
    ids: [&'static str; 2],
    v4: Ipv4Addr,
    v6: Ipv6Addr,
) -> Vec<FamilyNetworks> {
    networks_per_family(policy.families, ids, &[Ipv4Net::from(v4)], &[Ipv6Net::from(v6)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_a_pod_that_leaves_redirect_nothing_and_keep_nat_and_the_marks_of_open_connections() {
        let draining = compile_ambient_draining(Families::V4AndV6);
        let all = compile_ambient(&AmbientPolicy::default());
        let redirects =
            |rules: &Ruleset| rules.rules().any(|(_, it)| matches!(it.verdict, Verdict::Redirect(_)));
        assert!(redirects(&all) && !redirects(&draining));
        let chains: Vec<ChainName> = draining.chains.iter().map(|chain| chain.name).collect();
        for chain in [ChainName::NatPrerouting, ChainName::NatOutput] {
            assert!(chains.contains(&chain), "{chains:?}");
        }
        for id in ["original-source", "answer-to-ztunnel"] {
            assert!(draining.rules().any(|(_, rule)| rule.id.0 == id), "{id}");
        }
        let ids = draining.rules().map(|(_, rule)| rule.id.0);
        assert!(has_ambient_id(ids), "a later judgement recognizes them");
    }
}
