//! Evaluates matches of iptables for a packet.

use super::bits::Truth;
use super::packet::{ConntrackEntry, CurrentPacket, HookInterface, PacketTracking};
use crate::inspect::live::rules::NamespaceRules;
use crate::model::policy::PortRange;
use crate::model::ruleset::{Is, Transport};
use crate::xt::legacy::{AddressTest, HeaderTest, InterfaceTest};
use crate::xt::{AddressTypes, Conntrack, ConntrackTest, OwnerTest, PortEnd, States, TypeTest, XtMatch};
use std::net::IpAddr;

/// Reports whether a packet passes a match; `None` when that is not known.
pub(super) fn passes(
    test: &XtMatch,
    packet: &CurrentPacket,
    entry: Option<&ConntrackEntry>,
    ns: &NamespaceRules,
) -> Truth {
    let (source, destination) = (packet.source.port(), packet.destination.port());
    match test {
        XtMatch::Tcp(test) => {
            let ports = test.source.applies(source) && test.destination.applies(destination);
            let flags = test.flags.map_or(Some(true), |test| {
                let [flags, known] = packet.flags;
                let equal = (flags & test.mask) == test.set;
                match test.mask & !known {
                    0 => Some(equal == (test.is == Is::In)),
                    _ => None,
                }
            });
            let option = if test.option().is_some() { None } else { Some(true) };
            all([Some(ports && packet.protocol == Transport::Tcp), flags, option])
        }
        XtMatch::Udp(test) => Some(
            packet.protocol == Transport::Udp
                && test.source.applies(source)
                && test.destination.applies(destination),
        ),
        XtMatch::Multiport(test) => {
            let has = |port| test.ports.iter().any(|range| contains(*range, port));
            let found = match test.end {
                PortEnd::Source => has(source),
                PortEnd::Destination => has(destination),
                PortEnd::Either => has(source) || has(destination),
            };
            Some(found == (test.is == Is::In))
        }
        XtMatch::Owner(test) => owner(test, packet),
        XtMatch::Mark(test) => Some(test.applies(packet.mark)),
        // Without a connection the match does not apply (`connmark_mt`, net/netfilter/xt_connmark.c).
        XtMatch::ConnectionMark(test) => Some(tracked(packet, entry).is_some_and(|e| test.applies(e.mark))),
        XtMatch::Conntrack(test) => conntrack(test, packet, entry),
        XtMatch::Comment(_) => Some(true),
        XtMatch::AddressType(test) => address_types(test, packet, ns),
        XtMatch::Icmp(_) => Some(false),
        XtMatch::IpRange(test) => {
            let inside = |range: &Option<(Is, [IpAddr; 2])>, address: IpAddr| {
                range
                    .is_none_or(|(is, [first, last])| (first <= address && address <= last) == (is == Is::In))
            };
            Some(
                inside(&test.source, packet.source.ip())
                    && inside(&test.destination, packet.destination.ip()),
            )
        }
        XtMatch::PacketType { .. }
        | XtMatch::Limit { .. }
        | XtMatch::Socket(_)
        | XtMatch::Test(_)
        | XtMatch::Unknown(_) => None,
    }
}

/// The conjunction: false when one is false, else unknown when one is unknown.
pub(super) fn all(truths: impl IntoIterator<Item = Truth>) -> Truth {
    let mut all = Some(true);
    for truth in truths {
        match truth {
            Some(false) => return Some(false),
            None => all = None,
            Some(true) => {}
        }
    }
    all
}

fn contains(range: PortRange, port: u16) -> bool {
    let (first, last) = range.bounds();
    first <= port && port <= last
}

fn tracked<'e>(packet: &CurrentPacket, entry: Option<&'e ConntrackEntry>) -> Option<&'e ConntrackEntry> {
    entry.filter(|_| matches!(packet.tracking, PacketTracking::Original | PacketTracking::Reply))
}

/// `owner_mt` (net/netfilter/xt_owner.c): a packet without a socket passes when every test is inverted.
fn owner(test: &OwnerTest, packet: &CurrentPacket) -> Truth {
    let Some(owner) = packet.owner else {
        let ids = [test.uid.map(|id| id.is), test.gid.map(|id| id.is), test.socket];
        return Some(ids.into_iter().flatten().all(|is| is == Is::NotIn));
    };
    let gid = match test.gid {
        Some(gid) if test.supplementary_groups && !gid.applies(owner.gid) => None,
        gid => Some(gid.is_none_or(|gid| gid.applies(owner.gid))),
    };
    all([Some(test.socket != Some(Is::NotIn)), Some(test.uid.is_none_or(|uid| uid.applies(owner.uid))), gid])
}

/// `conntrack_mt` (net/netfilter/xt_conntrack.c).
fn conntrack(test: &Conntrack, packet: &CurrentPacket, entry: Option<&ConntrackEntry>) -> Truth {
    let known = tracked(packet, entry);
    let states = test.tests.iter().filter_map(|test| match test {
        ConntrackTest::State(is, states) => Some(has_state(*states, packet, entry) == (*is == Is::In)),
        _ => None,
    });
    let states: Vec<bool> = states.collect();
    if states.contains(&false) {
        return Some(false);
    }
    // Without a connection only the state counts.
    let Some(known) = known else { return Some(!states.is_empty()) };
    all(test.tests.iter().map(|test| match test {
        ConntrackTest::State(..) => Some(true),
        ConntrackTest::Protocol(is, number) => {
            Some((u16::from(packet.protocol.number()) == *number) == (*is == Is::In))
        }
        ConntrackTest::Address { option, is, address, mask } => {
            let (from, to) = if option.contains("repl") { known.reply } else { known.original };
            let tested = if option.ends_with("src") { from.ip() } else { to.ip() };
            Some(masked(tested, *mask) == masked(*address, *mask) && tested.is_ipv4() == address.is_ipv4())
                .map(|equal| equal == (*is == Is::In))
        }
        ConntrackTest::Port { option, is, range } => {
            let (from, to) = if option.contains("repl") { known.reply } else { known.original };
            let tested = if option.ends_with("srcport") { from.port() } else { to.port() };
            Some(contains(*range, tested) == (*is == Is::In))
        }
        ConntrackTest::Original(is) => Some((packet.tracking == PacketTracking::Original) == (*is == Is::In)),
        ConntrackTest::Status(..) | ConntrackTest::Expires(..) => None,
    }))
}

fn has_state(states: States, packet: &CurrentPacket, entry: Option<&ConntrackEntry>) -> bool {
    let state = match packet.state(entry) {
        1 => States::INVALID,
        2 => States::ESTABLISHED,
        8 => States::NEW,
        _ => States::UNTRACKED,
    };
    let translated = tracked(packet, entry).is_some_and(|known| {
        known.source.is_done && states.intersects(States::SNAT)
            || known.destination.is_done && states.intersects(States::DNAT)
    });
    states.intersects(state) || translated
}

/// `RTN_UNICAST`, `RTN_LOCAL`, `RTN_MULTICAST`.
fn address_types(test: &AddressTypes, packet: &CurrentPacket, ns: &NamespaceRules) -> Truth {
    if test.limit_in || test.limit_out {
        return None;
    }
    let is_one = |test: Option<TypeTest>, address: IpAddr| {
        let Some(test) = test else { return Some(true) };
        let kind = match address {
            address if ns.is_local(address) => 1 << 2,
            address if address.is_multicast() => 1 << 5,
            // The routing tables decide about broadcast, blackhole and the other types.
            _ if test.types & !(1 << 1 | 1 << 2 | 1 << 5) != 0 => return None,
            _ => 1 << 1,
        };
        Some((test.types & kind != 0) == (test.is == Is::In))
    };
    all([is_one(test.source, packet.source.ip()), is_one(test.destination, packet.destination.ip())])
}

/// Evaluates the header test of a rule of iptables-legacy (`ip_packet_match`).
pub(super) fn header(header: &HeaderTest, packet: &CurrentPacket) -> Truth {
    let address = |test: Option<AddressTest>, address: IpAddr| {
        Some(test.is_none_or(|test| {
            let equal = masked(address, test.mask) == masked(test.address, test.mask);
            equal == (test.is == Is::In)
        }))
    };
    let protocol = header
        .protocol
        .is_none_or(|(is, number)| (u16::from(packet.protocol.number()) == number) == (is == Is::In));
    all([
        address(header.source, packet.source.ip()),
        address(header.destination, packet.destination.ip()),
        interface(header.in_interface.as_ref(), &packet.arrives),
        interface(header.out_interface.as_ref(), &packet.leaves),
        Some(protocol),
        // No followed packet is a later fragment.
        Some(header.fragment != Some(Is::In)),
    ])
}

fn interface(test: Option<&InterfaceTest>, by: &HookInterface) -> Truth {
    let Some(test) = test else { return Some(true) };
    let name = match by {
        HookInterface::Unknown => return None,
        HookInterface::None => "",
        HookInterface::Name(name) => name.as_str(),
    };
    let equal = if test.is_prefix { name.starts_with(&test.name) } else { name == test.name };
    Some(equal == (test.is == Is::In))
}

fn masked(address: IpAddr, mask: IpAddr) -> Option<u128> {
    match (address, mask) {
        (IpAddr::V4(address), IpAddr::V4(mask)) => Some(u128::from(address.to_bits() & mask.to_bits())),
        (IpAddr::V6(address), IpAddr::V6(mask)) => Some(address.to_bits() & mask.to_bits()),
        _ => None,
    }
}
