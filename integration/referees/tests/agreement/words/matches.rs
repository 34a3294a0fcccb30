//! What a rule asks of a packet, match by match.

use super::{Comparison, Field, Word};
use gybe_netfilter::policy::{InterfaceName, PortSet};
use gybe_netfilter::ruleset::{ConnectionState, Family, Is, Match, Networks, Protocol, Rule};
use std::collections::BTreeSet;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// `NFPROTO_IPV4` and `NFPROTO_IPV6`, include/uapi/linux/netfilter.h.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
/// `NF_CT_STATE_BIT`, include/uapi/linux/netfilter/nf_conntrack_common.h.
const INVALID: u32 = 1;
const ESTABLISHED_OR_RELATED: u32 = 2 | 4;

pub(super) fn words(rule: &Rule) -> Vec<Word> {
    let lists = rule.lists();
    let mut words = Vec::new();
    let mut asked = None;
    for (at, one) in rule.matches.iter().enumerate() {
        // The table sees both families: which one it is comes before its header, and once.
        if let Some(family) = family(one).filter(|family| asked.replace(*family) != Some(*family)) {
            words.extend([Word::Load(Field::NetworkProtocol), equal([nfproto(family)])]);
        }
        words.extend(match lists.iter().find(|list| list.at == at) {
            Some(list) => in_set(one, list.name.clone().into_owned()),
            None => alone(one),
        });
    }
    words
}

fn family(one: &Match) -> Option<Family> {
    match one {
        Match::Family(family) => Some(*family),
        Match::Source(_, nets) | Match::Destination(_, nets) => Some(nets.family()),
        _ => None,
    }
}

/// A list of several values: load what it is about, look it up.
fn in_set(one: &Match, set: String) -> Vec<Word> {
    let is = match one {
        Match::Source(is, _)
        | Match::Destination(is, _)
        | Match::SourcePort(is, _)
        | Match::DestinationPort(is, _) => *is,
        _ => Is::In,
    };
    let mut words = about(one);
    words.push(Word::Lookup(is, set));
    words
}

/// A single value: load what it is about, compare.
fn alone(one: &Match) -> Vec<Word> {
    match one {
        Match::Protocol(Protocol::Tcp) => vec![Word::Load(Field::TransportProtocol), equal([TCP])],
        Match::Protocol(Protocol::Udp) => vec![Word::Load(Field::TransportProtocol), equal([UDP])],
        Match::Family(_) => Vec::new(),
        Match::InInterface(names) | Match::OutInterface(names) => interface(one, names),
        Match::Source(is, nets) => network(SOURCE, *is, nets),
        Match::Destination(is, nets) => network(DESTINATION, *is, nets),
        Match::SourcePort(is, ports) | Match::DestinationPort(is, ports) => port(one, *is, ports),
        Match::OwnerUid(ids) | Match::OwnerGid(ids) => {
            with(about(one), ids.first().map(|id| equal(id.to_ne_bytes())))
        }
        Match::Mark(is, mark) => vec![Word::Load(Field::Mark), compare(*is, mark.to_ne_bytes())],
        Match::ConnectionMark(mark) => vec![Word::Load(Field::ConnectionMark), equal(mark.to_ne_bytes())],
        Match::State(state) => connection(*state),
    }
}

/// What has to be loaded for a match.
fn about(one: &Match) -> Vec<Word> {
    let transport = |offset| vec![Word::Load(Field::Transport { offset, length: 2 })];
    match one {
        Match::Protocol(_) => vec![Word::Load(Field::TransportProtocol)],
        Match::InInterface(_) => vec![Word::Load(Field::InInterface)],
        Match::OutInterface(_) => vec![Word::Load(Field::OutInterface)],
        Match::Source(_, nets) => address(SOURCE, nets.family(), None),
        Match::Destination(_, nets) => address(DESTINATION, nets.family(), None),
        Match::SourcePort(..) => transport(0),
        Match::DestinationPort(..) => transport(2),
        Match::OwnerUid(_) => vec![Word::Load(Field::OwnerUid)],
        Match::OwnerGid(_) => vec![Word::Load(Field::OwnerGid)],
        Match::Family(_) | Match::Mark(..) | Match::ConnectionMark(_) | Match::State(_) => Vec::new(),
    }
}

/// Where an address stands in the IPv4 and in the IPv6 header.
const SOURCE: [u32; 2] = [12, 8];
const DESTINATION: [u32; 2] = [16, 24];

/// The address, or as many bytes of it.
fn address([v4, v6]: [u32; 2], family: Family, length: Option<u32>) -> Vec<Word> {
    let (offset, whole) = match family {
        Family::V4 => (v4, 4),
        Family::V6 => (v6, 16),
    };
    vec![Word::Load(Field::Network { offset, length: length.unwrap_or(whole) })]
}

fn network(place: [u32; 2], is: Is, nets: &Networks) -> Vec<Word> {
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
    // A prefix of whole bytes is compared with as many, any other is cut out with a mask.
    let whole = usize::from(prefix / 8);
    if prefix > 0 && prefix.is_multiple_of(8) {
        let mut words = address(place, nets.family(), u32::try_from(whole).ok());
        words.push(compare(is, value[..whole].to_vec()));
        return words;
    }
    let mut words = address(place, nets.family(), None);
    words.push(Word::Mask(mask(prefix, value.len())));
    words.push(compare(is, value));
    words
}

fn mask(prefix: u8, length: usize) -> Vec<u8> {
    let ones = |byte: usize| u32::from(prefix).saturating_sub(8 * u32::try_from(byte).unwrap()).min(8);
    (0..length).map(|byte| 0xff_u8.checked_shr(ones(byte)).map_or(0xff, |zeros| !zeros)).collect()
}

fn interface(one: &Match, names: &BTreeSet<InterfaceName>) -> Vec<Word> {
    with(about(one), names.first().map(|name| equal(padded(name))))
}

/// `IFNAMSIZ` bytes, as the kernel keeps a name.
pub(super) fn padded(name: &InterfaceName) -> Vec<u8> {
    let mut bytes = name.as_str().as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

fn port(one: &Match, is: Is, ports: &PortSet) -> Vec<Word> {
    let Some((first, last)) = ports.ranges().first().map(|range| range.bounds()) else { return Vec::new() };
    let (low, high) = (first.to_be_bytes().to_vec(), last.to_be_bytes().to_vec());
    let mut words = about(one);
    match is {
        _ if first == last => words.push(compare(is, low)),
        Is::In => {
            words.push(Word::Compare(Comparison::AtLeast, low));
            words.push(Word::Compare(Comparison::AtMost, high));
        }
        Is::NotIn => words.push(Word::Outside(low, high)),
    }
    words
}

fn connection(state: ConnectionState) -> Vec<Word> {
    let bits = match state {
        ConnectionState::EstablishedOrRelated => ESTABLISHED_OR_RELATED,
        ConnectionState::Invalid => INVALID,
    };
    vec![
        Word::Load(Field::ConnectionState),
        Word::Mask(bits.to_ne_bytes().to_vec()),
        Word::Compare(Comparison::Different, vec![0; 4]),
    ]
}

fn nfproto(family: Family) -> u8 {
    match family {
        Family::V4 => IPV4,
        Family::V6 => IPV6,
    }
}

fn equal(value: impl Into<Vec<u8>>) -> Word {
    Word::Compare(Comparison::Equal, value.into())
}

fn compare(is: Is, value: impl Into<Vec<u8>>) -> Word {
    let comparison = match is {
        Is::In => Comparison::Equal,
        Is::NotIn => Comparison::Different,
    };
    Word::Compare(comparison, value.into())
}

fn with(mut words: Vec<Word>, more: Option<Word>) -> Vec<Word> {
    words.extend(more);
    words
}
