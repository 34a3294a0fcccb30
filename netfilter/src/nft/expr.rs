//! A rule as nftables expressions: matches in their order, a counter, the verdict.
//!
//! The expressions are the ones that nft generates for the same rule (`nft --debug=netlink`), so that `nft list
//! ruleset` prints the usual syntax. The wire format of an expression is in `wire`.

pub(super) mod exemption;
mod wire;

use crate::kernel::netlink::attr::{Writer, octets};
use crate::kernel::uapi::*;
use crate::model::policy::{InterfaceName, MaskedMark, PortSet};
use crate::model::ruleset::{ConnectionState, Family, Is, Match, Networks, Rule, Transport, Verdict};
use ipnet::IpNet;
use std::collections::BTreeSet;
use wire::{Expressions, PacketField};

/// Writes the expressions of `rule`.
pub(super) fn write(w: &mut Writer, rule: &Rule) {
    let lists = rule.lists();
    let mut encoder = Encoder { out: Expressions(w), family: None, set: None };
    for (at, condition) in rule.matches.iter().enumerate() {
        encoder.set = lists.iter().find(|list| list.at == at).map(|list| list.name.as_ref());
        encoder.condition(condition);
    }
    encoder.out.count();
    encoder.verdict(rule);
}

/// Writes a counter at zero, the value as which every counter is compared.
pub(super) fn count(w: &mut Writer) {
    Expressions(w).count();
}

/// Bytes from the start of an IPv4 and of an IPv6 header to the destination.
const DESTINATION: [u32; 2] = [16, 24];

struct Encoder<'w, 'r> {
    out: Expressions<'w>,
    /// The family that an earlier match of this rule has tested; address matches test it once.
    family: Option<Family>,
    /// The named set of the current match; `None` when the match has a single value.
    set: Option<&'r str>,
}

impl Encoder<'_, '_> {
    fn condition(&mut self, condition: &Match) {
        match condition {
            Match::Family(family) => self.family(*family),
            Match::Protocol(protocol) => self.protocol(*protocol),
            Match::InInterface(names) => self.interface(NFT_META_IIFNAME, names),
            Match::OutInterface(names) => self.interface(NFT_META_OIFNAME, names),
            Match::Source(is, nets) => self.address([12, 8], *is, nets),
            Match::Destination(is, nets) => self.address(DESTINATION, *is, nets),
            Match::SourcePort(is, ports) => self.port(0, *is, ports),
            Match::DestinationPort(is, ports) => self.port(2, *is, ports),
            Match::OwnerUid(ids) => self.owner(NFT_META_SKUID, ids),
            Match::OwnerGid(ids) => self.owner(NFT_META_SKGID, ids),
            Match::Mark(is, mark) => {
                self.out.load_meta(NFT_META_MARK);
                self.mark(*is, *mark);
            }
            Match::ConnectionMark(mark) => {
                self.out.load_ct(NFT_CT_MARK);
                self.mark(Is::In, *mark);
            }
            Match::State(state) => self.state(*state),
        }
    }

    /// Writes a comparison with the single value, or a lookup in the named set.
    fn is_one_of(&mut self, is: Is, single: Option<&[u8]>) {
        match (self.set, single) {
            (None, Some(value)) => self.out.compare(equality(is), value),
            (set, _) => self.out.look_up(set.unwrap_or_default(), inversion(is)),
        }
    }

    fn family(&mut self, family: Family) {
        if self.family.replace(family) != Some(family) {
            self.out.load_meta(NFT_META_NFPROTO);
            self.out.compare(NFT_CMP_EQ, &[family.number()]);
        }
    }

    fn protocol(&mut self, transport: Transport) {
        self.out.load_meta(NFT_META_L4PROTO);
        self.out.compare(NFT_CMP_EQ, &[transport.number()]);
    }

    fn interface(&mut self, key: u32, names: &BTreeSet<InterfaceName>) {
        self.out.load_meta(key);
        let name = names.first().map(interface);
        self.is_one_of(Is::In, name.as_ref().map(<[u8; 16]>::as_slice));
    }

    /// `offsets`: bytes from the start of an IPv4 and of an IPv6 header to the address.
    fn address(&mut self, offsets: [u32; 2], is: Is, nets: &Networks) {
        self.family(nets.family());
        let whole = address_field(offsets, nets.family());
        match Prefix::only(nets).filter(|_| self.set.is_none()) {
            Some(prefix) => self.prefix(is, whole, &prefix),
            None => {
                self.out.load_packet(whole);
                self.is_one_of(is, None);
            }
        }
    }

    /// For a prefix of whole bytes, loads only those bytes, as `nft` does; masks the address for any other.
    fn prefix(&mut self, is: Is, whole: PacketField, prefix: &Prefix) {
        let bytes = prefix.length / 8;
        match prefix.address.get(..usize::from(bytes)) {
            Some(start) if bytes > 0 && prefix.length.is_multiple_of(8) => {
                self.out.load_packet(PacketField { length: u32::from(bytes), ..whole });
                self.out.compare(equality(is), start);
            }
            _ => {
                self.out.load_packet(whole);
                self.out.mask(&prefix.mask);
                self.out.compare(equality(is), &prefix.address);
            }
        }
    }

    fn port(&mut self, offset: u32, is: Is, ports: &PortSet) {
        self.out.load_packet(PacketField { base: NFT_PAYLOAD_TRANSPORT_HEADER, offset, length: 2 });
        let Some(range) = ports.ranges().first().filter(|_| self.set.is_none()) else {
            return self.is_one_of(is, None);
        };
        let (first, last) = range.bounds();
        let (from, to) = (first.to_be_bytes(), last.to_be_bytes());
        match is {
            _ if first == last => self.out.compare(equality(is), &from),
            Is::NotIn => self.out.compare_outside(&from, &to),
            Is::In => {
                self.out.compare(NFT_CMP_GTE, &from);
                self.out.compare(NFT_CMP_LTE, &to);
            }
        }
    }

    /// Compares the loaded mark.
    fn mark(&mut self, is: Is, mark: MaskedMark) {
        if !mark.is_whole() {
            self.out.mask(&mark.mask().to_ne_bytes());
        }
        self.out.compare(equality(is), &mark.value().to_ne_bytes());
    }

    fn owner(&mut self, key: u32, ids: &BTreeSet<u32>) {
        self.out.load_meta(key);
        let id = ids.first().map(|id| id.to_ne_bytes());
        self.is_one_of(Is::In, id.as_ref().map(<[u8; 4]>::as_slice));
    }

    fn state(&mut self, state: ConnectionState) {
        let bits = match state {
            ConnectionState::EstablishedOrRelated => NF_CT_STATE_ESTABLISHED | NF_CT_STATE_RELATED,
            ConnectionState::Invalid => NF_CT_STATE_INVALID,
        };
        self.out.load_ct(NFT_CT_STATE);
        self.out.mask(&bits.to_ne_bytes());
        self.out.compare(NFT_CMP_NEQ, &[0; 4]);
    }

    fn verdict(&mut self, rule: &Rule) {
        match rule.verdict {
            Verdict::Return => self.out.verdict(NFT_RETURN, None),
            Verdict::Drop => self.out.verdict(NF_DROP, None),
            Verdict::Goto(chain) => self.out.verdict(NFT_GOTO, Some(chain.as_str())),
            Verdict::Redirect(port) => {
                self.out.load_value(&port.get().to_be_bytes());
                self.out.redirect();
            }
            Verdict::Tproxy { port, mark } => {
                self.out.load_value(&port.get().to_be_bytes());
                self.out.intercept(rule.family().map_or(NFPROTO_UNSPEC, Family::number));
                self.set_mark(mark);
                self.out.verdict(NF_ACCEPT, None);
            }
            Verdict::Divert(mark) => {
                self.set_mark(mark);
                self.out.verdict(NF_ACCEPT, None);
            }
            Verdict::SetMark(mark) => self.set_mark(mark),
            Verdict::SetConnectionMark(mark) => {
                self.out.load_ct(NFT_CT_MARK);
                self.out.replace_bits(&(!mark.mask()).to_ne_bytes(), &mark.value().to_ne_bytes());
                self.out.store_ct(NFT_CT_MARK);
            }
            Verdict::SaveMark => {
                self.out.load_meta(NFT_META_MARK);
                self.out.store_ct(NFT_CT_MARK);
            }
            Verdict::RestoreMark => {
                self.out.load_ct(NFT_CT_MARK);
                self.out.store_meta(NFT_META_MARK);
            }
            Verdict::Zone(zone) => {
                self.out.load_value(&zone.to_ne_bytes());
                self.out.store_ct(NFT_CT_ZONE);
            }
        }
    }

    fn set_mark(&mut self, mark: u32) {
        self.out.load_value(&mark.to_ne_bytes());
        self.out.store_meta(NFT_META_MARK);
    }
}

/// Returns the field of a whole address. `offsets` as in [`Encoder::address`].
fn address_field(offsets: [u32; 2], family: Family) -> PacketField {
    let [v4, v6] = offsets;
    let (offset, length) = match family {
        Family::V4 => (v4, 4),
        Family::V6 => (v6, 16),
    };
    PacketField { base: NFT_PAYLOAD_NETWORK_HEADER, offset, length }
}

/// Returns the operator of a comparison with a single value.
fn equality(is: Is) -> u32 {
    match is {
        Is::In => NFT_CMP_EQ,
        Is::NotIn => NFT_CMP_NEQ,
    }
}

/// Returns the flags of a lookup in a set.
fn inversion(is: Is) -> u32 {
    match is {
        Is::In => 0,
        Is::NotIn => NFT_LOOKUP_F_INV,
    }
}

/// Returns the interface name padded with zeros to `IFNAMSIZ` bytes.
pub(super) fn interface(name: &InterfaceName) -> [u8; IFNAMSIZ] {
    let mut padded = [0; IFNAMSIZ];
    // A name has at most 15 bytes, so nothing is truncated.
    for (to, from) in padded.iter_mut().zip(name.as_str().bytes()) {
        *to = from;
    }
    padded
}

/// The address and mask of a network, and the length of its prefix in bits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Prefix {
    address: Vec<u8>,
    mask: Vec<u8>,
    length: u8,
}

impl Prefix {
    /// Returns the first network of the list; callers use it for lists of one network.
    fn only(nets: &Networks) -> Option<Self> {
        let net = match nets {
            Networks::V4(nets) => nets.first().copied().map(IpNet::V4),
            Networks::V6(nets) => nets.first().copied().map(IpNet::V6),
        }?;
        Some(Self { address: octets(net.network()), mask: octets(net.netmask()), length: net.prefix_len() })
    }
}
