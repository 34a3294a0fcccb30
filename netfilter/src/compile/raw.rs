//! Conntrack zones for DNS: the application's query to Istio's agent and the agent's query to the upstream server can
//! have the same five-tuple and must not share a NAT mapping.
//!
//! Zone 1 contains the connections between agent and upstream server, zone 2 those between application and agent. The
//! first rule that selects a zone decides: the kernel skips a packet that already has a conntrack template
//! (`nft_ct_set_zone_eval`, net/netfilter/nft_ct.c, v6.18; iptables' CT target likewise).

use super::{DNS_PORT, UDP, any_gid, any_uid, dport, only, to};
use crate::model::policy::istio::AGENT_DNS_PORT;
use crate::model::policy::{Dns, RedirectPolicy};
use crate::model::ruleset::{Chain, ChainName, Is, Match, Verdict};

const UPSTREAM: Verdict = Verdict::Zone(1);
const AGENT: Verdict = Verdict::Zone(2);

pub(super) fn output(p: &RedirectPolicy) -> Chain {
    let chain = Chain::new(ChainName::RawOutput);
    if p.dns == Dns::Off {
        return chain;
    }
    let from_agent = || Match::SourcePort(Is::In, only(AGENT_DNS_PORT.get()));
    let chain = chain
        .rule("zone-proxy-uid-queries", [UDP, queries(), any_uid(&p.proxy_uids)], UPSTREAM)
        .rule("zone-proxy-uid-answers", [UDP, from_agent(), any_uid(&p.proxy_uids)], AGENT)
        .rule("zone-proxy-gid-queries", [UDP, queries(), any_gid(&p.proxy_gids)], UPSTREAM)
        .rule("zone-proxy-gid-answers", [UDP, from_agent(), any_gid(&p.proxy_gids)], AGENT);
    match &p.dns {
        Dns::Servers(servers) => chain.rule_per_family(
            p.per_family(["zone-app-queries-v4", "zone-app-queries-v6"], servers),
            |nets| vec![to(nets), UDP, queries()],
            AGENT,
        ),
        Dns::All | Dns::Off => chain.rule("zone-app-queries", [UDP, queries()], AGENT),
    }
}

pub(super) fn prerouting(p: &RedirectPolicy) -> Chain {
    let chain = Chain::new(ChainName::RawPrerouting);
    let answers = || Match::SourcePort(Is::In, only(DNS_PORT));
    match &p.dns {
        Dns::Off => chain,
        Dns::All => chain.rule("zone-upstream-answers", [UDP, answers()], UPSTREAM),
        Dns::Servers(servers) => chain.rule_per_family(
            p.per_family(["zone-upstream-answers-v4", "zone-upstream-answers-v6"], servers),
            |nets| vec![Match::Source(Is::In, nets), UDP, answers()],
            UPSTREAM,
        ),
    }
}

fn queries() -> Match {
    dport(only(DNS_PORT))
}
