//! Runs one chain of a Ruleset for one packet.

use super::{ConnectionPhase, Direction, Packet, Step, Trace, Transport};
use crate::policy::Port;
use crate::ruleset::{Chain, ConnectionState, Is, Match, Networks, Protocol, Rule, RuleId, Ruleset, Verdict};
use std::net::IpAddr;

/// The result of a chain for a packet.
pub(super) enum ChainEnd {
    /// The packet goes on; the rule that ended the chain, if a rule did.
    Passes(Option<RuleId>),
    Redirected(RuleId, Port),
    Intercepted(RuleId, Port),
    Dropped(RuleId),
}

/// Runs the rules from the head of `base` until a verdict ends them.
pub(super) fn walk(rules: &Ruleset, base: &Chain, packet: &mut Packet, trace: &mut Trace) -> ChainEnd {
    let mut chain = base;
    let mut went_on_by = None;
    // Each iteration enters one chain. `compile` makes no cycle, so the number of chains is the bound.
    for _ in 0..=rules.chains.len() {
        let Some(ended) = first_that_ends(chain, packet, trace) else { return ChainEnd::Passes(went_on_by) };
        match ended.verdict {
            Verdict::Goto(name) => match rules.chain(name) {
                Some(next) => (chain, went_on_by) = (next, Some(ended.id)),
                None => return ChainEnd::Passes(Some(ended.id)),
            },
            Verdict::Redirect(port) => return ChainEnd::Redirected(ended.id, port),
            Verdict::Tproxy { port, mark } => {
                packet.mark = mark;
                return ChainEnd::Intercepted(ended.id, port);
            }
            Verdict::Drop => return ChainEnd::Dropped(ended.id),
            _ => return ChainEnd::Passes(Some(ended.id)),
        }
    }
    ChainEnd::Passes(went_on_by)
}

/// Returns the first rule that applies and ends the chain, after the effects of those before it.
fn first_that_ends<'a>(chain: &'a Chain, packet: &mut Packet, trace: &mut Trace) -> Option<&'a Rule> {
    for rule in &chain.rules {
        if !rule.matches.iter().all(|m| applies(m, packet)) {
            continue;
        }
        trace.steps.push(Step { chain: chain.name, rule: rule.id });
        match rule.verdict {
            Verdict::SetMark(mark) => packet.mark = mark,
            Verdict::SaveMark => packet.connection.mark = packet.mark,
            Verdict::RestoreMark => packet.mark = packet.connection.mark,
            Verdict::Zone(zone) => trace.zone = trace.zone.or(Some(zone)),
            Verdict::Divert(mark) => {
                packet.mark = mark;
                return Some(rule);
            }
            Verdict::Return
            | Verdict::Drop
            | Verdict::Goto(_)
            | Verdict::Redirect(_)
            | Verdict::Tproxy { .. } => {
                return Some(rule);
            }
        }
    }
    None
}

fn applies(m: &Match, packet: &Packet) -> bool {
    match m {
        Match::Family(family) => packet.family() == *family,
        Match::Protocol(protocol) => match protocol {
            Protocol::Tcp => packet.protocol == Transport::Tcp,
            Protocol::Udp => packet.protocol == Transport::Udp,
        },
        Match::InInterface(names) => {
            matches!(&packet.direction, Direction::Arrives { by } if names.contains(by))
        }
        Match::OutInterface(names) => {
            matches!(&packet.direction, Direction::Leaves { by } if names.contains(by))
        }
        Match::Source(is, nets) => address(*is, nets, packet.source.ip()),
        Match::Destination(is, nets) => address(*is, nets, packet.destination.ip()),
        Match::SourcePort(is, ports) => (*is == Is::In) == ports.contains(packet.source.port()),
        Match::DestinationPort(is, ports) => (*is == Is::In) == ports.contains(packet.destination.port()),
        Match::OwnerUid(uids) => packet.owner.is_some_and(|owner| uids.contains(&owner.uid)),
        Match::OwnerGid(gids) => packet.owner.is_some_and(|owner| gids.contains(&owner.gid)),
        Match::Mark(is, mark) => (*is == Is::In) == (packet.mark == *mark),
        Match::ConnectionMark(mark) => packet.connection.mark == *mark,
        Match::State(state) => match state {
            ConnectionState::EstablishedOrRelated => packet.connection.phase == ConnectionPhase::Established,
            ConnectionState::Invalid => packet.connection.phase == ConnectionPhase::Invalid,
        },
    }
}

fn address(is: Is, nets: &Networks, address: IpAddr) -> bool {
    let same_family =
        matches!((nets, address), (Networks::V4(_), IpAddr::V4(_)) | (Networks::V6(_), IpAddr::V6(_)));
    same_family && (is == Is::In) == nets.contains(address)
}
