//! Matches of iptables: the tests of a rule.

mod text;

use super::conntrack::{Conntrack, conntrack, state};
use super::fields::{Fields, PortEnd, PortTest, is, printable};
use crate::model::policy::PortRange;
use crate::model::ruleset::{Family, Is};
use crate::xt::effect::{Effect, MATCHES, effect};
use std::net::IpAddr;

/// A match of an iptables rule. A packet passes the rule when it passes all of its matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XtMatch {
    /// `tcp`. The packet's protocol is tested by the rule itself.
    Tcp(TcpTest),
    /// `udp`.
    Udp(UdpTest),
    /// `multiport`.
    Multiport(Multiport),
    /// `owner`.
    Owner(OwnerTest),
    /// `mark`: the packet's mark.
    Mark(MarkTest),
    /// `connmark`: the connection's mark.
    ConnectionMark(MarkTest),
    /// `conntrack` and `state`.
    Conntrack(Conntrack),
    /// `comment`: every packet passes. What is not printable ASCII is escaped.
    Comment(String),
    /// `addrtype`.
    AddressType(AddressTypes),
    /// `pkttype`: the link layer's type of the packet (`PACKET_*`, include/uapi/linux/if_packet.h).
    PacketType {
        /// Equal or not.
        is: Is,
        /// The type.
        kind: u32,
    },
    /// `limit`: whether a packet passes depends on earlier ones.
    Limit {
        /// Ten-thousandths of a second for each packet.
        period: u32,
        /// How many pass at once.
        burst: u32,
    },
    /// `icmp` and `icmp6`.
    Icmp(IcmpTest),
    /// `iprange`.
    IpRange(IpRange),
    /// `socket`: a local socket waits for the packet.
    Socket(SocketTest),
    /// A test whose result a walk does not know, by name.
    Test(String),
    /// Any other match, revision or size, by name.
    Unknown(String),
}

impl XtMatch {
    /// Reports whether it may do more than pass or not.
    pub(crate) fn acts(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Socket(SocketTest { restores_mark: true, .. }))
    }
}

/// `struct xt_tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpTest {
    /// The source port.
    pub source: PortTest,
    /// The destination port.
    pub destination: PortTest,
    /// A TCP option that is there or not; no test when [`Is::In`] and 0.
    option: (Is, u8),
    /// The flags.
    pub flags: Option<TcpFlags>,
}

impl TcpTest {
    /// The number of the TCP option that must be there or must not; `None` when none is tested.
    pub fn option(self) -> Option<(Is, u8)> {
        (self.option != (Is::In, 0)).then_some(self.option)
    }
}

/// A test of TCP's flags: of those in `mask` exactly `set` are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpFlags {
    /// Passed or not.
    pub is: Is,
    /// The flags that are looked at.
    pub mask: u8,
    /// Those of them that are set.
    pub set: u8,
}

/// `struct xt_udp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpTest {
    /// The source port.
    pub source: PortTest,
    /// The destination port.
    pub destination: PortTest,
}

/// `struct xt_multiport_v1`: a port is one of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Multiport {
    /// Which port.
    pub end: PortEnd,
    /// In the list or not.
    pub is: Is,
    /// The list.
    pub ports: Vec<PortRange>,
}

/// `struct xt_owner_match_info`: the owner of the packet's socket. A packet without a socket passes inverted tests
/// only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerTest {
    /// Whether the packet has a socket.
    pub socket: Option<Is>,
    /// The user.
    pub uid: Option<IdTest>,
    /// The group.
    pub gid: Option<IdTest>,
    /// The group test also looks at supplementary groups.
    pub supplementary_groups: bool,
}

/// Ids from first to last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdTest {
    /// Inside or outside.
    pub is: Is,
    /// The first id.
    pub first: u32,
    /// The last id.
    pub last: u32,
}

impl IdTest {
    /// Reports whether this id passes.
    pub fn applies(self, id: u32) -> bool {
        (self.first <= id && id <= self.last) == (self.is == Is::In)
    }
}

/// A mark, masked, equals a value or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkTest {
    /// Equal or not.
    pub is: Is,
    /// The value.
    pub value: u32,
    /// The bits of the mark that count.
    pub mask: u32,
}

impl MarkTest {
    /// Reports whether this mark passes.
    pub fn applies(self, mark: u32) -> bool {
        (mark & self.mask == self.value) == (self.is == Is::In)
    }
}

/// `struct xt_addrtype_info_v1`: the types that the routing tables give to the addresses of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressTypes {
    /// The source address.
    pub source: Option<TypeTest>,
    /// The destination address.
    pub destination: Option<TypeTest>,
    /// Only the interface that the packet arrived by counts.
    pub limit_in: bool,
    /// Only the interface that the packet leaves by counts.
    pub limit_out: bool,
}

/// Types of addresses: bit n for the type n of `RTN_*` (include/uapi/linux/rtnetlink.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeTest {
    /// One of them or none.
    pub is: Is,
    /// The types.
    pub types: u16,
}

/// `struct ipt_icmp`, `struct ip6t_icmp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpTest {
    /// ICMP or ICMPv6.
    pub family: Family,
    /// Passed or not.
    pub is: Is,
    /// The type; 255 is every type for ICMP.
    pub kind: u8,
    /// First and last code.
    pub codes: [u8; 2],
}

/// `struct xt_iprange_mtinfo`: first and last address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpRange {
    /// The source address.
    pub source: Option<(Is, [IpAddr; 2])>,
    /// The destination address.
    pub destination: Option<(Is, [IpAddr; 2])>,
}

/// `struct xt_socket_mtinfo3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketTest {
    /// The socket must be transparent.
    pub transparent: bool,
    /// A socket on any address counts too.
    pub wildcard: bool,
    /// The packet gets the socket's mark.
    pub restores_mark: bool,
}

/// Decodes the match `name` of this revision from its bytes. The family is the table's.
pub fn decode_match(family: Family, name: &str, revision: u8, data: &[u8]) -> XtMatch {
    let fields = Fields(data);
    let decoded = match (name, revision) {
        ("tcp", 0) => tcp(fields).map(XtMatch::Tcp),
        ("udp", 0) => udp(fields).map(XtMatch::Udp),
        ("multiport", 0 | 1) => multiport(fields, revision).map(XtMatch::Multiport),
        ("owner", 1) => owner(fields).map(XtMatch::Owner),
        ("mark", 1) => mark(fields).map(XtMatch::Mark),
        ("connmark", 1) => mark(fields).map(XtMatch::ConnectionMark),
        ("conntrack", 1..=3) => conntrack(fields, revision, family).map(XtMatch::Conntrack),
        ("state", 0) => state(fields).map(XtMatch::Conntrack),
        ("comment", 0) => fields.text(0, data.len().min(256)).map(XtMatch::Comment),
        ("addrtype", 0 | 1) => address_types(fields, revision).map(XtMatch::AddressType),
        ("pkttype", 0) => packet_type(fields),
        ("limit", 0) => limit(fields),
        ("icmp" | "icmp6", 0) => icmp(fields, name).map(XtMatch::Icmp),
        ("iprange", 1) => ip_range(fields, family).map(XtMatch::IpRange),
        ("socket", 0..=3) => socket(fields, revision).map(XtMatch::Socket),
        _ => None,
    };
    decoded.unwrap_or_else(|| {
        let printed = printable(name.as_bytes());
        match effect(MATCHES, name, revision) {
            Effect::Test => XtMatch::Test(printed),
            _ => XtMatch::Unknown(printed),
        }
    })
}

fn tcp(fields: Fields<'_>) -> Option<TcpTest> {
    let inverted = u32::from(fields.u8(11)?);
    let flags = TcpFlags { is: is(inverted, 4), mask: fields.u8(9)?, set: fields.u8(10)? };
    let are_asked = flags.mask != 0 || flags.is == Is::NotIn;
    Some(TcpTest {
        source: PortTest::read(fields, 0, is(inverted, 1))?,
        destination: PortTest::read(fields, 4, is(inverted, 2))?,
        option: (is(inverted, 8), fields.u8(8)?),
        flags: are_asked.then_some(flags),
    })
}

fn udp(fields: Fields<'_>) -> Option<UdpTest> {
    let inverted = u32::from(fields.u8(8)?);
    Some(UdpTest {
        source: PortTest::read(fields, 0, is(inverted, 1))?,
        destination: PortTest::read(fields, 4, is(inverted, 2))?,
    })
}

/// `XT_MULTI_PORTS`.
const MULTI_PORTS: usize = 15;

fn multiport(fields: Fields<'_>, revision: u8) -> Option<Multiport> {
    let end = match fields.u8(0)? {
        0 => PortEnd::Source,
        1 => PortEnd::Destination,
        2 => PortEnd::Either,
        _ => return None,
    };
    let count = usize::from(fields.u8(1)?);
    if count > MULTI_PORTS {
        return None;
    }
    let port = |slot: usize| fields.u16(2 + 2 * slot).filter(|_| slot < count);
    let begins_range = |slot: usize| match revision {
        0 => Some(false),
        _ => fields.u8(2 + 2 * MULTI_PORTS + slot).map(|flag| flag != 0),
    };
    let (mut ports, mut slot) = (Vec::new(), 0);
    while slot < count {
        let first = port(slot)?;
        slot += usize::from(begins_range(slot)?);
        ports.push(PortRange::new(first, port(slot)?)?);
        slot += 1;
    }
    let is = match revision {
        0 => Is::In,
        _ => is(u32::from(fields.u8(2 + 3 * MULTI_PORTS)?), u32::MAX),
    };
    Some(Multiport { end, is, ports })
}

fn owner(fields: Fields<'_>) -> Option<OwnerTest> {
    let (tested, inverted) = (fields.u8(16)?, u32::from(fields.u8(17)?));
    let ids = |bit: u8, at: usize| -> Option<Option<IdTest>> {
        if tested & bit == 0 {
            return Some(None);
        }
        let test = IdTest { is: is(inverted, bit.into()), first: fields.u32(at)?, last: fields.u32(at + 4)? };
        Some(Some(test))
    };
    Some(OwnerTest {
        socket: (tested & 4 != 0).then(|| is(inverted, 4)),
        uid: ids(1, 0)?,
        gid: ids(2, 8)?,
        supplementary_groups: tested & 8 != 0,
    })
}

fn mark(fields: Fields<'_>) -> Option<MarkTest> {
    let is = is(u32::from(fields.u8(8)?), u32::MAX);
    Some(MarkTest { is, value: fields.u32(0)?, mask: fields.u32(4)? })
}

fn address_types(fields: Fields<'_>, revision: u8) -> Option<AddressTypes> {
    let flags = match revision {
        0 => u32::from(fields.u32(4)? != 0) | u32::from(fields.u32(8)? != 0) << 1,
        _ => fields.u32(4)?,
    };
    let test = |types: u16, bit: u32| (types != 0).then(|| TypeTest { is: is(flags, bit), types });
    Some(AddressTypes {
        source: test(fields.u16(0)?, 1),
        destination: test(fields.u16(2)?, 2),
        limit_in: flags & 4 != 0,
        limit_out: flags & 8 != 0,
    })
}

fn packet_type(fields: Fields<'_>) -> Option<XtMatch> {
    Some(XtMatch::PacketType { is: is(fields.u32(4)?, u32::MAX), kind: fields.u32(0)? })
}

fn limit(fields: Fields<'_>) -> Option<XtMatch> {
    Some(XtMatch::Limit { period: fields.u32(0)?, burst: fields.u32(4)? })
}

fn icmp(fields: Fields<'_>, name: &str) -> Option<IcmpTest> {
    let family = if name == "icmp" { Family::V4 } else { Family::V6 };
    let is = is(fields.u8(3)?.into(), 1);
    Some(IcmpTest { family, is, kind: fields.u8(0)?, codes: fields.array(1)? })
}

fn ip_range(fields: Fields<'_>, family: Family) -> Option<IpRange> {
    let flags = u32::from(fields.u8(64)?);
    let range = |bit: u32, at: usize| -> Option<Option<(Is, [IpAddr; 2])>> {
        let bounds = [fields.address(at, family)?, fields.address(at + 16, family)?];
        Some((flags & bit != 0).then(|| (is(flags, bit << 4), bounds)))
    };
    Some(IpRange { source: range(1, 0)?, destination: range(2, 32)? })
}

/// Revision 0 has no data.
fn socket(fields: Fields<'_>, revision: u8) -> Option<SocketTest> {
    let flags = if revision == 0 { 0 } else { fields.u8(0)? };
    Some(SocketTest { transparent: flags & 1 != 0, wildcard: flags & 2 != 0, restores_mark: flags & 4 != 0 })
}
