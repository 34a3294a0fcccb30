//! Links between namespaces, their addresses and routes. The kernel acknowledges every change before the next one
//! is made; `ready` waits until links and addresses work.

mod ready;

use super::namespace::{Namespace, NamespaceError};
use super::rtnetlink::{Rtnetlink, RtnetlinkError};
use gybe_netfilter::hint::Hint;
use gybe_netfilter::policy::InterfaceName;
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use std::borrow::Cow;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("cannot {step}")]
    Step { step: String, source: RtnetlinkError },
    #[error("{what} was not ready within {seconds} s")]
    NotReady { what: String, seconds: u64 },
    #[error("cannot add a link to a network namespace")]
    Namespace(#[from] NamespaceError),
    #[error("cannot write {value} to {path}")]
    Sysctl { path: String, value: &'static str, source: std::io::Error },
}

impl Hint for LinkError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let Self::Step { source: RtnetlinkError::Refused { errno }, .. } = self else { return None };
        match errno {
            Errno::EOPNOTSUPP => Some("this kernel has no veth pairs: load module veth (CONFIG_VETH)".into()),
            Errno::EACCES | Errno::EAFNOSUPPORT => {
                Some("IPv6 is disabled in this kernel: sysctl net.ipv6.conf.default.disable_ipv6, or ipv6.disable=1 on its command line".into())
            }
            _ => None,
        }
    }
}

/// One end of a veth pair.
#[derive(Debug)]
pub struct LinkEnd<'a> {
    pub namespace: &'a Namespace,
    pub name: InterfaceName,
    pub addresses: Vec<IpNet>,
}

/// The next hop of a route.
#[derive(Debug, Clone, Copy)]
pub enum NextHop {
    Via(IpAddr),
    /// A local route: every address of the network is one of the namespace's own.
    Local,
}

/// Index of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;

/// Creates a veth pair, adds the addresses of each end, and returns when packets can pass.
pub fn join(left: &LinkEnd<'_>, right: &LinkEnd<'_>) -> Result<(), LinkError> {
    // The kernel's link watcher takes two ends with the same index for one device, and may need a second to
    // notice that both are up (net/core/link_watch.c, linkwatch_urgent_event).
    static NEXT: AtomicU32 = AtomicU32::new(1000);
    let index = NEXT.fetch_add(2, Ordering::Relaxed);
    let ends = [Indexed { end: left, index }, Indexed { end: right, index: index + 1 }];
    left.namespace.run(|| create_pair(&ends))??;
    for Indexed { end, index } in ends {
        end.namespace.run(|| up(index, || format!("bring up {}", end.name.as_str())))??;
    }
    for Indexed { end, index } in ends {
        end.namespace.run(|| ready::until_up(end, index).and_then(|()| address(end, index)))??;
    }
    Ok(())
}

/// Adds a route to `network` in `namespace`.
pub fn route(namespace: &Namespace, network: IpNet, next_hop: NextHop) -> Result<(), LinkError> {
    let mut message = RouteMessage::default();
    message.header.address_family = family(network.addr());
    message.header.destination_prefix_length = network.prefix_len();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Boot;
    message.attributes.push(RouteAttribute::Destination(route_address(network.network())));
    match next_hop {
        NextHop::Via(neighbour) => {
            message.header.kind = RouteType::Unicast;
            message.attributes.push(RouteAttribute::Gateway(route_address(neighbour)));
        }
        NextHop::Local => {
            message.header.kind = RouteType::Local;
            message.header.scope = RouteScope::Host;
            message.attributes.push(RouteAttribute::Oif(LOOPBACK));
        }
    }
    namespace.run(|| {
        let add = RouteNetlinkMessage::NewRoute(message);
        change(add, NLM_F_CREATE | NLM_F_EXCL, || format!("route {network} {next_hop:?}"))
    })?
}

/// Makes `namespace` a router: it forwards packets for other addresses, from every interface.
pub fn forward(namespace: &Namespace) -> Result<(), LinkError> {
    let set = |path: &str, value: &'static str| {
        // /proc/sys/net shows the namespace of the calling thread (net/sysctl_net.c, net_ctl_header_lookup).
        let path = format!("/proc/sys/net/{path}");
        std::fs::write(&path, value).map_err(|source| LinkError::Sysctl { path, value, source })
    };
    namespace.run(|| {
        set("ipv4/ip_forward", "1")?;
        set("ipv6/conf/all/forwarding", "1")?;
        // A new namespace may inherit the machine's setting (net.core.devconf_inherit_init_net), and tests of a
        // router use asymmetric paths.
        set("ipv4/conf/all/rp_filter", "0")?;
        set("ipv4/conf/default/rp_filter", "0")
    })?
}

/// An end and the index that its interface gets.
#[derive(Clone, Copy)]
struct Indexed<'a> {
    end: &'a LinkEnd<'a>,
    index: u32,
}

fn create_pair([left, right]: &[Indexed<'_>; 2]) -> Result<(), LinkError> {
    let half = |Indexed { end, index }: &Indexed<'_>| {
        let mut half = LinkMessage::default();
        half.header.index = *index;
        half.attributes.push(LinkAttribute::IfName(end.name.as_str().to_owned()));
        half
    };
    let mut peer = half(right);
    peer.attributes.push(LinkAttribute::NetNsFd(right.end.namespace.as_fd().as_raw_fd()));
    let mut pair = half(left);
    pair.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    change(RouteNetlinkMessage::NewLink(pair), NLM_F_CREATE | NLM_F_EXCL, || {
        format!("create the veth pair {} - {}", left.end.name.as_str(), right.end.name.as_str())
    })
}

fn address(end: &LinkEnd<'_>, index: u32) -> Result<(), LinkError> {
    for network in &end.addresses {
        let mut message = AddressMessage::default();
        message.header.family = family(network.addr());
        message.header.prefix_len = network.prefix_len();
        message.header.index = index;
        // Duplicate address detection takes a second, and there is no other host on this link.
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes.push(AddressAttribute::Local(network.addr()));
        message.attributes.push(AddressAttribute::Address(network.addr()));
        change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL, || {
            format!("add to {} the address {network}", end.name.as_str())
        })?;
        if let IpAddr::V6(address) = network.addr() {
            ready::until_multicast_joined(address, index)?;
        }
    }
    Ok(())
}

fn up(index: u32, step: impl Fn() -> String) -> Result<(), LinkError> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    change(RouteNetlinkMessage::SetLink(message), 0, step)
}

fn change(message: RouteNetlinkMessage, flags: u16, step: impl Fn() -> String) -> Result<(), LinkError> {
    Rtnetlink::open()
        .and_then(|mut kernel| kernel.change(message, flags))
        .map_err(|source| LinkError::Step { step: step(), source })
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}
