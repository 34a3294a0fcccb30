//! The expressions of a rule's matches.

use super::{Comparison, Field, NfExpression};
use gybe_netfilter::model::policy::{InterfaceName, MaskedMark, PortSet};
use gybe_netfilter::model::ruleset::{ConnectionState, Family, Is, Match, Networks, Rule, Transport};
use std::collections::BTreeSet;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// `NFPROTO_IPV4` and `NFPROTO_IPV6`, include/uapi/linux/netfilter.h.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// `NF_CT_STATE_BIT`, include/uapi/linux/netfilter/nf_conntrack_common.h.
const INVALID: u32 = 1;
const ESTABLISHED_OR_RELATED: u32 = 2 | 4;

pub(super) fn expressions(rule: &Rule) -> Vec<NfExpression> {
    let lists = rule.lists();
    let mut expressions = Vec::new();
    let mut asked = None;
    for (at, one) in rule.matches.iter().enumerate() {
        // The table has packets of both families: the family is compared once, before the first use of its header.
        if let Some(family) = family(one).filter(|family| asked.replace(*family) != Some(*family)) {
            expressions.extend([NfExpression::Load(Field::NetworkProtocol), equal([nfproto(family)])]);
        }
        expressions.extend(match lists.iter().find(|list| list.at == at) {
            Some(list) => in_set(one, list.name.clone().into_owned()),
            None => single_value(one),
        });
    }
    expressions
}

fn family(one: &Match) -> Option<Family> {
    match one {
        Match::Family(family) => Some(*family),
        Match::Source(_, nets) | Match::Destination(_, nets) => Some(nets.family()),
        _ => None,
    }
}

/// A list of several values: loads the property and looks it up.
fn in_set(one: &Match, set: String) -> Vec<NfExpression> {
    let is = match one {
        Match::Source(is, _)
        | Match::Destination(is, _)
        | Match::SourcePort(is, _)
        | Match::DestinationPort(is, _) => *is,
        _ => Is::In,
    };
    let mut expressions = load_property(one);
    expressions.push(NfExpression::Lookup(is, set));
    expressions
}

/// A single value: loads the property and compares it.
fn single_value(one: &Match) -> Vec<NfExpression> {
    match one {
        Match::Protocol(Transport::Tcp) => vec![NfExpression::Load(Field::TransportProtocol), equal([TCP])],
        Match::Protocol(Transport::Udp) => vec![NfExpression::Load(Field::TransportProtocol), equal([UDP])],
        Match::Family(_) => Vec::new(),
        Match::InInterface(names) | Match::OutInterface(names) => interface(one, names),
        Match::Source(is, nets) => network(SOURCE, *is, nets),
        Match::Destination(is, nets) => network(DESTINATION, *is, nets),
        Match::SourcePort(is, ports) | Match::DestinationPort(is, ports) => port(one, *is, ports),
        Match::OwnerUid(ids) | Match::OwnerGid(ids) => {
            with(load_property(one), ids.first().map(|id| equal(id.to_ne_bytes())))
        }
        Match::Mark(is, bits) => mark(Field::Mark, *is, *bits),
        Match::ConnectionMark(bits) => mark(Field::ConnectionMark, Is::In, *bits),
        Match::State(state) => connection(*state),
    }
}

fn mark(field: Field, is: Is, bits: MaskedMark) -> Vec<NfExpression> {
    let mask = (!bits.is_whole()).then(|| NfExpression::Mask(bits.mask().to_ne_bytes().to_vec()));
    let load = [NfExpression::Load(field)].into_iter().chain(mask);
    load.chain([compare(is, bits.value().to_ne_bytes())]).collect()
}

/// Loads the property of a match.
fn load_property(one: &Match) -> Vec<NfExpression> {
    let transport = |offset| vec![NfExpression::Load(Field::Transport { offset, length: 2 })];
    match one {
        Match::Protocol(_) => vec![NfExpression::Load(Field::TransportProtocol)],
        Match::InInterface(_) => vec![NfExpression::Load(Field::InInterface)],
        Match::OutInterface(_) => vec![NfExpression::Load(Field::OutInterface)],
        Match::Source(_, nets) => address(SOURCE, nets.family(), None),
        Match::Destination(_, nets) => address(DESTINATION, nets.family(), None),
        Match::SourcePort(..) => transport(0),
        Match::DestinationPort(..) => transport(2),
        Match::OwnerUid(_) => vec![NfExpression::Load(Field::OwnerUid)],
        Match::OwnerGid(_) => vec![NfExpression::Load(Field::OwnerGid)],
        Match::Family(_) | Match::Mark(..) | Match::ConnectionMark(_) | Match::State(_) => Vec::new(),
    }
}

/// Offsets of an address in the IPv4 and in the IPv6 header.
const SOURCE: [u32; 2] = [12, 8];
const DESTINATION: [u32; 2] = [16, 24];

/// Loads an address, or its first bytes.
fn address([v4, v6]: [u32; 2], family: Family, length: Option<u32>) -> Vec<NfExpression> {
    let (offset, whole) = match family {
        Family::V4 => (v4, 4),
        Family::V6 => (v6, 16),
    };
    vec![NfExpression::Load(Field::Network { offset, length: length.unwrap_or(whole) })]
}

fn network(offsets: [u32; 2], is: Is, nets: &Networks) -> Vec<NfExpression> {
    let (value, prefix): (Vec<u8>, u8) = match nets {
        Networks::V4(nets) => match nets.first() {
            Some(net) => (net.network().octets().to_vec(), net.prefix_len()),
            None => return Vec::new(),
        },
        Networks::V6(nets) => match nets.first() {
            Some(net) => (net.network().octets().to_vec(), net.prefix_len()),
            None => return Vec::new(),
        },
    };
    // A prefix of whole bytes is compared with as many bytes, any other with a mask.
    let whole = usize::from(prefix / 8);
    if prefix > 0 && prefix.is_multiple_of(8) {
        let mut expressions = address(offsets, nets.family(), u32::try_from(whole).ok());
        expressions.push(compare(is, value[..whole].to_vec()));
        return expressions;
    }
    let mut expressions = address(offsets, nets.family(), None);
    expressions.push(NfExpression::Mask(mask(prefix, value.len())));
    expressions.push(compare(is, value));
    expressions
}

fn mask(prefix: u8, length: usize) -> Vec<u8> {
    let ones = |byte: usize| u32::from(prefix).saturating_sub(8 * u32::try_from(byte).unwrap()).min(8);
    (0..length).map(|byte| 0xff_u8.checked_shr(ones(byte)).map_or(0xff, |zeros| !zeros)).collect()
}

fn interface(one: &Match, names: &BTreeSet<InterfaceName>) -> Vec<NfExpression> {
    with(load_property(one), names.first().map(|name| equal(padded(name))))
}

/// An interface name in `IFNAMSIZ` bytes, as in the kernel.
pub(super) fn padded(name: &InterfaceName) -> Vec<u8> {
    let mut bytes = name.as_str().as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

fn port(one: &Match, is: Is, ports: &PortSet) -> Vec<NfExpression> {
    let Some((first, last)) = ports.ranges().first().map(|range| range.bounds()) else { return Vec::new() };
    let (low, high) = (first.to_be_bytes().to_vec(), last.to_be_bytes().to_vec());
    let mut expressions = load_property(one);
    match is {
        _ if first == last => expressions.push(compare(is, low)),
        Is::In => {
            expressions.push(NfExpression::Compare(Comparison::AtLeast, low));
            expressions.push(NfExpression::Compare(Comparison::AtMost, high));
        }
        Is::NotIn => expressions.push(NfExpression::Outside(low, high)),
    }
    expressions
}

fn connection(state: ConnectionState) -> Vec<NfExpression> {
    let bits = match state {
        ConnectionState::EstablishedOrRelated => ESTABLISHED_OR_RELATED,
        ConnectionState::Invalid => INVALID,
    };
    vec![
        NfExpression::Load(Field::ConnectionState),
        NfExpression::Mask(bits.to_ne_bytes().to_vec()),
        NfExpression::Compare(Comparison::Different, vec![0; 4]),
    ]
}

fn nfproto(family: Family) -> u8 {
    match family {
        Family::V4 => IPV4,
        Family::V6 => IPV6,
    }
}

fn equal(value: impl Into<Vec<u8>>) -> NfExpression {
    NfExpression::Compare(Comparison::Equal, value.into())
}

fn compare(is: Is, value: impl Into<Vec<u8>>) -> NfExpression {
    let comparison = match is {
        Is::In => Comparison::Equal,
        Is::NotIn => Comparison::Different,
    };
    NfExpression::Compare(comparison, value.into())
}

fn with(mut expressions: Vec<NfExpression>, more: Option<NfExpression>) -> Vec<NfExpression> {
    expressions.extend(more);
    expressions
}
