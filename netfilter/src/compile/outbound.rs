//! NAT of outbound connections: which of the pod's own connections are redirected to the proxy.
//!
//! ```text
//! leaves ─► nat-output ─ excluded, proxy's own ─► unchanged
//!                      ─ over lo ─► nat-loopback ─ proxy to its own pod ─► 15006
//!                      │                         └ else unchanged, or continues in nat-capture
//!                      └ rest: here, or in nat-capture if both chains continue there ─► 15001, DNS ─► 15053
//! ```

use super::{DNS_PORT, TCP, UDP, any_gid, any_uid, dport, not_to, only, over_loopback, to};
use crate::model::policy::istio::AGENT_DNS_PORT;
use crate::model::policy::{Destinations, Dns, Groups, PortSet, RedirectPolicy};
use crate::model::ruleset::{Chain, ChainName, Is, Match, Networks, Verdict};
use std::collections::BTreeSet;

pub(super) fn output(p: &RedirectPolicy) -> Chain {
    let to_excluded = Match::OutInterface(p.excluded_interfaces.clone());
    let excluded = &p.outbound.excluded_ports;
    let excludes_dns = dns_is_captured(p) && excluded.contains(DNS_PORT);
    let to_excluded_port = [TCP, dport(excluded.clone())];
    let chain = Chain::new(ChainName::NatOutput)
        .rule_if(!p.excluded_interfaces.is_empty(), "excluded-interface-out", [to_excluded], Verdict::Return)
        // Before the rules for connections to the own pod: an excluded port is also excluded for the proxy's hairpin
        // connections and for DNS (quirk E8). DNS is the only UDP traffic that is captured.
        .rule_if(!excluded.is_empty(), "outbound-excluded-port", to_excluded_port, Verdict::Return)
        .rule_if(excludes_dns, "outbound-excluded-dns", [UDP, dport(only(DNS_PORT))], Verdict::Return)
        .rule("over-loopback", [over_loopback()], Verdict::Goto(ChainName::NatLoopback))
        // Redirected to itself, the proxy's own connections would loop.
        .rule("proxy-uid", [any_uid(&p.proxy_uids)], Verdict::Return)
        .rule("proxy-gid", [any_gid(&p.proxy_gids)], Verdict::Return);
    match capture_begins(p) {
        Capture::Inline => captured(chain, p),
        Capture::Chain(matches) => chain.rule("to-capture", matches, Verdict::Goto(ChainName::NatCapture)),
        Capture::Nothing => chain,
    }
}

/// The rules for connections inside the pod. Only the proxy's connections to its own pod go to the inbound listener
/// (policy, mTLS, telemetry); connections between containers stay direct.
pub(super) fn loopback(p: &RedirectPolicy) -> Chain {
    let open = loopback_is_captured(p);
    // Hairpin connections of the first uid only, unless loopback traffic is captured for all (quirks E1, E9).
    let hairpin_uids = if open { p.proxy_uids.all() } else { BTreeSet::from([p.proxy_uids.first]) };
    // Istio's agent queries a DNS server inside the pod directly, not through the inbound listener.
    let uid_ports = if dns_is_captured(p) {
        [DNS_PORT, p.tunnel_port.get()].into_iter().collect()
    } else {
        only(p.tunnel_port.get())
    };
    let chain = Chain::new(ChainName::NatLoopback)
        .rule_per_family(
            p.passthrough_per_family(["inbound-passthrough-v4", "inbound-passthrough-v6"]),
            |nets| vec![Match::Source(Is::In, nets)],
            Verdict::Return,
        )
        .rule_per_family(
            p.loopback_per_family(["proxy-to-own-pod-v4", "proxy-to-own-pod-v6"]),
            hairpin(uid_ports, Match::OwnerUid(hairpin_uids)),
            Verdict::Redirect(p.inbound_port),
        );
    if !loopback_leads_on(p) {
        return chain;
    }
    let but_dns = [TCP, Match::DestinationPort(Is::NotIn, only(DNS_PORT))];
    let chain = chain
        // With DNS capture, only queries reach the rules below; other connections stay direct.
        .rule_if(!open, "own-pod-but-dns", but_dns, Verdict::Return)
        .rule("own-pod-proxy-uid", [any_uid(&p.proxy_uids)], Verdict::Return)
        .rule_per_family(
            p.loopback_per_family(["proxy-group-to-own-pod-v4", "proxy-group-to-own-pod-v6"]),
            hairpin(only(p.tunnel_port.get()), any_gid(&p.proxy_gids)),
            Verdict::Redirect(p.inbound_port),
        )
        .rule("own-pod-proxy-gid", [any_gid(&p.proxy_gids)], Verdict::Return);
    match capture_begins(p) {
        Capture::Chain(matches) => {
            chain.rule("own-pod-to-capture", matches, Verdict::Goto(ChainName::NatCapture))
        }
        Capture::Inline | Capture::Nothing => chain,
    }
}

/// The rules for connections without an exemption, if two chains continue here.
pub(super) fn capture(p: &RedirectPolicy) -> Chain {
    let chain = Chain::new(ChainName::NatCapture);
    match capture_begins(p) {
        Capture::Chain(_) => captured(chain, p),
        Capture::Inline | Capture::Nothing => chain,
    }
}

fn captured(mut chain: Chain, p: &RedirectPolicy) -> Chain {
    let o = &p.outbound;
    if let Groups::AllBut(groups) = &o.groups {
        let of_excluded = [Match::OwnerGid(groups.clone())];
        chain = chain.rule_if(!groups.is_empty(), "excluded-owner-group", of_excluded, Verdict::Return);
    }
    // Before the loopback exemption: queries to a resolver on 127.0.0.1 or 127.0.0.53 are captured too.
    chain = dns_to_agent(chain, p);
    if loopback_leads_on(p) {
        let loopback = p.loopback_per_family(["to-loopback-v4", "to-loopback-v6"]);
        chain = chain.rule_per_family(loopback, |nets| vec![to(nets)], Verdict::Return);
    }
    // Precedence: excluded networks, then included ports, then included networks.
    let excluded = p.per_family(["outbound-excluded-v4", "outbound-excluded-v6"], &o.excluded_to);
    let chain = chain.rule_per_family(excluded, |nets| vec![to(nets)], Verdict::Return);
    let redirect = Verdict::Redirect(p.outbound_port);
    match &o.included_to {
        // Included ports have no effect here (quirk E10): every port is captured.
        Destinations::All => chain.rule("outbound-to-proxy", [TCP], redirect),
        Destinations::Only(nets) => {
            let ports = &o.included_ports;
            let to_included = [TCP, dport(ports.clone())];
            chain.rule_if(!ports.is_empty(), "outbound-included-port", to_included, redirect).rule_per_family(
                p.per_family(["outbound-to-proxy-v4", "outbound-to-proxy-v6"], nets),
                |nets| vec![to(nets), TCP],
                redirect,
            )
        }
    }
}

fn dns_to_agent(chain: Chain, p: &RedirectPolicy) -> Chain {
    let query = |over| [over, dport(only(DNS_PORT))];
    let to_agent = Verdict::Redirect(AGENT_DNS_PORT);
    match &p.dns {
        Dns::Off => chain,
        Dns::All => {
            let chain = chain.rule("dns-to-agent-tcp", query(TCP), to_agent);
            chain.rule("dns-to-agent-udp", query(UDP), to_agent)
        }
        Dns::Servers(servers) => {
            let to_servers =
                |over: Match| move |nets| [vec![to(nets)], query(over.clone()).to_vec()].concat();
            let over_tcp = p.per_family(["dns-to-agent-tcp-v4", "dns-to-agent-tcp-v6"], servers);
            let over_udp = p.per_family(["dns-to-agent-udp-v4", "dns-to-agent-udp-v6"], servers);
            let chain = chain.rule_per_family(over_tcp, to_servers(TCP), to_agent);
            chain.rule_per_family(over_udp, to_servers(UDP), to_agent)
        }
    }
}

/// The matches for connections of the proxy to a non-loopback address of its own pod, on a port not in `but`.
fn hairpin(but: PortSet, owner: Match) -> impl Fn(Networks) -> Vec<Match> {
    let port = Match::DestinationPort(Is::NotIn, but);
    move |loopback| vec![not_to(loopback), TCP, port.clone(), owner.clone()]
}

/// The place of the rules that capture.
enum Capture {
    /// At the end of nat-output, the only chain that leads to them.
    Inline,
    /// In nat-capture, which packets with these properties enter.
    Chain(Vec<Match>),
    /// None: the policy captures no group or no connection.
    Nothing,
}

fn capture_begins(p: &RedirectPolicy) -> Capture {
    let rules = captured(Chain::new(ChainName::NatCapture), p).rules;
    if !rules.iter().any(|rule| matches!(rule.verdict, Verdict::Redirect(_))) {
        return Capture::Nothing;
    }
    match &p.outbound.groups {
        Groups::Only(groups) if groups.is_empty() => Capture::Nothing,
        Groups::Only(groups) => Capture::Chain(vec![Match::OwnerGid(groups.clone())]),
        Groups::AllBut(_) if loopback_leads_on(p) => Capture::Chain(Vec::new()),
        Groups::AllBut(_) => Capture::Inline,
    }
}

/// Reports whether a connection inside the pod can be captured.
fn loopback_leads_on(p: &RedirectPolicy) -> bool {
    loopback_is_captured(p) || dns_is_captured(p)
}

/// Reports whether connections inside the pod are captured: an included network with a loopback address turns the
/// exemption off for both families (quirk E9).
fn loopback_is_captured(p: &RedirectPolicy) -> bool {
    matches!(&p.outbound.included_to, Destinations::Only(nets) if nets.names_loopback())
}

fn dns_is_captured(p: &RedirectPolicy) -> bool {
    p.dns != Dns::Off
}
