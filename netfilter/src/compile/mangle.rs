//! The mangle stage: packet marks and transparent delivery in TPROXY mode, and the drop of invalid packets.
//!
//! ```text
//! client ─► tproxy (mark M, table 133, lo) ─► proxy 15006 ─► upstream socket, client's address, mark M
//!        ─► lo, "keep-mark" ─► application ─► its reply gets mark M again ─► table 133 ─► lo ─► proxy
//! ```

use super::{TCP, any_gid, any_uid, dport, not_to, over_loopback};
use crate::model::policy::istio::OWN_POD_MARK;
use crate::model::policy::{Inbound, InterfaceName, InvalidPackets, Mode, PortSet, RedirectPolicy};
use crate::model::ruleset::{Chain, ChainName, ConnectionState, Is, Match, Networks, Verdict};
use std::collections::BTreeSet;

pub(super) fn prerouting(p: &RedirectPolicy) -> Chain {
    let Mode::Tproxy { mark, .. } = p.mode else {
        return drop_invalid(Chain::new(ChainName::ManglePrerouting), p);
    };
    let chain = Chain::new(ChainName::ManglePrerouting).when(!p.excluded_interfaces.is_empty(), |chain| {
        chain.rule(
            "excluded-interface-in",
            [Match::InInterface(p.excluded_interfaces.clone())],
            Verdict::Return,
        )
    });
    let chain = drop_invalid(chain, p)
        // Saves the mark of the proxy's own packets for the replies; "proxy-keeps-source" exempts these packets below.
        .rule("keep-mark", [TCP, Match::Mark(Is::In, mark)], Verdict::SaveMark);
    match &p.inbound {
        Inbound::Only(ports) if ports.is_empty() => chain,
        Inbound::Only(ports) => intercept(exempt(chain, p, mark), p, mark, Some(ports)),
        Inbound::AllBut(excluded) => {
            let chain = exempt(chain, p, mark).when(!excluded.is_empty(), |chain| {
                chain.rule("inbound-excluded-port", [TCP, dport(excluded.clone())], Verdict::Return)
            });
            intercept(chain, p, mark, None)
        }
    }
}

fn drop_invalid(chain: Chain, p: &RedirectPolicy) -> Chain {
    chain.when(p.invalid == InvalidPackets::Drop, |chain| {
        chain.rule("drop-invalid", [Match::State(ConnectionState::Invalid)], Verdict::Drop)
    })
}

/// Adds the exemptions from interception: arriving TCP packets that must not reach the inbound listener.
fn exempt(chain: Chain, p: &RedirectPolicy, mark: u32) -> Chain {
    chain
        .rule("proxy-keeps-source", [TCP, Match::Mark(Is::In, mark)], Verdict::Return)
        .rule_per_family(
            p.passthrough_per_family(["inbound-passthrough-on-lo-v4", "inbound-passthrough-on-lo-v6"])
                .into_iter()
                .map(|(id, nets)| (id, vec![on_lo(), Match::Source(Is::In, nets), TCP])),
            Verdict::Return,
        )
        .rule("inside-the-pod", [on_lo(), TCP, Match::Mark(Is::NotIn, OWN_POD_MARK)], Verdict::Return)
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
            p.loopback_per_family(["intercept-v4", "intercept-v6"])
                .into_iter()
                .map(|(id, nets)| (id, to_ports(vec![not_to(nets), TCP]))),
            Verdict::Tproxy { port: p.inbound_port, mark },
        )
        // Without a matching transparent socket, nft's tproxy passes the packet on to the application, past the proxy
        // (`nft_tproxy_eval_v4`, net/netfilter/nft_tproxy.c, v6.18); iptables' TPROXY drops it (`tproxy_tg4`,
        // net/netfilter/xt_TPROXY.c) and never reaches this rule.
        .rule_per_family(
            p.loopback_per_family(["not-intercepted-v4", "not-intercepted-v6"])
                .into_iter()
                .map(|(id, nets)| (id, to_ports(vec![not_to(nets), TCP]))),
            Verdict::Drop,
        )
}

pub(super) fn output(p: &RedirectPolicy) -> Chain {
    let chain = Chain::new(ChainName::MangleOutput);
    let Mode::Tproxy { mark, .. } = p.mode else { return chain };
    let to_own_pod = |id, nets: Networks, owner: Match| (id, vec![over_loopback(), not_to(nets), TCP, owner]);
    chain
        .when(!p.excluded_interfaces.is_empty(), |chain| {
            chain.rule(
                "excluded-interface-unmarked",
                [Match::OutInterface(p.excluded_interfaces.clone())],
                Verdict::Return,
            )
        })
        .rule("proxy-to-app", [over_loopback(), TCP, Match::Mark(Is::In, mark)], Verdict::Return)
        .rule_per_family(
            p.loopback_per_family(["mark-proxy-uid-v4", "mark-proxy-uid-v6"])
                .into_iter()
                .map(|(id, nets)| to_own_pod(id, nets, any_uid(&p.proxy_uids))),
            Verdict::SetMark(OWN_POD_MARK),
        )
        .rule_per_family(
            p.loopback_per_family(["mark-proxy-gid-v4", "mark-proxy-gid-v6"])
                .into_iter()
                .map(|(id, nets)| to_own_pod(id, nets, any_gid(&p.proxy_gids))),
            Verdict::SetMark(OWN_POD_MARK),
        )
        // Restores the mark on the application's replies, so that routing delivers them to the proxy's transparent
        // socket.
        .rule("answer-to-proxy", [TCP, Match::ConnectionMark(mark)], Verdict::RestoreMark)
}

fn on_lo() -> Match {
    Match::InInterface(BTreeSet::from([InterfaceName::loopback()]))
}
