//! What the routing rules and routes of a namespace decide about redirected packets, as far as it is evaluated, the
//! kernel's answer for one connection, and whether IPsec drops or encrypts packets.

use super::entry::{
    LOOPBACK, ROUTE_HEADER, RULE_HEADER, RoutingEntry, RoutingList, RulePriority, attribute, is_local,
    priority, rule_priority, selects_nothing,
};
use super::error::RoutesError;
use super::rtnetlink::Rtnetlink;
use super::uapi::*;
use crate::kernel::netlink::attr::{Attributes, Writer, address, octets};
use crate::kernel::netlink::list::{Limit, Listed};
use crate::kernel::netlink::message::{ACK, DUMP, Header, REQUEST};
use crate::kernel::netlink::reply::Unknown;
use crate::kernel::netlink::socket::{Socket, SocketError};
use crate::model::policy::MaskedMark;
use crate::model::ruleset::Family;
use ipnet::IpNet;
use nix::errno::Errno;
use std::net::IpAddr;

/// A namespace with more routing rules, or more routes, of one family is not evaluated.
const MAX_ENTRIES: usize = 1_000;
/// The most routes that are listed, with those that the kernel has cached.
const MAX_LISTED: usize = 10_000;

/// The routing of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Routing {
    /// The routes of table `local`, and those of table `main` to this host; whether each delivers to this host.
    local: Vec<(IpNet, bool)>,
    /// The interfaces by which routes lead to other networks than link-local ones.
    leaves_by: Vec<(Family, u32)>,
    /// Marks with which every packet is delivered to this host.
    delivered_marks: Vec<(Family, MaskedMark)>,
    /// Routing rules that precede the look-up of this host's own addresses.
    pub(crate) before_local: Vec<(Family, String)>,
    /// Networks to which the kernel refuses connections.
    pub(crate) refused: Vec<(IpNet, &'static str)>,
    /// What is not evaluated.
    pub(crate) not_evaluated: Vec<String>,
}

impl Routing {
    /// Reports whether the kernel delivers packets to this address to the namespace itself.
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        let matching = self.local.iter().filter(|(network, _)| network.contains(&address));
        matching.max_by_key(|(network, _)| network.prefix_len()).is_some_and(|(_, is_local)| *is_local)
    }

    /// The networks that are local.
    pub(crate) fn local_networks(&self) -> impl Iterator<Item = IpNet> {
        self.local.iter().filter(|(_, is_local)| *is_local).map(|(network, _)| *network)
    }

    /// Adds a local address.
    pub(crate) fn add_local(&mut self, address: IpAddr) {
        self.local.push((address.into(), true));
    }

    /// Reports whether a route leads to other hosts by this interface.
    pub(crate) fn leaves_by(&self, family: Family, index: u32) -> bool {
        self.leaves_by.contains(&(family, index))
    }

    /// Reports whether packets with this mark are delivered to this host, whatever their destination.
    pub(crate) fn delivers_mark(&self, family: Family, mark: u32) -> bool {
        self.delivered_marks.iter().any(|(of, delivered)| *of == family && delivered.is_in(mark))
    }

    fn add(&mut self, family: Family, rules: &[Vec<u8>], routes: &[Vec<u8>]) {
        for found in routes {
            self.add_route(family, found);
        }
        let is_all = |found: &Vec<u8>| is_local(found) && selects_every_packet(found);
        let first_local = rules.iter().position(is_all).unwrap_or(rules.len());
        let before = rules.iter().take(first_local).filter(|found| !is_local(found));
        self.before_local.extend(before.map(|found| (family, rule_text(found))));
        if first_local == rules.len() {
            self.not_evaluated.push(format!("no {family} routing rule looks up table local"));
        }
        let entries = rules.iter().filter_map(|found| RoutingEntry::read(RoutingList::Rules(family), found));
        for entry in entries {
            let RoutingEntry::MarkRule { mark, table, .. } = entry else { continue };
            let route = RoutingEntry::LocalRoute { family, table };
            if rule_priority(entry, rules) == RulePriority::Present
                && routes.iter().any(|found| route.is(found))
            {
                self.delivered_marks.push((family, mark));
            }
        }
    }

    fn add_route(&mut self, family: Family, found: &[u8]) -> Option<()> {
        let (&[_, length, _, _, _, _, _, kind, ..], rest) = found.split_first_chunk::<ROUTE_HEADER>()?;
        let table = Attributes::of(rest).ne32(RTA_TABLE)?;
        let network = IpNet::new(destination(family, rest)?, length).ok()?;
        match (u8::try_from(table).ok(), kind) {
            (Some(RT_TABLE_LOCAL), _) => self.local.push((network, kind == RTN_LOCAL)),
            (Some(RT_TABLE_MAIN), RTN_LOCAL) => self.local.push((network, true)),
            (_, RTN_UNICAST) if !is_link_local(network) => {
                let paths = Attributes::of(rest).get(RTA_MULTIPATH).map_or(&[][..], |paths| paths.value);
                let one = Attributes::of(rest).ne32(RTA_OIF);
                let all = one.into_iter().chain(hops(paths)).map(|index| (family, index));
                self.leaves_by.extend(all);
            }
            (_, RTN_BLACKHOLE) => self.refused.push((network, "blackhole")),
            (_, RTN_UNREACHABLE) => self.refused.push((network, "unreachable")),
            (_, RTN_PROHIBIT) => self.refused.push((network, "prohibit")),
            _ => {}
        }
        Some(())
    }
}

fn is_link_local(network: IpNet) -> bool {
    match network {
        IpNet::V4(network) => network.addr().is_link_local() || network.addr().is_multicast(),
        IpNet::V6(network) => network.addr().is_unicast_link_local() || network.addr().is_multicast(),
    }
}

/// The destination of a route; a default route has no attribute.
fn destination(family: Family, attributes: &[u8]) -> Option<IpAddr> {
    let value = Attributes::of(attributes).get(RTA_DST).map(|destination| destination.value);
    value.map_or(Some(family.unspecified()), address)
}

/// The interfaces of `struct rtnexthop`, one after the other.
fn hops(mut paths: &[u8]) -> Vec<u32> {
    let mut indices = Vec::new();
    while let Some((&[low, high, _, _, a, b, c, d], _)) = paths.split_first_chunk::<8>() {
        indices.push(u32::from_ne_bytes([a, b, c, d]));
        let length = usize::from(u16::from_ne_bytes([low, high])).next_multiple_of(4).max(8);
        paths = paths.get(length..).unwrap_or_default();
    }
    indices
}

/// Reports whether the kernel added the route, for one destination: a redirect by a router, or a path's MTU.
fn is_cached(route: &[u8]) -> bool {
    route
        .get(8..)
        .and_then(<[u8]>::first_chunk)
        .is_some_and(|flags| u32::from_ne_bytes(*flags) & RTM_F_CLONED != 0)
}

/// Reports whether a listed rule has no selector.
fn selects_every_packet(found: &[u8]) -> bool {
    let Some((&[_, to, from, tos, _, _, _, _, flags @ ..], rest)) = found.split_first_chunk::<RULE_HEADER>()
    else {
        return false;
    };
    let has_no_selector =
        Attributes::of(rest).all(|one| selects_nothing(&one) && !matches!(one.kind, FRA_FWMARK | FRA_FWMASK));
    [to, from, tos] == [0; 3] && u32::from_ne_bytes(flags) & FIB_RULE_INVERT == 0 && has_no_selector
}

/// A listed rule as text: priority and table name it in `ip rule`.
fn rule_text(found: &[u8]) -> String {
    match attribute(found, FRA_TABLE) {
        Some(table) if table != 0 => format!("priority {}, table {table}", priority(found)),
        _ => format!("priority {}", priority(found)),
    }
}

/// A connection whose route is requested.
#[derive(Debug, Clone, Copy)]
pub struct RouteQuery {
    /// The destination.
    pub destination: IpAddr,
    /// The source that the socket is bound to.
    pub source: Option<IpAddr>,
    /// The packet mark.
    pub mark: u32,
    /// The owner of the socket.
    pub uid: u32,
    /// The index of the interface that the socket is bound to.
    pub bound_to: Option<u32>,
}

/// The kernel's route for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The index of the interface by which packets leave; that of `lo` for this host's own addresses.
    pub interface: u32,
    /// The source that the kernel chooses.
    pub source: Option<IpAddr>,
}

impl Rtnetlink {
    /// Reads the routing rules and routes.
    ///
    /// # Errors
    /// When the kernel does not list them.
    pub(crate) fn routing(&mut self) -> Result<Routing, RoutesError> {
        let mut routing = Routing::default();
        for family in Family::ALL {
            let rules = self.list_up_to(RoutingList::Rules(family), MAX_ENTRIES)?;
            // A kernel without the family has neither.
            if rules.is_empty() {
                continue;
            }
            let mut routes = self.list_up_to(RoutingList::Routes(family), MAX_LISTED)?;
            routes.retain(|route| !is_cached(route));
            if routes.len() > MAX_ENTRIES {
                return Err(RoutesError::TooLarge {
                    what: RoutingList::Routes(family).name(),
                    most: MAX_ENTRIES,
                });
            }
            routing.add(family, &rules, &routes);
        }
        Ok(routing)
    }

    /// Requests the route of a connection; an errno is what connect(2) fails with.
    ///
    /// # Errors
    /// When the kernel does not reply conclusively.
    pub fn route(&mut self, query: RouteQuery) -> Result<Result<Route, Errno>, RoutesError> {
        let family = Family::of(query.destination).number();
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let source_bits = query.source.map_or(0, bits);
        let fixed = [family, bits(query.destination), source_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut writer = Writer::with_capacity(128);
        let header = Header { kind: RTM_GETROUTE, flags: REQUEST | ACK, sequence: self.next_sequence() };
        writer.message(header, &fixed, |w| {
            w.attr(RTA_DST, &octets(query.destination));
            if let Some(source) = query.source {
                w.attr(RTA_SRC, &octets(source));
            }
            w.ne32(RTA_MARK, query.mark);
            w.ne32(RTA_UID, query.uid);
            if let Some(index) = query.bound_to {
                w.ne32(RTA_OIF, index);
            }
        });
        match self.request(&writer.finish().unwrap_or_default(), header.sequence)? {
            Listed::Whole(entries) => {
                let route = entries.first().and_then(|entry| parse(entry));
                route.map(Ok).ok_or(RoutesError::OutcomeUnknown(Unknown::Unreadable))
            }
            Listed::Refused(errno) => Ok(Err(errno)),
            Listed::Unknown(source) => Err(RoutesError::OutcomeUnknown(source)),
            Listed::Changed | Listed::TooLarge => Err(RoutesError::OutcomeUnknown(Unknown::Unreadable)),
        }
    }
}

fn parse(entry: &[u8]) -> Option<Route> {
    let (&[_, _, _, _, _, _, _, kind, ..], rest) = entry.split_first_chunk::<ROUTE_HEADER>()?;
    let attributes = Attributes::of(rest);
    let interface = match kind {
        RTN_LOCAL => LOOPBACK,
        _ => attributes.ne32(RTA_OIF)?,
    };
    Some(Route { interface, source: attributes.get(RTA_PREFSRC).and_then(|source| address(source.value)) })
}

/// `XFRM_MSG_GETPOLICY` (include/uapi/linux/xfrm.h, v6.18).
const GET_POLICY: u16 = 0x15;
/// The offset of `dir` in `struct xfrm_userpolicy_info`: after a selector of 56 bytes, two lifetimes of 64 and 32 bytes,
/// priority and index.
const DIRECTION: usize = 160;
/// `XFRM_POLICY_IN` and `XFRM_POLICY_OUT`; the others apply to forwarded packets or to one socket.
const DIRECTIONS: [u8; 2] = [0, 1];

/// More policies are not counted.
const MAX_POLICIES: usize = 1000;

/// The number of policies for packets that arrive at or leave the namespace of the calling thread; none without IPsec
/// in this kernel. Lists them with CAP_NET_ADMIN only.
///
/// # Errors
/// When the kernel does not list them.
pub(crate) fn ipsec_policies() -> Result<usize, Errno> {
    let mut socket = match Socket::open_xfrm() {
        Err(SocketError::Open(Errno::EPROTONOSUPPORT)) => return Ok(0),
        socket => socket.map_err(errno)?,
    };
    let mut writer = Writer::with_capacity(64);
    writer.message(Header { kind: GET_POLICY, flags: REQUEST | DUMP, sequence: 1 }, &[], |_| ());
    match socket.list(&writer.finish().unwrap_or_default(), 1, Limit::entries(MAX_POLICIES)).map_err(errno)? {
        Listed::Whole(policies) => Ok(policies
            .iter()
            .filter(|policy| policy.get(DIRECTION).is_some_and(|to| DIRECTIONS.contains(to)))
            .count()),
        Listed::Refused(source) => Err(source),
        Listed::TooLarge => Ok(MAX_POLICIES),
        Listed::Changed | Listed::Unknown(_) => Err(Errno::EAGAIN),
    }
}

fn errno(error: SocketError) -> Errno {
    match error {
        SocketError::Open(source) | SocketError::Send { source, .. } | SocketError::Receive(source) => source,
    }
}
