//! One address, rule or route of ours: as a message that adds it, and found again in a list.
//!
//! Everything we add bears a number of origin of its own, so that removing takes ours alone.

use super::rtnetlink::List;
use super::uapi::*;
use crate::compile::PASSTHROUGH_V6;
use crate::netlink::attr::{Attribute, Attributes, Writer};
use crate::ruleset::Family;
use std::fmt;

/// Our number of origin (`rtm_protocol`, `FRA_PROTOCOL`, `IFA_PROTO`): 71, the letter G. Not among
/// those of `rtnetlink.h` nor of iproute2's `rt_protos`.
pub(super) const ORIGIN: u8 = 71;

/// `lo` is the first interface of every network namespace (`LOOPBACK_IFINDEX`).
pub(super) const LOOPBACK: u32 = 1;

/// Fixed headers in front of the attributes.
pub(super) const ADDRESS_HEADER: usize = 8;
pub(super) const RULE_HEADER: usize = 12;
const ROUTE_HEADER: usize = 12;

/// Something beside the packet rules that a redirect needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// The address `::6` on `lo`.
    PassthroughAddress,
    /// Marked packets are looked up in a table of their own.
    MarkRule {
        /// Of which family.
        family: Family,
        /// Which mark.
        mark: u32,
        /// In which table.
        table: u32,
    },
    /// That table delivers everything to this host.
    LocalRoute {
        /// Of which family.
        family: Family,
        /// The table.
        table: u32,
    },
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = |family: &Family| if *family == Family::V4 { "IPv4" } else { "IPv6" };
        match self {
            Self::PassthroughAddress => write!(f, "address {PASSTHROUGH_V6}/128 on lo"),
            Self::MarkRule { family, mark, table } => {
                write!(f, "{} rule fwmark {mark:#x} lookup {table}", ip(family))
            }
            Self::LocalRoute { family, table } => {
                write!(f, "{} route local default dev lo table {table}", ip(family))
            }
        }
    }
}

impl Entry {
    /// Is it about IPv6?
    pub(super) fn is_ipv6(self) -> bool {
        match self {
            Self::PassthroughAddress => true,
            Self::MarkRule { family, .. } | Self::LocalRoute { family, .. } => family == Family::V6,
        }
    }

    /// The type of the message that adds it.
    pub(super) fn new_message(self) -> u16 {
        match self {
            Self::PassthroughAddress => RTM_NEWADDR,
            Self::MarkRule { .. } => RTM_NEWRULE,
            Self::LocalRoute { .. } => RTM_NEWROUTE,
        }
    }

    /// Its fixed header: `ifaddrmsg`, `fib_rule_hdr` or `rtmsg`.
    pub(super) fn header(self) -> Vec<u8> {
        match self {
            Self::PassthroughAddress => {
                [&[AF_INET6, 128, IFA_F_NODAD, RT_SCOPE_UNIVERSE][..], &LOOPBACK.to_ne_bytes()].concat()
            }
            Self::MarkRule { family, .. } => {
                vec![number(family), 0, 0, 0, RT_TABLE_UNSPEC, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0]
            }
            Self::LocalRoute { family, .. } => {
                // The scope says that the route leads no farther than this host; IPv6 has no such thing.
                let scope = if family == Family::V4 { RT_SCOPE_HOST } else { RT_SCOPE_UNIVERSE };
                vec![number(family), 0, 0, 0, RT_TABLE_UNSPEC, ORIGIN, scope, RTN_LOCAL, 0, 0, 0, 0]
            }
        }
    }

    /// Its attributes; `priority` is a rule's place.
    pub(super) fn attributes(self, priority: u32, w: &mut Writer) {
        match self {
            Self::PassthroughAddress => {
                w.attr(IFA_LOCAL, &PASSTHROUGH_V6.octets());
                w.attr(IFA_ADDRESS, &PASSTHROUGH_V6.octets());
                // Kernels before 5.18 pass it over.
                w.attr(IFA_PROTO, &[ORIGIN]);
            }
            Self::MarkRule { mark, table, .. } => {
                w.ne32(FRA_PRIORITY, priority);
                w.ne32(FRA_FWMARK, mark);
                w.ne32(FRA_FWMASK, u32::MAX);
                w.ne32(FRA_TABLE, table);
                w.attr(FRA_PROTOCOL, &[ORIGIN]);
            }
            Self::LocalRoute { table, .. } => {
                w.ne32(RTA_TABLE, table);
                w.ne32(RTA_OIF, LOOPBACK);
            }
        }
    }

    /// Is what was listed this entry, whoever added it?
    pub(super) fn is(self, found: &[u8]) -> bool {
        Self::read(List::holding(self), found) == Some(self)
    }

    /// What was listed, if it is such an entry, whoever added it.
    pub(super) fn read(list: List, found: &[u8]) -> Option<Self> {
        match list {
            List::Addresses => is_passthrough(found)?.then_some(Self::PassthroughAddress),
            List::Rules(family) => {
                let (&[found_family, to, from, tos, _, _, _, action, flags @ ..], rule) =
                    found.split_first_chunk::<RULE_HEADER>()?;
                let number_of = |kind| Attributes::of(rule).get(kind).and_then(|value| value.ne32());
                let whole = number_of(FRA_FWMASK) == Some(u32::MAX);
                let (mark, table) = (number_of(FRA_FWMARK)?, number_of(FRA_TABLE)?);
                let every_packet =
                    [to, from, tos] == [0; 3] && u32::from_ne_bytes(flags) & FIB_RULE_INVERT == 0;
                let only_by_mark =
                    every_packet && Attributes::of(rule).all(|attribute| selects_nothing(&attribute));
                let is_one =
                    found_family == number(family) && action == FR_ACT_TO_TBL && whole && only_by_mark;
                is_one.then_some(Self::MarkRule { family, mark, table })
            }
            List::Routes(family) => {
                let (&[found_family, length, _, _, _, _, _, kind, ..], route) =
                    found.split_first_chunk::<ROUTE_HEADER>()?;
                let number_of = |kind| Attributes::of(route).get(kind).and_then(|value| value.ne32());
                let whole = [found_family, length, kind] == [number(family), 0, RTN_LOCAL];
                let table = number_of(RTA_TABLE)?;
                (whole && number_of(RTA_OIF) == Some(LOOPBACK)).then_some(Self::LocalRoute { family, table })
            }
        }
    }
}

/// Whether an attribute of a rule leaves every packet and every route to it: all others are tests of the
/// packet, or hide a default route (`fib_nl_fill_rule`, net/core/fib_rules.c, v6.18).
fn selects_nothing(attribute: &Attribute<'_>) -> bool {
    match attribute.kind {
        FRA_PRIORITY | FRA_FWMARK | FRA_FWMASK | FRA_TABLE | FRA_PROTOCOL => true,
        FRA_SUPPRESS_PREFIXLEN => attribute.ne32() == Some(u32::MAX),
        _ => false,
    }
}

/// The family as the kernel numbers it.
pub(super) fn number(family: Family) -> u8 {
    match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    }
}

fn is_passthrough(found: &[u8]) -> Option<bool> {
    let (&[family, length, _, _, interface @ ..], address) = found.split_first_chunk::<ADDRESS_HEADER>()?;
    let own = Attributes::of(address).get(IFA_ADDRESS)?.value;
    let place = [family, length] == [AF_INET6, 128] && u32::from_ne_bytes(interface) == LOOPBACK;
    Some(place && own == PASSTHROUGH_V6.octets())
}

fn origin_of_address(found: &[u8]) -> Option<u8> {
    Attributes::of(found.get(ADDRESS_HEADER..)?).get(IFA_PROTO)?.value.first().copied()
}

/// Does the listed address say where it comes from?
pub(super) fn names_origin(found: &[u8]) -> bool {
    origin_of_address(found).is_some()
}

/// Did we add the listed address? `origins_told`: the kernel says of addresses where they come from.
pub(super) fn is_our_address(found: &[u8], origins_told: bool) -> bool {
    let ours = origin_of_address(found) == Some(ORIGIN) || !origins_told;
    ours && is_passthrough(found).unwrap_or(false)
}

/// Did we add the listed rule?
pub(super) fn is_our_rule(found: &[u8]) -> bool {
    let attributes = Attributes::of(found.get(RULE_HEADER..).unwrap_or_default());
    attributes.get(FRA_PROTOCOL).is_some_and(|origin| origin.value == [ORIGIN])
}

/// Did we add the listed route?
pub(super) fn is_our_route(found: &[u8]) -> bool {
    // `rtm_protocol`, the sixth byte of `struct rtmsg`.
    found.get(5) == Some(&ORIGIN)
}
