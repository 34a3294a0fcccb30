//! The addresses, routing rules and routes that Gybe adds: encoded as messages, and recognised in the kernel's lists.
//!
//! Everything that Gybe adds has its number of origin, so that a removal takes only Gybe's entries.

use super::uapi::*;
use crate::kernel::netlink::attr::{Attribute, Attributes, Writer};
use crate::model::policy::MaskedMark;
use crate::model::policy::istio::PASSTHROUGH_V6;
use crate::model::ruleset::Family;
use std::fmt;

/// Gybe's number of origin (`rtm_protocol`, `FRA_PROTOCOL`, `IFA_PROTO`): 71, the letter G. Not among
/// those of `rtnetlink.h` nor of iproute2's `rt_protos`.
pub(super) const ORIGIN: u8 = 71;

/// `lo` is the first interface of every network namespace (`LOOPBACK_IFINDEX`).
pub(super) const LOOPBACK: u32 = 1;

/// Sizes of the fixed headers before the attributes, in bytes.
pub(super) const LINK_HEADER: usize = 16;
pub(super) const ADDRESS_HEADER: usize = 8;
pub(super) const RULE_HEADER: usize = 12;
pub(super) const ROUTE_HEADER: usize = 12;

/// An address, routing rule or route that a redirection needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutingEntry {
    /// The address `::6` on `lo`.
    PassthroughAddress,
    /// A rule that looks up marked packets in a table of their own.
    MarkRule {
        /// IPv4 or IPv6.
        family: Family,
        /// The packet mark.
        mark: MaskedMark,
        /// The number of the table.
        table: u32,
    },
    /// The route of that table, which delivers every packet to this host.
    LocalRoute {
        /// IPv4 or IPv6.
        family: Family,
        /// The number of the table.
        table: u32,
    },
}

impl fmt::Display for RoutingEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PassthroughAddress => write!(f, "address {PASSTHROUGH_V6}/128 on lo"),
            Self::MarkRule { family, mark, table } => {
                write!(f, "{family} rule fwmark {mark} lookup {table}")
            }
            Self::LocalRoute { family, table } => {
                write!(f, "{family} route local default dev lo table {table}")
            }
        }
    }
}

impl RoutingEntry {
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
                vec![family.number(), 0, 0, 0, RT_TABLE_UNSPEC, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0]
            }
            Self::LocalRoute { family, .. } => {
                // The scope limits the route to this host; IPv6 has no scopes.
                let scope = if family == Family::V4 { RT_SCOPE_HOST } else { RT_SCOPE_UNIVERSE };
                vec![family.number(), 0, 0, 0, RT_TABLE_UNSPEC, ORIGIN, scope, RTN_LOCAL, 0, 0, 0, 0]
            }
        }
    }

    /// Its attributes; `priority` is used for rules only.
    pub(super) fn attributes(self, priority: u32, w: &mut Writer) {
        match self {
            Self::PassthroughAddress => {
                w.attr(IFA_LOCAL, &PASSTHROUGH_V6.octets());
                w.attr(IFA_ADDRESS, &PASSTHROUGH_V6.octets());
                // Kernels before 5.18 ignore it.
                w.attr(IFA_PROTO, &[ORIGIN]);
            }
            Self::MarkRule { mark, table, .. } => {
                w.ne32(FRA_PRIORITY, priority);
                w.ne32(FRA_FWMARK, mark.value());
                w.ne32(FRA_FWMASK, mark.mask());
                w.ne32(FRA_TABLE, table);
                w.attr(FRA_PROTOCOL, &[ORIGIN]);
            }
            Self::LocalRoute { table, .. } => {
                w.ne32(RTA_TABLE, table);
                w.ne32(RTA_OIF, LOOPBACK);
            }
        }
    }

    /// Reports whether the listed entry is this one, whichever program added it.
    pub(super) fn is(self, found: &[u8]) -> bool {
        Self::read(RoutingList::holding(self), found) == Some(self)
    }

    /// Parses a listed entry that has this form, whichever program added it.
    pub(super) fn read(list: RoutingList, found: &[u8]) -> Option<Self> {
        match list {
            RoutingList::Addresses => is_passthrough(found)?.then_some(Self::PassthroughAddress),
            RoutingList::Rules(family) => {
                let (&[found_family, to, from, tos, _, _, _, action, flags @ ..], rule) =
                    found.split_first_chunk::<RULE_HEADER>()?;
                let number_of = |kind| Attributes::of(rule).ne32(kind);
                let mark = MaskedMark::new(number_of(FRA_FWMARK)?, number_of(FRA_FWMASK)?);
                let table = number_of(FRA_TABLE)?;
                let every_packet =
                    [to, from, tos] == [0; 3] && u32::from_ne_bytes(flags) & FIB_RULE_INVERT == 0;
                let only_by_mark =
                    every_packet && Attributes::of(rule).all(|attribute| selects_nothing(&attribute));
                let is_one = found_family == family.number()
                    && action == FR_ACT_TO_TBL
                    && mark.mask() != 0
                    && only_by_mark;
                is_one.then_some(Self::MarkRule { family, mark, table })
            }
            RoutingList::Routes(family) => {
                let (&[found_family, length, _, _, _, _, _, kind, ..], route) =
                    found.split_first_chunk::<ROUTE_HEADER>()?;
                let number_of = |kind| Attributes::of(route).ne32(kind);
                let is_local_default = [found_family, length, kind] == [family.number(), 0, RTN_LOCAL];
                let table = number_of(RTA_TABLE)?;
                (is_local_default && number_of(RTA_OIF) == Some(LOOPBACK))
                    .then_some(Self::LocalRoute { family, table })
            }
        }
    }
}

/// A list that the kernel returns for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoutingList {
    Addresses,
    Rules(Family),
    Routes(Family),
}

impl RoutingList {
    pub(super) const ALL: [Self; 5] = [
        // Rules first: a table without a rule has no effect.
        Self::Rules(Family::V4),
        Self::Rules(Family::V6),
        Self::Routes(Family::V4),
        Self::Routes(Family::V6),
        Self::Addresses,
    ];

    /// The list with `entry`.
    pub(super) fn holding(entry: RoutingEntry) -> Self {
        match entry {
            RoutingEntry::PassthroughAddress => Self::Addresses,
            RoutingEntry::MarkRule { family, .. } => Self::Rules(family),
            RoutingEntry::LocalRoute { family, .. } => Self::Routes(family),
        }
    }

    /// The name of its entries in messages.
    pub(super) fn name(self) -> &'static str {
        self.request().0
    }

    /// Its name, the type of the request, the size of the request's fixed header, and its family.
    pub(super) fn request(self) -> (&'static str, u16, usize, u8) {
        match self {
            Self::Addresses => ("addresses", RTM_GETADDR, ADDRESS_HEADER, AF_INET6),
            Self::Rules(family) => ("routing rules", RTM_GETRULE, RULE_HEADER, family.number()),
            Self::Routes(family) => ("routes", RTM_GETROUTE, ROUTE_HEADER, family.number()),
        }
    }

    pub(super) fn deletion(self) -> u16 {
        match self {
            Self::Addresses => RTM_DELADDR,
            Self::Rules(_) => RTM_DELRULE,
            Self::Routes(_) => RTM_DELROUTE,
        }
    }
}

/// Reports whether an attribute does not restrict its rule: all other attributes match packets or hide a default
/// route (`fib_nl_fill_rule`, net/core/fib_rules.c, v6.18).
pub(super) fn selects_nothing(attribute: &Attribute<'_>) -> bool {
    match attribute.kind {
        FRA_PRIORITY | FRA_FWMARK | FRA_FWMASK | FRA_TABLE | FRA_PROTOCOL => true,
        FRA_SUPPRESS_PREFIXLEN => attribute.ne32() == Some(u32::MAX),
        _ => false,
    }
}

fn is_passthrough(found: &[u8]) -> Option<bool> {
    let (&[family, length, _, _, interface @ ..], address) = found.split_first_chunk::<ADDRESS_HEADER>()?;
    let own = Attributes::of(address).get(IFA_ADDRESS)?.value;
    let is_host_on_loopback =
        [family, length] == [AF_INET6, 128] && u32::from_ne_bytes(interface) == LOOPBACK;
    Some(is_host_on_loopback && own == PASSTHROUGH_V6.octets())
}

fn origin_of_address(found: &[u8]) -> Option<u8> {
    Attributes::of(found.get(ADDRESS_HEADER..)?).get(IFA_PROTO)?.value.first().copied()
}

/// Reports whether the listed address has a number of origin.
pub(super) fn has_origin(found: &[u8]) -> bool {
    origin_of_address(found).is_some()
}

/// Reports whether Gybe added the listed address. `has_origins`: this kernel lists origins of addresses.
pub(super) fn is_our_address(found: &[u8], has_origins: bool) -> bool {
    let ours = origin_of_address(found) == Some(ORIGIN) || !has_origins;
    ours && is_passthrough(found).unwrap_or(false)
}

/// Reports whether Gybe added the listed rule.
pub(super) fn is_our_rule(found: &[u8]) -> bool {
    let attributes = Attributes::of(found.get(RULE_HEADER..).unwrap_or_default());
    attributes.get(FRA_PROTOCOL).is_some_and(|origin| origin.value == [ORIGIN])
}

/// Reports whether Gybe added the listed route.
pub(super) fn is_our_route(found: &[u8]) -> bool {
    // `rtm_protocol`, the sixth byte of `struct rtmsg`.
    found.get(5) == Some(&ORIGIN)
}

/// The priority that the kernel gives the first rule without one: right before the rule of table `main`.
const BEFORE_MAIN: u32 = 32765;

/// The offset of the action in `struct fib_rule_hdr`.
const ACTION: usize = 7;

/// The position of Gybe's rule among the listed rules: before every rule except those for table `local`.
///
/// The kernel evaluates rules by priority, and rules of one priority in the order of their creation
/// (`fib_nl_newrule`, net/core/fib_rules.c, v6.18). A pod may have rules of its own (`ip rule add from 10.0.0.7 lookup
/// 100`): a reply of the application that matched such a rule first would bypass the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RulePriority {
    /// The rule is there, before all others.
    Present,
    /// The rule must be added with this priority. The kernel would choose the same for a rule without priority, but
    /// would add such a rule again at every request, because rules with different priorities differ.
    Free(u32),
    /// No priority is left before a rule with priority 0.
    None,
}

/// Determines the priority of `entry` among the listed rules, which are in the kernel's order.
pub(super) fn rule_priority(entry: RoutingEntry, listed: &[Vec<u8>]) -> RulePriority {
    let first = listed.iter().find(|found| entry.is(found) || !(is_local(found) || is_our_rule(found)));
    match first {
        Some(found) if entry.is(found) => RulePriority::Present,
        Some(found) => priority(found).checked_sub(1).map_or(RulePriority::None, RulePriority::Free),
        None => RulePriority::Free(BEFORE_MAIN),
    }
}

/// Reports whether the rule looks up table `local`.
pub(super) fn is_local(found: &[u8]) -> bool {
    found.get(ACTION) == Some(&FR_ACT_TO_TBL)
        && attribute(found, FRA_TABLE) == Some(u32::from(RT_TABLE_LOCAL))
}

/// The priority of a listed rule; the kernel omits 0.
pub(super) fn priority(found: &[u8]) -> u32 {
    attribute(found, FRA_PRIORITY).unwrap_or_default()
}

pub(super) fn attribute(found: &[u8], kind: u16) -> Option<u32> {
    Attributes::of(found.get(RULE_HEADER..)?).ne32(kind)
}
