//! Links between namespaces, their addresses and routes. Works in the calling thread's namespace,
//! or in those it is handed; every change is acknowledged by the kernel before the next one. When
//! what was made really works is known to `link/ready.rs`.

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

/// Why a world could not be wired up.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The kernel did not do one step of it.
    #[error("cannot {step}")]
    Step {
        /// Which.
        step: String,
        /// Why.
        source: RtnetlinkError,
    },
    /// A link or an address never came to work.
    #[error("{what} did not work within {seconds} s")]
    NotReady {
        /// Which.
        what: String,
        /// How long it had.
        seconds: u64,
    },
    /// A namespace could not be worked in.
    #[error("cannot wire up a network namespace")]
    Namespace(#[from] NamespaceError),
    /// A kernel switch could not be set.
    #[error("cannot write {value} to {path}")]
    Sysctl {
        /// The switch.
        path: String,
        /// The wanted position.
        value: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

impl Hint for LinkError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let Self::Step { source: RtnetlinkError::Refused { errno }, .. } = self else { return None };
        match errno {
            Errno::EOPNOTSUPP => Some("this kernel has no veth pairs: load module veth (CONFIG_VETH)".into()),
            Errno::EACCES | Errno::EAFNOSUPPORT => {
                Some("this kernel has IPv6 switched off: sysctl net.ipv6.conf.default.disable_ipv6, or ipv6.disable=1 on its command line".into())
            }
            _ => None,
        }
    }
}

/// One end of a link: where it is, what it is called and which addresses it has.
#[derive(Debug)]
pub struct LinkEnd<'a> {
    /// The namespace it is in.
    pub namespace: &'a Namespace,
    /// Its name there.
    pub name: InterfaceName,
    /// Its addresses with their prefixes.
    pub addresses: Vec<IpNet>,
}

/// Where packets to a network go.
#[derive(Debug, Clone, Copy)]
pub enum NextHop {
    /// To this neighbour.
    Via(IpAddr),
    /// Nowhere: every address of the network is one of this namespace's own.
    Here,
}

/// Index of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;

/// Makes a veth pair, gives each end its addresses and returns when packets can pass.
///
/// # Errors
/// When the kernel refuses a step, or the link does not come up.
pub fn join(left: &LinkEnd<'_>, right: &LinkEnd<'_>) -> Result<(), LinkError> {
    // Two ends with the same index count as one device to the kernel's link watcher, and it may
    // then take a second to notice that they are up (net/core/link_watch.c, linkwatch_urgent_event).
    static NEXT: AtomicU32 = AtomicU32::new(1000);
    let index = NEXT.fetch_add(2, Ordering::Relaxed);
    left.namespace.run(|| make_pair((left, index), (right, index + 1)))??;
    let ends = [(left, index), (right, index + 1)];
    for (end, index) in ends {
        end.namespace.run(|| up(index, || format!("bring up {}", end.name.as_str())))??;
    }
    for (end, index) in ends {
        end.namespace.run(|| ready::until_up(end, index).and_then(|()| address(end, index)))??;
    }
    Ok(())
}

/// Sends packets for `network` there, from `namespace`.
///
/// # Errors
/// When the kernel refuses.
pub fn route(namespace: &Namespace, network: IpNet, towards: NextHop) -> Result<(), LinkError> {
    let mut message = RouteMessage::default();
    message.header.address_family = family(network.addr());
    message.header.destination_prefix_length = network.prefix_len();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Boot;
    message.attributes.push(RouteAttribute::Destination(route_address(network.network())));
    match towards {
        NextHop::Via(neighbour) => {
            message.header.kind = RouteType::Unicast;
            message.attributes.push(RouteAttribute::Gateway(route_address(neighbour)));
        }
        NextHop::Here => {
            message.header.kind = RouteType::Local;
            message.header.scope = RouteScope::Host;
            message.attributes.push(RouteAttribute::Oif(LOOPBACK));
        }
    }
    namespace.run(|| {
        let add = RouteNetlinkMessage::NewRoute(message);
        change(add, NLM_F_CREATE | NLM_F_EXCL, || format!("route {network} {towards:?}"))
    })?
}

/// Makes `namespace` a router: it passes on what is not for itself, whatever interface it came by.
///
/// # Errors
/// When a switch cannot be set.
pub fn forward(namespace: &Namespace) -> Result<(), LinkError> {
    let set = |path: &str, value: &'static str| {
        // /proc/sys/net shows the namespace of the calling thread (net/sysctl_net.c, net_ctl_header_lookup).
        let path = format!("/proc/sys/net/{path}");
        std::fs::write(&path, value).map_err(|source| LinkError::Sysctl { path, value, source })
    };
    namespace.run(|| {
        set("ipv4/ip_forward", "1")?;
        set("ipv6/conf/all/forwarding", "1")?;
        // A new namespace may inherit the machine's (net.core.devconf_inherit_init_net), and
        // asymmetric paths are what a router is tested with.
        set("ipv4/conf/all/rp_filter", "0")?;
        set("ipv4/conf/default/rp_filter", "0")
    })?
}

fn make_pair(left: (&LinkEnd<'_>, u32), right: (&LinkEnd<'_>, u32)) -> Result<(), LinkError> {
    let half = |(end, index): (&LinkEnd<'_>, u32)| {
        let mut half = LinkMessage::default();
        half.header.index = index;
        half.attributes.push(LinkAttribute::IfName(end.name.as_str().to_owned()));
        half
    };
    let mut other = half(right);
    other.attributes.push(LinkAttribute::NetNsFd(right.0.namespace.as_fd().as_raw_fd()));
    let mut pair = half(left);
    pair.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
    ]));
    change(RouteNetlinkMessage::NewLink(pair), NLM_F_CREATE | NLM_F_EXCL, || {
        format!("make the veth pair {} - {}", left.0.name.as_str(), right.0.name.as_str())
    })
}

fn address(end: &LinkEnd<'_>, index: u32) -> Result<(), LinkError> {
    for network in &end.addresses {
        let mut message = AddressMessage::default();
        message.header.family = family(network.addr());
        message.header.prefix_len = network.prefix_len();
        message.header.index = index;
        // No duplicate address detection: nobody else is on the wire, and it takes a second.
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes.push(AddressAttribute::Local(network.addr()));
        message.attributes.push(AddressAttribute::Address(network.addr()));
        change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL, || {
            format!("give {} the address {network}", end.name.as_str())
        })?;
        if let IpAddr::V6(address) = network.addr() {
            ready::until_found(address, index)?;
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
