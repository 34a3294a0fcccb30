//! The connections of the scenario, with the expected listener of each without and with the redirect. The
//! expectations are written by hand and not derived from the rules.

use super::fixture::{APP, OUTSIDER, POD, PROXY};
use crate::testnet::client::{Client, SourceOptions};
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::istio::{PASSTHROUGH_V4, PASSTHROUGH_V6};
use gybe_netfilter::model::ruleset::{Family, Transport};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where the client of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientLocation {
    Pod,
    World,
}

/// One connection, in one family.
#[derive(Debug, Clone)]
pub struct Connection {
    pub name: &'static str,
    pub from: ClientLocation,
    pub client: Client,
    /// The listener that replies without Gybe; `None` if the connection cannot be started.
    pub before: Option<&'static str>,
    /// The listener that must reply with Gybe.
    pub after: &'static str,
}

impl Connection {
    pub fn family(&self) -> Family {
        if self.client.to.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

/// The proxy's user with another group.
const PROXY_USER: Owner = Owner { uid: 1337, gid: 1000 };
/// The proxy's group with another user.
const PROXY_GROUP: Owner = Owner { uid: 2000, gid: 1337 };

/// The destination of a connection; `ConnectionTemplate::in_family` has the addresses.
#[derive(Clone, Copy)]
enum To {
    World,
    Localhost,
    OwnAddress,
}

/// The source address of a connection.
#[derive(Clone, Copy)]
enum Source {
    /// The kernel's choice.
    Any,
    /// The address that the proxy binds to when it forwards what it received.
    Passthrough,
}

/// Returns all connections, IPv4 first.
pub fn all() -> Vec<Connection> {
    [Family::V4, Family::V6]
        .into_iter()
        .flat_map(|family| templates().map(|one| one.in_family(family)))
        .collect()
}

/// Returns the ports on which the world must listen.
pub fn world_ports() -> Vec<(Transport, u16)> {
    let mut ports = Vec::new();
    for one in templates().iter().filter(|one| matches!(one.to, To::World)) {
        let port = (one.transport, one.port);
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports
}

/// A connection without a family.
struct ConnectionTemplate {
    name: &'static str,
    from: ClientLocation,
    owner: Owner,
    transport: Transport,
    source: Source,
    to: To,
    port: u16,
    before: &'static str,
    after: &'static str,
}

fn templates() -> [ConnectionTemplate; 12] {
    let tcp = |name, owner, (to, port), [before, after]: [&'static str; 2]| ConnectionTemplate {
        name,
        from: ClientLocation::Pod,
        owner,
        transport: Transport::Tcp,
        source: Source::Any,
        to,
        port,
        before,
        after,
    };
    let inbound = |name, port, listeners| ConnectionTemplate {
        from: ClientLocation::World,
        ..tcp(name, OUTSIDER, (To::OwnAddress, port), listeners)
    };
    [
        tcp("app -> world", APP, (To::World, 80), ["world", "envoy:15001"]),
        tcp("app -> world, excluded port", APP, (To::World, 3306), ["world", "world"]),
        ConnectionTemplate {
            transport: Transport::Udp,
            ..tcp("app -> world, UDP", APP, (To::World, 53), ["world", "world"])
        },
        tcp("app -> itself, localhost", APP, (To::Localhost, 8080), ["app:8080", "app:8080"]),
        tcp("app -> itself, own address", APP, (To::OwnAddress, 8080), ["app:8080", "app:8080"]),
        tcp("proxy's user -> world", PROXY_USER, (To::World, 80), ["world", "world"]),
        tcp("proxy's group -> world", PROXY_GROUP, (To::World, 80), ["world", "world"]),
        tcp("proxy -> its own pod", PROXY, (To::OwnAddress, 8080), ["app:8080", "envoy:15006"]),
        ConnectionTemplate {
            source: Source::Passthrough,
            ..tcp("proxy -> app, passed on", PROXY, (To::OwnAddress, 8080), ["app:8080", "app:8080"])
        },
        inbound("world -> app", 8080, ["app:8080", "envoy:15006"]),
        inbound("world -> health port", 15021, ["envoy:15021", "envoy:15021"]),
        inbound("world -> tunnel port", 15008, ["envoy:15008", "envoy:15008"]),
    ]
}

impl ConnectionTemplate {
    fn in_family(self, family: Family) -> Connection {
        let pick = |v4: Ipv4Addr, v6: Ipv6Addr| match family {
            Family::V4 => IpAddr::V4(v4),
            Family::V6 => IpAddr::V6(v6),
        };
        let to = match self.to {
            To::World => pick(Ipv4Addr::new(10, 1, 2, 3), Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 3)),
            To::Localhost => pick(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
            To::OwnAddress => pick(POD.0, POD.1),
        };
        let source = match self.source {
            Source::Any => None,
            Source::Passthrough => Some(pick(PASSTHROUGH_V4, PASSTHROUGH_V6)),
        };
        // Every namespace has 127.0.0.6; ::6 is added to lo with the redirect.
        let can_start = source.is_none_or(|source| source.is_ipv4());
        Connection {
            name: self.name,
            from: self.from,
            client: Client {
                owner: self.owner,
                transport: self.transport,
                to: SocketAddr::new(to, self.port),
                source: SourceOptions { address: source, ..SourceOptions::default() },
            },
            before: can_start.then_some(self.before),
            after: self.after,
        }
    }
}
