//! The network in which the flows were recorded, and TCP segments in it that belong to no connection.

use crate::failure::Failure;
use crate::vectors::{Flow, Location};
use gybe_demo::testnet::listener::{ListenAddress, Listeners, ListeningPort, ServerName};
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, NextHop, forward, join, route};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::ambient::ZTUNNEL_MARK;
use gybe_netfilter::model::policy::{Families, InterfaceName, Mode};
use gybe_netfilter::model::ruleset::Transport;
use ipnet::IpNet;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto, socket,
};
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The recorded network; its namespaces and listeners end with the value.
#[derive(Debug)]
pub struct Topology {
    // First, so that the listeners stop before their namespaces end.
    listeners: Vec<Listeners>,
    pod: Arc<Namespace>,
    peer: Arc<Namespace>,
    vm: Arc<Namespace>,
    sec: Arc<Namespace>,
}

const APP: Owner = Owner { uid: 1000, gid: 1000 };
const ROOT: Owner = Owner { uid: 0, gid: 0 };

impl Topology {
    /// Makes the network for a proxy of that mode; the hosts outside listen on every port that `flows` connect to.
    ///
    /// # Errors
    /// When a namespace, link or listener cannot be made.
    pub fn new(mode: Mode, flows: &[Flow]) -> Result<Self, Failure> {
        Self::with_families(mode, flows, Families::V4AndV6)
    }

    /// Makes the network for an ambient pod, in which ztunnel listens as `envoy` with its mark.
    ///
    /// # Errors
    /// When a namespace, link or listener cannot be made.
    pub fn ambient(flows: &[Flow]) -> Result<Self, Failure> {
        let mut topology = Self::before_ztunnel(flows)?;
        topology.start_ztunnel()?;
        Ok(topology)
    }

    /// The same before [`Topology::start_ztunnel`].
    ///
    /// # Errors
    /// As [`Topology::ambient`].
    pub fn before_ztunnel(flows: &[Flow]) -> Result<Self, Failure> {
        Self::without_proxy(flows, Families::V4AndV6)
    }

    /// Lets ztunnel listen in the pod.
    ///
    /// # Errors
    /// When a listener cannot be made.
    pub fn start_ztunnel(&mut self) -> Result<(), Failure> {
        self.start_proxy(Owner { uid: 0, gid: 1337 }, ZTUNNEL_MARK.value())
    }

    /// As [`Topology::new`], with addresses and routes of these families alone: a kernel may be without IPv6.
    ///
    /// # Errors
    /// When a namespace, link or listener cannot be made.
    pub fn with_families(mode: Mode, flows: &[Flow], families: Families) -> Result<Self, Failure> {
        let mut topology = Self::without_proxy(flows, families)?;
        topology.start_proxy(proxy(mode), 0)?;
        Ok(topology)
    }

    fn start_proxy(&mut self, owner: Owner, mark: u32) -> Result<(), Failure> {
        let name = ServerName::NameAndPort("envoy");
        self.listeners.push(Listeners::start_marked(&self.pod, owner, mark, name, proxy_services())?);
        Ok(())
    }

    fn without_proxy(flows: &[Flow], families: Families) -> Result<Self, Failure> {
        let namespace = || Namespace::new().map(Arc::new);
        let (pod, peer, vm, sec) = (namespace()?, namespace()?, namespace()?, namespace()?);
        for (name, addresses, other) in [
            ("eth0", "10.244.0.10/24 fd00:10::10/64", (&*peer, "10.244.0.1/24 fd00:10::1/64")),
            ("eth1", "192.168.77.1/24 fd00:77::1/64", (&*vm, "192.168.77.2/24 fd00:77::2/64")),
            ("net1", "172.30.0.10/24 fd00:30::10/64", (&*sec, "172.30.0.1/24 fd00:30::1/64")),
        ] {
            wire(families, &pod, name, addresses, other)?;
        }
        forward(&pod, families)?;
        let has_family = |network: &IpNet| families == Families::V4AndV6 || network.addr().is_ipv4();
        for (from, network, neighbour) in [
            (&pod, "0.0.0.0/0", "10.244.0.1"),
            (&pod, "::/0", "fd00:10::1"),
            (&vm, "0.0.0.0/0", "192.168.77.1"),
            (&vm, "::/0", "fd00:77::1"),
            (&peer, "192.168.77.0/24", "10.244.0.10"),
            (&peer, "fd00:77::/64", "fd00:10::10"),
        ] {
            let (network, neighbour) = (network.parse()?, neighbour.parse()?);
            if has_family(&network) {
                route(from, network, NextHop::Via(neighbour))?;
            }
        }
        // The peer has every address outside the other networks.
        for every in ["0.0.0.0/0".parse()?, "::/0".parse()?].into_iter().filter(has_family) {
            route(&peer, every, NextHop::Local)?;
        }
        let listeners = vec![
            Listeners::start(&pod, APP, ServerName::NameAndPort("app"), app_services())?,
            Listeners::start(&peer, ROOT, ServerName::Name("ext-peer"), services_of(flows, "ext-peer"))?,
            Listeners::start(&sec, ROOT, ServerName::Name("ext-sec"), services_of(flows, "ext-sec"))?,
        ];
        Ok(Self { listeners, pod, peer, vm, sec })
    }

    /// One of its namespaces.
    pub fn at(&self, place: Location) -> &Namespace {
        match place {
            Location::Pod => &self.pod,
            Location::Peer => &self.peer,
            Location::Vm => &self.vm,
            Location::Sec => &self.sec,
        }
    }
}

/// A link from `pod` to another namespace, in which it is called `eth0`.
fn wire(
    families: Families,
    pod: &Namespace,
    name: &str,
    addresses: &str,
    other: (&Namespace, &str),
) -> Result<(), Failure> {
    let end = |namespace, name, addresses: &str| -> Result<LinkEnd<'_>, Failure> {
        let mut addresses = addresses.split(' ').map(str::parse).collect::<Result<Vec<IpNet>, _>>()?;
        addresses.retain(|address| families == Families::V4AndV6 || address.addr().is_ipv4());
        Ok(LinkEnd { namespace, name: InterfaceName::parse(name)?, addresses })
    };
    Ok(join(&end(pod, name, addresses)?, &end(other.0, "eth0", other.1)?)?)
}

fn proxy(mode: Mode) -> Owner {
    match mode {
        Mode::Redirect => Owner { uid: 1337, gid: 1337 },
        // Transparent sockets need privilege, so the injector makes the proxy root.
        Mode::Tproxy { .. } => Owner { uid: 0, gid: 1337 },
    }
}

fn proxy_services() -> Vec<ListeningPort> {
    let tcp = |port, address| ListeningPort { transport: Transport::Tcp, port, address };
    let everywhere = [15000, 15008, 15020, 15021, 15090].map(|port| tcp(port, ListenAddress::Any));
    let transparent = [15001, 15006].map(|port| tcp(port, ListenAddress::Transparent));
    let dns = [Transport::Tcp, Transport::Udp].map(|transport| ListeningPort {
        transport,
        port: 15053,
        address: ListenAddress::Loopback,
    });
    everywhere.into_iter().chain(transparent).chain(dns).collect()
}

fn app_services() -> Vec<ListeningPort> {
    let everywhere = |transport, port| ListeningPort { transport, port, address: ListenAddress::Any };
    let tcp = [22, 53, 4000, 5000, 8080, 9000].map(|port| everywhere(Transport::Tcp, port));
    let udp = [53, 8080].map(|port| everywhere(Transport::Udp, port));
    tcp.into_iter().chain(udp).collect()
}

/// A service on every port of `name` that a flow connects to.
fn services_of(flows: &[Flow], name: &str) -> Vec<ListeningPort> {
    let mut services: Vec<ListeningPort> = Vec::new();
    let is_to_name =
        |flow: &&Flow| matches!(&flow.without_rules, ConnectionOutcome::Replied(answer) if answer.by == name);
    for flow in flows.iter().filter(is_to_name) {
        let service =
            ListeningPort { transport: flow.transport, port: flow.to.port(), address: ListenAddress::Any };
        if !services.contains(&service) {
            services.push(service);
        }
    }
    services
}

/// A FIN without a connection.
#[derive(Debug, Clone, Copy)]
pub struct Stray {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
}

const TCP: u8 = 6;
const RESET: u8 = 0x04;
/// FIN and ACK: invalid to conntrack as a first segment (net/netfilter/nf_conntrack_proto_tcp.c,
/// `tcp_conntracks`, column sNO, v6.18), and every TCP replies with a reset.
const FIN_ACK: u8 = 0x11;

impl Stray {
    /// Sends it from the calling thread's network namespace and reports whether a reset comes back within that time.
    ///
    /// # Errors
    /// When the process may not use raw sockets.
    pub fn is_reset(&self, within: Duration) -> nix::Result<bool> {
        let deadline = Instant::now() + within;
        let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp)?;
        sendto(raw.as_raw_fd(), &self.bytes(), &SockaddrIn::from(self.to), MsgFlags::empty())?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(raw.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::EINTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(errno),
            }
            let mut packet = [0; 1500];
            let length = recv(raw.as_raw_fd(), &mut packet, MsgFlags::empty())?;
            if packet.get(..length).is_some_and(|packet| self.resets(packet)) {
                return Ok(true);
            }
        }
    }

    /// The segment without its IP header, which the kernel writes.
    fn bytes(&self) -> [u8; 20] {
        let [s0, s1] = self.from.port().to_be_bytes();
        let [d0, d1] = self.to.port().to_be_bytes();
        let mut segment = [s0, s1, d0, d1, 0, 0, 0, 1, 0, 0, 0, 1, 5 << 4, FIN_ACK, 16, 0, 0, 0, 0, 0];
        let pseudo = [self.from.ip().octets(), self.to.ip().octets(), [0, TCP, 0, 20]].concat();
        let [c0, c1] = checksum(&[pseudo.as_slice(), &segment].concat()).to_be_bytes();
        segment[16] = c0;
        segment[17] = c1;
        segment
    }

    /// Reports whether this packet, with its IP header, is the reset.
    fn resets(&self, packet: &[u8]) -> bool {
        let header = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
        let Some(segment) = packet.get(header..header + 20) else { return false };
        let ports = [self.to.port().to_be_bytes(), self.from.port().to_be_bytes()].concat();
        segment.starts_with(&ports) && segment.get(13).is_some_and(|flags| flags & RESET != 0)
    }
}

/// The internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}
