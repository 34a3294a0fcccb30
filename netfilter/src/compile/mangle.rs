//! The mangle stage: packet marks and transparent delivery in TPROXY mode, and the drop of invalid packets.
//!
//! ```text
//! client ─► tproxy (mark M, table 133, lo) ─► proxy 15006 ─► upstream socket, client's address, mark M
//!        ─► lo, "keep-mark" ─► application ─► its reply gets mark M again ─► table 133 ─► lo ─► proxy
//! ```

use super::{TCP, any_gid, any_uid, dport, not_to, over_loopback};
use crate::model::policy::istio::OWN_POD_MARK;
use crate::model::policy::{Inbound, InterfaceName, InvalidPackets, Mode, PortSet, RedirectPolicy};
use crate::model::ruleset::{Chain, ChainName, ConnectionState, Is, Match, Verdict};
use std::collections::BTreeSet;

pub(super) fn prerouting(p: &RedirectPolicy) -> Chain {
    let Mode::Tproxy { mark, .. } = p.mode else {
        return drop_invalid(Chain::new(ChainName::ManglePrerouting), p);
    };
    let from_excluded = Match::InInterface(p.excluded_interfaces.clone());
    let excludes = !p.excluded_interfaces.is_empty();
    let chain = Chain::new(ChainName::ManglePrerouting).rule_if(
        excludes,
        "excluded-interface-in",
        [from_excluded],
        Verdict::Return,
    );
    let chain = drop_invalid(chain, p)
        // Saves the mark of the proxy's own packets for the replies; "proxy-keeps-source" exempts these packets below.
        .rule("keep-mark", [TCP, Match::Mark(Is::In, mark.into())], Verdict::SaveMark);
    match &p.inbound {
        Inbound::Only(ports) if ports.is_empty() => chain,
        Inbound::Only(ports) => intercept(exempt(chain, p, mark), p, mark, Some(ports)),
        Inbound::AllBut(excluded) => {
            let to_excluded = [TCP, dport(excluded.clone())];
            let chain = exempt(chain, p, mark);
            let excludes = !excluded.is_empty();
            let chain = chain.rule_if(excludes, "inbound-excluded-port", to_excluded, Verdict::Return);
            intercept(chain, p, mark, None)
        }
    }
}

fn drop_invalid(chain: Chain, p: &RedirectPolicy) -> Chain {
    let drops = p.invalid == InvalidPackets::Drop;
    chain.rule_if(drops, "drop-invalid", [Match::State(ConnectionState::Invalid)], Verdict::Drop)
}

/// Adds the exemptions from interception: arriving TCP packets that must not reach the inbound listener.
fn exempt(chain: Chain, p: &RedirectPolicy, mark: u32) -> Chain {
    chain
        .rule("proxy-keeps-source", [TCP, Match::Mark(Is::In, mark.into())], Verdict::Return)
        .rule_per_family(
            p.passthrough_per_family(["inbound-passthrough-on-lo-v4", "inbound-passthrough-on-lo-v6"]),
            |nets| vec![on_lo(), Match::Source(Is::In, nets), TCP],
            Verdict::Return,
        )
        .rule("inside-the-pod", [on_lo(), TCP, Match::Mark(Is::NotIn, OWN_POD_MARK.into())], Verdict::Return)
}

fn intercept(chain: Chain, p: &RedirectPolicy, mark: u32, ports: Option<&PortSet>) -> Chain {
    let to_ports = |mut matches: Vec<Match>| {
        matches.extend(ports.map(|ports| dport(ports.clone())));
        matches
    };
    let established = Match::State(ConnectionState::EstablishedOrRelated);
    chain
        // The kernel finds the proxy's socket for later packets by their addresses; they need only the mark.
        .rule("intercepted-before", [to_ports(vec![TCP]), vec![established]].concat(), Verdict::Divert(mark))
        .rule_per_family(
            p.loopback_per_family(["intercept-v4", "intercept-v6"]),
            |nets| to_ports(vec![not_to(nets), TCP]),
            Verdict::Tproxy { port: p.inbound_port, mark },
        )
        // Without a matching transparent socket, nft's tproxy passes the packet on to the application, past the proxy
        // (`nft_tproxy_eval_v4`, net/netfilter/nft_tproxy.c, v6.18); iptables' TPROXY drops it (`tproxy_tg4`,
        // net/netfilter/xt_TPROXY.c) and never reaches this rule.
        .rule_per_family(
            p.loopback_per_family(["not-intercepted-v4", "not-intercepted-v6"]),
            |nets| to_ports(vec![not_to(nets), TCP]),
            Verdict::Drop,
        )
}

pub(super) fn output(p: &RedirectPolicy) -> Chain {
    let chain = Chain::new(ChainName::MangleOutput);
    let Mode::Tproxy { mark, .. } = p.mode else { return chain };
    let to_own_pod = |owner: Match| move |nets| vec![over_loopback(), not_to(nets), TCP, owner.clone()];
    let to_excluded = Match::OutInterface(p.excluded_interfaces.clone());
    let excludes = !p.excluded_interfaces.is_empty();
    chain
        .rule_if(excludes, "excluded-interface-unmarked", [to_excluded], Verdict::Return)
        .rule("proxy-to-app", [over_loopback(), TCP, Match::Mark(Is::In, mark.into())], Verdict::Return)
        .rule_per_family(
            p.loopback_per_family(["mark-proxy-uid-v4", "mark-proxy-uid-v6"]),
            to_own_pod(any_uid(&p.proxy_uids)),
            Verdict::SetMark(OWN_POD_MARK),
        )
        .rule_per_family(
            p.loopback_per_family(["mark-proxy-gid-v4", "mark-proxy-gid-v6"]),
            to_own_pod(any_gid(&p.proxy_gids)),
            Verdict::SetMark(OWN_POD_MARK),
        )
        // Restores the mark on the application's replies, so that routing delivers them to the proxy's transparent
        // socket.
        .rule("answer-to-proxy", [TCP, Match::ConnectionMark(mark.into())], Verdict::RestoreMark)
}

fn on_lo() -> Match {
    Match::InInterface(BTreeSet::from([InterfaceName::loopback()]))
}
