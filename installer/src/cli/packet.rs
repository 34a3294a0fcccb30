//! The arguments that describe the first packet of a connection.

use super::output::CommandError;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use gybe_netfilter::kernel::routes::{Link, RouteQuery};
use gybe_netfilter::model::packet::{Direction, Owner, Packet};
use gybe_netfilter::model::policy::InterfaceName;
use gybe_netfilter::model::ruleset::Transport;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::ParseIntError;

/// The direction of a connection from the pod's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DirectionArg {
    /// A client connects to the pod.
    In,
    /// A process in the pod connects to a peer, or to the pod itself.
    Out,
}

/// The first packet of the connection to trace.
#[derive(Debug, Args)]
pub(super) struct PacketArgs {
    /// in: a client connects to the pod; out: a process in the pod connects to a peer
    #[arg(value_name = "in|out", hide_possible_values = true)]
    direction: DirectionArg,
    /// The transport protocol
    #[arg(value_name = "tcp|udp", hide_possible_values = true, value_parser = transport_parser())]
    protocol: Transport,
    /// The destination: ADDRESS:PORT, or [ADDRESS]:PORT for IPv6; no name of a host
    #[arg(value_name = "ADDRESS:PORT", value_parser = parse_destination)]
    to: SocketAddr,
    /// The source: ADDRESS or ADDRESS:PORT [default: an address of the documentation range]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_source)]
    from: Option<SocketAddr>,
    /// User id of the process that connects (out only) [default: 1000]
    #[arg(long, value_name = "ID")]
    uid: Option<u32>,
    /// Group id of that process (out only) [default: the user id]
    #[arg(long, value_name = "ID")]
    gid: Option<u32>,
    /// The interface on which the packet arrives or leaves [default: the one that the kernel's routes choose in --netns; else eth0, and lo for the pod's own addresses]
    #[arg(long, value_name = "NAME", value_parser = InterfaceName::parse)]
    iface: Option<InterfaceName>,
    /// An address of the pod; connections to it stay inside the pod [repeatable; default: those of --netns]
    #[arg(long, value_name = "ADDRESS")]
    pod_ip: Vec<IpAddr>,
    /// The interface that the process binds its socket to (SO_BINDTODEVICE; out only)
    #[arg(long, value_name = "NAME", value_parser = InterfaceName::parse)]
    bind_to: Option<InterfaceName>,
    /// The packet mark that the process sets (SO_MARK)
    #[arg(long, value_name = "MARK", default_value_t = 0, value_parser = parse_mark)]
    mark: u32,
}

/// Parses tcp or udp; the error of clap lists both.
fn transport_parser() -> impl TypedValueParser<Value = Transport> {
    let named = |name: String| Transport::ALL.into_iter().find(|transport| transport.name() == name);
    PossibleValuesParser::new(Transport::ALL.map(Transport::name))
        .try_map(move |name| named(name).ok_or("unknown transport protocol"))
}

/// A port of the ephemeral range. Only the DNS rules test a client's port.
const DEFAULT_SOURCE_PORT: u16 = 40_000;

/// The interface by which a packet leaves, and its source.
pub(super) struct ChosenRoute {
    pub(super) interface: InterfaceName,
    pub(super) source: Option<IpAddr>,
}

impl PacketArgs {
    /// Returns the packet. `addresses` are the namespace's; empty without a namespace. `route`: the kernel's.
    pub(super) fn packet(
        &self,
        addresses: &[IpAddr],
        route: Option<&ChosenRoute>,
    ) -> Result<Packet, CommandError> {
        let has_owner = self.uid.is_some() || self.gid.is_some() || self.bind_to.is_some();
        if self.direction == DirectionArg::In && has_owner {
            return Err(CommandError::new("an inbound packet has no process of the pod as its owner")
                .with_hint("remove --uid, --gid and --bind-to, or trace `out`".to_owned()));
        }
        let from = self.packet_source(addresses, route);
        if from.is_ipv4() != self.to.is_ipv4() {
            return Err(CommandError::new(format!(
                "{from} and {} are addresses of different families",
                self.to
            )));
        }
        let direction = self.packet_direction(addresses, route);
        let packet = Packet::first(direction, self.protocol, from, self.to).marked(self.mark);
        Ok(match self.direction {
            DirectionArg::In => packet,
            DirectionArg::Out => Packet { is_bound: self.is_bound(), ..packet.owned_by(self.owner()) },
        })
    }

    /// Returns the addresses in --pod-ip.
    pub(super) fn pod_addresses(&self) -> &[IpAddr] {
        &self.pod_ip
    }

    /// The kernel binds a socket to the interface of a link-local destination (`tcp_v6_connect`, net/ipv6/tcp_ipv6.c,
    /// v6.18).
    fn is_bound(&self) -> bool {
        let is_link_local = matches!(self.to.ip(), IpAddr::V6(to) if to.is_unicast_link_local());
        self.bind_to.is_some() || is_link_local
    }

    /// Returns the query for the route of a connection that leaves, in a namespace with these interfaces; none where the
    /// arguments determine the interface.
    ///
    /// # Errors
    /// When the namespace does not have the interface in --bind-to.
    pub(super) fn route_query(&self, links: &[Link]) -> Result<Option<RouteQuery>, CommandError> {
        if self.direction == DirectionArg::In {
            return Ok(None);
        }
        let index = |name: &InterfaceName| {
            links.iter().find(|link| link.name == name.as_str()).map(|link| link.index)
        };
        let bound_to = match &self.bind_to {
            Some(name) => Some(index(name).ok_or_else(|| unknown_interface(name, links))?),
            None if self.is_bound() => index(&eth0()),
            None => None,
        };
        let is_determined = self.iface.is_some() || self.pod_ip.contains(&self.to.ip());
        Ok((!is_determined).then(|| RouteQuery {
            destination: self.to.ip(),
            source: self.from.map(|from| from.ip()),
            mark: self.mark,
            uid: self.owner().uid,
            bound_to,
        }))
    }

    fn packet_direction(&self, addresses: &[IpAddr], route: Option<&ChosenRoute>) -> Direction {
        let routed = || route.map(|route| route.interface.clone());
        let interface = self.iface.clone().or_else(|| self.bind_to.clone()).or_else(routed);
        match self.direction {
            DirectionArg::In => Direction::Arrives { by: interface.unwrap_or_else(eth0) },
            DirectionArg::Out if self.stays_inside(addresses) => {
                Direction::Leaves { by: interface.unwrap_or_else(InterfaceName::loopback) }
            }
            DirectionArg::Out => Direction::Leaves { by: interface.unwrap_or_else(eth0) },
        }
    }

    /// The kernel routes packets to its own addresses through `lo`.
    fn stays_inside(&self, addresses: &[IpAddr]) -> bool {
        let to = self.to.ip();
        to.is_loopback() || self.pod_ip.contains(&to) || addresses.contains(&to)
    }

    fn packet_source(&self, addresses: &[IpAddr], route: Option<&ChosenRoute>) -> SocketAddr {
        let to = self.to.ip();
        let is_usable = |own: &IpAddr| own.is_ipv4() == to.is_ipv4() && !own.is_loopback();
        let own = || match self.direction {
            DirectionArg::In => None,
            DirectionArg::Out if self.stays_inside(addresses) => Some(to),
            DirectionArg::Out => self.pod_ip.iter().chain(addresses).copied().find(is_usable),
        };
        // Addresses for documentation (RFC 5737, RFC 3849), which no list of a policy names.
        let documentation = || match to {
            IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
            IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        };
        let address = route.and_then(|route| route.source).or_else(own).unwrap_or_else(documentation);
        self.from.unwrap_or(SocketAddr::new(address, DEFAULT_SOURCE_PORT))
    }

    fn owner(&self) -> Owner {
        let uid = self.uid.unwrap_or(1000);
        Owner { uid, gid: self.gid.unwrap_or(uid) }
    }
}

fn unknown_interface(name: &InterfaceName, links: &[Link]) -> CommandError {
    let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
    let what = format!("the network namespace has no interface {}, which --bind-to names", name.as_str());
    CommandError::new(what).with_hint(format!("it has {}", names.join(", ")))
}

fn eth0() -> InterfaceName {
    InterfaceName::parse("eth0").unwrap_or_else(|_| InterfaceName::loopback())
}

/// Parses a mark as `ip rule` and iptables print it, or in decimal.
fn parse_mark(text: &str) -> Result<u32, ParseIntError> {
    text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u32::from_str_radix(digits, 16))
}

fn parse_source(text: &str) -> Result<SocketAddr, String> {
    let bare = || text.parse::<IpAddr>().map(|address| SocketAddr::new(address, DEFAULT_SOURCE_PORT));
    let source = text.parse().or_else(|_| bare()).map_err(|_| "neither ADDRESS nor ADDRESS:PORT")?;
    Ok(of_the_packet(source))
}

/// The address in the packets of a connection to this one: the kernel sends those to 0.0.0.0 and `::` to the loopback
/// address (`ip_route_connect`, include/net/route.h; `tcp_v6_connect`, net/ipv6/tcp_ipv6.c, v6.18).
fn parse_destination(text: &str) -> Result<SocketAddr, String> {
    let to = of_the_packet(text.parse().map_err(|_| not_a_destination(text))?);
    let loopback = match to {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    Ok(if to.ip().is_unspecified() { SocketAddr::new(loopback, to.port()) } else { to })
}

/// Names are not resolved: rules compare addresses, and the pod's answer may differ from this host's.
fn not_a_destination(text: &str) -> String {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, "PORT"));
    let address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    match (address(host), port.parse(), address(text)) {
        (Some(host), Ok(port), _) => {
            format!("write {}: IPv6 addresses alone have brackets", SocketAddr::new(host, port))
        }
        (_, _, Some(IpAddr::V4(address))) => format!("add the port: {address}:PORT"),
        (_, _, Some(IpAddr::V6(address))) => format!("add the port: [{address}]:PORT"),
        (Some(_), Err(_), None) => format!("{port} is no port"),
        (None, ..) => format!(
            "{host} is no address, and names are not resolved: the pod's answer may be another one than this host's; \
             in the pod, getent ahosts {host} prints its addresses; give one as ADDRESS:{port}"
        ),
    }
}

/// A process that connects to `::ffff:10.1.2.3` sends IPv4 packets.
fn of_the_packet(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the packet as one line of text.
pub(super) fn sentence(packet: &Packet) -> String {
    let (direction, by) = direction_and_interface(packet);
    let protocol = packet.protocol.name();
    let owner = packet.owner.map_or(String::new(), |o| format!(", user {} group {}", o.uid, o.gid));
    let mark = if packet.mark == 0 { String::new() } else { format!(", mark {}", packet.mark) };
    format!("{direction} {protocol} {} -> {} by {by}{owner}{mark}", packet.source, packet.destination)
}

/// Returns the packet as JSON.
pub(super) fn as_json(packet: &Packet) -> Value {
    let (direction, by) = direction_and_interface(packet);
    json!({
        "direction": direction,
        "protocol": packet.protocol.name(),
        "source": packet.source,
        "destination": packet.destination,
        "interface": by,
        "uid": packet.owner.map(|owner| owner.uid),
        "gid": packet.owner.map(|owner| owner.gid),
        "mark": packet.mark,
    })
}

fn direction_and_interface(packet: &Packet) -> (&'static str, &str) {
    match &packet.direction {
        Direction::Arrives { by } => ("in", by.as_str()),
        Direction::Leaves { by } => ("out", by.as_str()),
    }
}
