//! Targets of iptables: the actions of a rule.

mod text;

use super::fields::{Fields, printable};
use super::nat::NatRange;
use crate::model::ruleset::Family;
use crate::xt::effect::{Effect, TARGETS, effect};
use std::net::IpAddr;

/// The target of an iptables rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XtTarget {
    /// The packet passes this hook of the table.
    Accept,
    /// The packet is dropped.
    Drop,
    /// Back to the calling chain, or to the built-in chain's policy.
    Return,
    /// A program at queue 0 decides.
    Queue,
    /// Calls a chain, which may return here.
    Jump(String),
    /// Continues in a chain, which returns to the caller of this one.
    Goto(String),
    /// `REDIRECT`: to an address of this host.
    Redirect(NatRange),
    /// `DNAT`: another destination.
    Dnat(NatRange),
    /// `SNAT`: another source.
    Snat(NatRange),
    /// `MASQUERADE`: the leaving interface's address as source.
    Masquerade(NatRange),
    /// `TPROXY`: to a local socket, without a translation.
    Tproxy {
        /// The socket's address; unspecified is the packet's own.
        address: IpAddr,
        /// The socket's port; 0 is the packet's own.
        port: u16,
        /// Bits of the packet's mark that are set ...
        value: u32,
        /// ... after these were cleared.
        mask: u32,
    },
    /// `MARK`: the packet's mark becomes `(mark & !mask) ^ value`.
    SetMark {
        /// The bits to flip.
        value: u32,
        /// The bits to clear first.
        mask: u32,
    },
    /// `CONNMARK`.
    ConnectionMark(ConnectionMarkChange),
    /// `CT` and `NOTRACK`.
    Tracking(Tracking),
    /// `LOG`: the packet goes on.
    Log {
        /// The prefix of the line. Bytes that are not printable ASCII are escaped.
        prefix: String,
        /// Its level; the default is 4.
        level: u8,
        /// `XT_LOG_*`.
        flags: u8,
    },
    /// `NFLOG`: the packet goes on.
    NfLog {
        /// The prefix of the line. Bytes that are not printable ASCII are escaped.
        prefix: String,
        /// The netlink group.
        group: u16,
    },
    /// `REJECT`: drops the packet and sends an error.
    Reject {
        /// The name of the error.
        with: &'static str,
    },
    /// `NFQUEUE`: a program decides.
    NfQueue {
        /// The first queue.
        queue: u16,
        /// How many queues share the packets.
        queues: u16,
        /// Accepted when no program listens.
        bypass: bool,
    },
    /// Changes nothing that decides where a packet goes, by name.
    Nothing(String),
    /// Any other target, revision or size, by name.
    Unknown(String),
}

/// What `CONNMARK` does to the connection's mark or to the packet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionMarkChange {
    /// The connection's mark becomes `(mark & !mask) ^ value`.
    Set {
        /// The bits to flip.
        value: u32,
        /// The bits to clear first.
        mask: u32,
    },
    /// The packet's mark is kept in the connection's, through masks.
    Save {
        /// Bits of the packet's mark.
        packet: u32,
        /// Bits of the connection's.
        connection: u32,
    },
    /// The connection's mark is copied to the packet's, through masks.
    Restore {
        /// Bits of the packet's mark.
        packet: u32,
        /// Bits of the connection's.
        connection: u32,
    },
}

/// `struct xt_ct_target_info_v1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracking {
    /// `XT_CT_*`.
    flags: u16,
    /// The zone; 0 is the default one.
    pub zone: u16,
    /// The helper's name, or empty.
    pub helper: String,
    /// The timeout policy's name, or empty.
    pub timeout: String,
}

impl Tracking {
    /// The packet is not tracked, so that no translation applies to it.
    pub fn is_untracked(&self) -> bool {
        self.flags & NOTRACK != 0
    }

    /// Reports whether the zone is the packet's mark.
    pub(crate) fn is_by_mark(&self) -> bool {
        self.flags & ZONE_MARK != 0
    }

    /// The one direction whose packets have the zone (`IP_CT_DIR_*`); `None` for both.
    pub(crate) fn zone_direction(&self) -> Option<u8> {
        match self.flags & (ZONE_DIR_ORIG | ZONE_DIR_REPL) {
            ZONE_DIR_ORIG => Some(0),
            ZONE_DIR_REPL => Some(1),
            _ => None,
        }
    }
}

impl XtTarget {
    /// Reports whether it may change where a connection goes.
    pub(crate) fn acts(&self) -> bool {
        !matches!(self, Self::Nothing(_) | Self::Log { .. } | Self::NfLog { .. })
    }
}

const NOTRACK: u16 = 1;
const NOTRACK_ALIAS: u16 = 1 << 1;
const ZONE_DIR_ORIG: u16 = 1 << 2;
const ZONE_DIR_REPL: u16 = 1 << 3;
const ZONE_MARK: u16 = 1 << 4;

/// Decodes the target `name` of this revision from its bytes. The family is the table's. The name is
/// empty for a verdict; one that leads into a chain is `Unknown`, as only its table can name the chain.
pub fn decode_target(family: Family, name: &str, revision: u8, data: &[u8]) -> XtTarget {
    let fields = Fields(data);
    let nat = |revision: u8| match (family, revision) {
        (Family::V4, 0) => NatRange::v4_compat(fields),
        _ => NatRange::inet(fields, family, revision == 2),
    };
    let decoded = match (name, revision) {
        ("", 0) => fields.array(0).map(i32::from_ne_bytes).and_then(verdict),
        ("REDIRECT", 0) => nat(0).map(XtTarget::Redirect),
        ("MASQUERADE", 0) => nat(0).map(XtTarget::Masquerade),
        ("DNAT", 0..=2) => nat(revision).map(XtTarget::Dnat),
        ("SNAT", 0..=2) => nat(revision).map(XtTarget::Snat),
        ("TPROXY", 0 | 1) => tproxy(fields, family, revision),
        ("MARK", 2) => mark(fields),
        ("CONNMARK", 1 | 2) => connection_mark(fields, revision).map(XtTarget::ConnectionMark),
        ("CT", 0..=2) => tracking(fields, revision).map(XtTarget::Tracking),
        ("NOTRACK", 0) => Some(XtTarget::Tracking(Tracking {
            flags: NOTRACK | NOTRACK_ALIAS,
            zone: 0,
            helper: String::new(),
            timeout: String::new(),
        })),
        ("LOG", 0) => log(fields),
        ("NFLOG", 0) => nf_log(fields),
        ("REJECT", 0) => reject(fields, family),
        ("NFQUEUE", 0..=3) => nf_queue(fields, revision),
        _ => None,
    };
    decoded.unwrap_or_else(|| {
        let (printed, maps_set) = (printable(name.as_bytes()), revision > 2 && fields.u16(8) != Some(NO_SET));
        match effect(TARGETS, name, revision) {
            Effect::Nothing if name != "SET" || !maps_set => XtTarget::Nothing(printed),
            _ => XtTarget::Unknown(printed),
        }
    })
}

/// `IPSET_INVALID_ID`: in `struct xt_set_info_target_v3`, no set maps packets to marks.
const NO_SET: u16 = u16::MAX;

/// `-NF_x - 1` (include/uapi/linux/netfilter.h), and `XT_RETURN`.
pub(super) fn verdict(number: i32) -> Option<XtTarget> {
    match number {
        -1 => Some(XtTarget::Drop),
        -2 => Some(XtTarget::Accept),
        -4 => Some(XtTarget::Queue),
        -5 => Some(XtTarget::Return),
        _ => None,
    }
}

fn tproxy(fields: Fields<'_>, family: Family, revision: u8) -> Option<XtTarget> {
    let (address, port) = match (family, revision) {
        (Family::V6, 0) => return None,
        (_, 0) => (fields.address(8, Family::V4)?, fields.be16(12)?),
        _ => (fields.address(8, family)?, fields.be16(24)?),
    };
    Some(XtTarget::Tproxy { address, port, value: fields.u32(4)?, mask: fields.u32(0)? })
}

fn mark(fields: Fields<'_>) -> Option<XtTarget> {
    Some(XtTarget::SetMark { value: fields.u32(0)?, mask: fields.u32(4)? })
}

fn connection_mark(fields: Fields<'_>, revision: u8) -> Option<ConnectionMarkChange> {
    let mode = match revision {
        1 => fields.u8(12)?,
        // A shifted mark is not supported.
        _ => fields.u8(14).filter(|_| fields.u8(13) == Some(0))?,
    };
    let (value, connection, packet) = (fields.u32(0)?, fields.u32(4)?, fields.u32(8)?);
    match mode {
        0 => Some(ConnectionMarkChange::Set { value, mask: connection }),
        1 => Some(ConnectionMarkChange::Save { packet, connection }),
        2 => Some(ConnectionMarkChange::Restore { packet, connection }),
        _ => None,
    }
}

fn tracking(fields: Fields<'_>, revision: u8) -> Option<Tracking> {
    let timeout = if revision == 0 { String::new() } else { fields.text(28, 32)? };
    Some(Tracking { flags: fields.u16(0)?, zone: fields.u16(2)?, helper: fields.text(12, 16)?, timeout })
}

fn log(fields: Fields<'_>) -> Option<XtTarget> {
    Some(XtTarget::Log { prefix: fields.text(2, 30)?, level: fields.u8(0)?, flags: fields.u8(1)? })
}

fn nf_log(fields: Fields<'_>) -> Option<XtTarget> {
    Some(XtTarget::NfLog { prefix: fields.text(12, 64)?, group: fields.u16(4)? })
}

/// `enum ipt_reject_with`, `enum ip6t_reject_with`.
const REJECT_V4: [&str; 9] = [
    "icmp-net-unreachable",
    "icmp-host-unreachable",
    "icmp-proto-unreachable",
    "icmp-port-unreachable",
    "echo-reply",
    "icmp-net-prohibited",
    "icmp-host-prohibited",
    "tcp-reset",
    "icmp-admin-prohibited",
];
const REJECT_V6: [&str; 9] = [
    "icmp6-no-route",
    "icmp6-adm-prohibited",
    "icmp6-not-neighbour",
    "icmp6-addr-unreachable",
    "icmp6-port-unreachable",
    "echo-reply",
    "tcp-reset",
    "icmp6-policy-fail",
    "icmp6-reject-route",
];

fn reject(fields: Fields<'_>, family: Family) -> Option<XtTarget> {
    let names = match family {
        Family::V4 => REJECT_V4,
        Family::V6 => REJECT_V6,
    };
    let with = names.get(usize::try_from(fields.u32(0)?).ok()?)?;
    Some(XtTarget::Reject { with })
}

fn nf_queue(fields: Fields<'_>, revision: u8) -> Option<XtTarget> {
    let queues = if revision == 0 { 1 } else { fields.u16(2)? };
    let bypass = revision > 1 && fields.u16(4)? & 1 != 0;
    Some(XtTarget::NfQueue { queue: fields.u16(0)?, queues, bypass })
}
