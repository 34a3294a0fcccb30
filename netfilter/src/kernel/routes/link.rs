//! The interfaces of a namespace and their addresses, and the configuration of namespaces that Gybe creates: for the
//! probe, the demo and the validation of a pod. In a pod the runtime configures them, except for the address `::6` (see
//! `entry`).

use super::entry::{ADDRESS_HEADER, LINK_HEADER, LOOPBACK};
use super::error::RoutesError;
use super::rtnetlink::{ChangeRequest, Rtnetlink};
use super::uapi::*;
use crate::kernel::netlink::attr::{Attributes, Writer, address, octets};
use crate::kernel::netlink::message::{CREATE, EXCLUSIVE};
use crate::model::ruleset::Family;
use ipnet::IpNet;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A namespace with more interfaces is not read.
const MAX_LINKS: usize = 1_000;

/// A namespace with more addresses is not read.
const MAX_ADDRESSES: usize = 2_000;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its index; `lo` has 1.
    pub index: u32,
    /// Its name, escaped.
    pub name: String,
    /// Whether it was brought up (`IFF_UP`).
    pub(crate) is_raised: bool,
    /// Whether packets can pass (`IF_OPER_UP`). Never of `lo`, whose state is always unknown to the kernel.
    pub is_up: bool,
    /// The ids of its XDP programs.
    pub(crate) xdp_programs: Vec<u32>,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The interface's index; `lo` has 1.
    pub index: u32,
    /// The address.
    pub ip: IpAddr,
    /// The prefix length in bits.
    pub prefix: u8,
}

/// One end of a new veth pair.
#[derive(Debug, Clone, Copy)]
pub struct VethEnd<'a> {
    /// The index of the interface, unused in its namespace.
    pub index: u32,
    /// The name of the interface, unused in its namespace.
    pub name: &'a str,
}

/// The next hop of a route.
#[derive(Debug, Clone, Copy)]
pub enum NextHop {
    /// A neighbour.
    Via(IpAddr),
    /// This host: every address of the network is one of the namespace's own.
    Local,
}

/// The addresses of the calling thread's namespace.
///
/// # Errors
/// When the kernel does not list them.
pub fn addresses() -> Result<Vec<Address>, RoutesError> {
    Rtnetlink::open()?.addresses()
}

/// Each change returns when the kernel has acknowledged it.
impl Rtnetlink {
    /// The interfaces, in the kernel's order.
    ///
    /// # Errors
    /// When the kernel does not list them.
    pub fn links(&mut self) -> Result<Vec<Link>, RoutesError> {
        let listed = self.request_list("interfaces", RTM_GETLINK, &[0; LINK_HEADER], MAX_LINKS)?;
        Ok(listed.iter().filter_map(|entry| parse_link(entry)).collect())
    }

    /// The addresses of all interfaces, both families, in the kernel's order. The caller depends on the order: the
    /// first address that is neither loopback nor link-local decides which families are redirected (docs/ISTIO.md,
    /// section 2.5).
    ///
    /// # Errors
    /// When the kernel does not list them.
    pub fn addresses(&mut self) -> Result<Vec<Address>, RoutesError> {
        let listed = self.request_list("addresses", RTM_GETADDR, &[0; ADDRESS_HEADER], MAX_ADDRESSES)?;
        Ok(parse_addresses(&listed))
    }

    /// Brings up the interface with this index.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn raise(&mut self, index: u32) -> Result<(), RoutesError> {
        // `struct ifinfomsg`: the flags, and the mask of the flags to change.
        let header = [0, index, IFF_UP, IFF_UP].map(u32::to_ne_bytes).concat();
        self.change(RTM_NEWLINK, 0, header, |_| ())
    }

    /// Brings up the loopback interface.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn raise_loopback(&mut self) -> Result<(), RoutesError> {
        self.raise(LOOPBACK)
    }

    /// Adds an address to the loopback interface. It is reachable when this returns.
    pub(crate) fn add_to_loopback(&mut self, address: IpAddr) -> Result<(), RoutesError> {
        let host = IpNet::from(address);
        // The kernel adds a local route for every address, but for IPv6 some milliseconds later, from a work queue,
        // even without duplicate address detection (`addrconf_dad_start`, `__ipv6_ifa_notify`, net/ipv6/addrconf.c,
        // v6.18). Until then connections to the address fail with ENETUNREACH, and replies to it are lost; a route in
        // table `main` does not help.
        if address.is_ipv6() {
            self.add_route_to(RT_TABLE_LOCAL, host, NextHop::Local)?;
        }
        self.add_address(LOOPBACK, host)
    }

    /// Adds an address, with the length of its network's prefix, to the interface with this index.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_address(&mut self, index: u32, address: IpNet) -> Result<(), RoutesError> {
        let octets = octets(address.addr());
        // No other host is on such a link that could have the same address.
        let header =
            [Family::of(address.addr()).number(), address.prefix_len(), IFA_F_NODAD, RT_SCOPE_UNIVERSE];
        self.change(RTM_NEWADDR, CREATE | EXCLUSIVE, [header, index.to_ne_bytes()].concat(), |w| {
            w.attr(IFA_LOCAL, &octets);
            w.attr(IFA_ADDRESS, &octets);
        })
    }

    /// Adds a route to table `main`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_route(&mut self, network: IpNet, next_hop: NextHop) -> Result<(), RoutesError> {
        self.add_route_to(RT_TABLE_MAIN, network, next_hop)
    }

    fn add_route_to(&mut self, table: u8, network: IpNet, next_hop: NextHop) -> Result<(), RoutesError> {
        let (scope, kind) = match next_hop {
            NextHop::Via(_) => (RT_SCOPE_UNIVERSE, RTN_UNICAST),
            NextHop::Local => (RT_SCOPE_HOST, RTN_LOCAL),
        };
        // `struct rtmsg`.
        let (family, length) = (Family::of(network.addr()).number(), network.prefix_len());
        let header = vec![family, length, 0, 0, table, RTPROT_BOOT, scope, kind, 0, 0, 0, 0];
        self.change(RTM_NEWROUTE, CREATE | EXCLUSIVE, header, |w| {
            w.attr(RTA_DST, &octets(network.network()));
            match next_hop {
                NextHop::Via(neighbour) => w.attr(RTA_GATEWAY, &octets(neighbour)),
                NextHop::Local => w.ne32(RTA_OIF, LOOPBACK),
            }
        })
    }

    /// Creates a veth pair: `near` in this socket's namespace, `far` in the namespace `netns`. Both ends are down.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn create_veth(
        &mut self,
        near: VethEnd<'_>,
        far: VethEnd<'_>,
        netns: BorrowedFd<'_>,
    ) -> Result<(), RoutesError> {
        // `struct ifinfomsg`: the index alone.
        let header = |end: VethEnd<'_>| [0, end.index, 0, 0].map(u32::to_ne_bytes).concat();
        self.change(RTM_NEWLINK, CREATE | EXCLUSIVE, header(near), |w| {
            w.text(IFLA_IFNAME, near.name);
            w.nested(IFLA_LINKINFO, |w| {
                w.text(IFLA_INFO_KIND, "veth");
                w.nested(IFLA_INFO_DATA, |w| {
                    w.nested(VETH_INFO_PEER, |w| {
                        w.raw(&header(far));
                        w.text(IFLA_IFNAME, far.name);
                        w.attr(IFLA_NET_NS_FD, &netns.as_raw_fd().to_ne_bytes());
                    });
                });
            });
        })
    }

    fn change(
        &mut self,
        kind: u16,
        flags: u16,
        header: Vec<u8>,
        attributes: impl FnOnce(&mut Writer),
    ) -> Result<(), RoutesError> {
        let refusals = self.transact(vec![ChangeRequest { kind, flags, header, attributes }])?;
        refusals.first().map_or(Ok(()), |refusal| Err(RoutesError::Refused(refusal.errno)))
    }
}

/// Parses `struct ifinfomsg` and its attributes.
pub(super) fn parse_link(entry: &[u8]) -> Option<Link> {
    let (&[_, _, _, _, a, b, c, d, e, f, g, h, ..], rest) = entry.split_first_chunk::<LINK_HEADER>()?;
    let attributes = Attributes::of(rest);
    let name = attributes.name(IFLA_IFNAME)?;
    let is_raised = u32::from_ne_bytes([e, f, g, h]) & IFF_UP != 0;
    let is_up = attributes.get(IFLA_OPERSTATE).is_some_and(|state| state.value == [IF_OPER_UP]);
    let xdp = attributes.nested(IFLA_XDP);
    let ids = xdp.filter(|attribute| IFLA_XDP_PROGRAMS.contains(&attribute.kind)).filter_map(|id| id.ne32());
    let mut xdp_programs: Vec<u32> = ids.filter(|id| *id != 0).collect();
    xdp_programs.dedup();
    Some(Link { index: u32::from_ne_bytes([a, b, c, d]), name, is_raised, is_up, xdp_programs })
}

/// Parses the entries of a list of addresses.
pub(crate) fn parse_addresses(entries: &[Vec<u8>]) -> Vec<Address> {
    entries.iter().filter_map(|entry| parse_address(entry)).collect()
}

/// Parses `struct ifaddrmsg` and its attributes.
fn parse_address(entry: &[u8]) -> Option<Address> {
    let (&[_, prefix, _flags, _scope, index @ ..], rest) = entry.split_first_chunk::<ADDRESS_HEADER>()?;
    let attributes = Attributes::of(rest);
    // On a point-to-point link IFA_ADDRESS is the peer's address.
    let own = attributes.get(IFA_LOCAL).or_else(|| attributes.get(IFA_ADDRESS))?.value;
    let ip = address(own)?;
    Some(Address { index: u32::from_ne_bytes(index), ip, prefix })
}
