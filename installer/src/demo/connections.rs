//! The connections a pod makes, and what must become of each with and without its redirect. Written
//! by hand: what the rules say of them is not asked here.

use super::fixture::{APP, OUTSIDER, POD, PROXY};
use crate::testnet::client::{Client, SourceOptions};
use gybe_netfilter::compile::{PASSTHROUGH_V4, PASSTHROUGH_V6};
use gybe_netfilter::ruleset::Family;
use gybe_netfilter::trace::{Owner, Transport};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Who starts a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// Somebody in the pod.
    Pod,
    /// Somebody outside.
    World,
}

/// One connection, in one family.
#[derive(Debug, Clone)]
pub struct Connection {
    /// What it is, in words.
    pub name: &'static str,
    /// Where it starts.
    pub from: From,
    /// How it is made.
    pub call: Client,
    /// Who answers without Gybe; `None` when it cannot even be started.
    pub before: Option<&'static str>,
    /// Who must answer with Gybe.
    pub after: &'static str,
}

impl Connection {
    /// Its family.
    pub fn family(&self) -> Family {
        if self.call.to.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

/// Known as the proxy by its user alone.
const PROXY_USER: Owner = Owner { uid: 1337, gid: 1000 };
/// Known as the proxy by its group alone.
const PROXY_GROUP: Owner = Owner { uid: 2000, gid: 1337 };

/// Where a connection goes: the addresses of both families are in one place, below.
#[derive(Clone, Copy)]
enum To {
    World,
    Localhost,
    OwnAddress,
}

/// Where it says it comes from.
#[derive(Clone, Copy)]
enum Source {
    /// Where the kernel thinks best.
    Any,
    /// From the address by which the proxy says that it hands on what it received.
    Passthrough,
}

/// All of them, IPv4 first.
pub fn all() -> Vec<Connection> {
    [Family::V4, Family::V6].into_iter().flat_map(|family| each().map(|about| about.within(family))).collect()
}

/// The ports the world must answer on for them.
pub fn world_ports() -> Vec<(Transport, u16)> {
    let mut ports = Vec::new();
    for about in each().iter().filter(|about| matches!(about.to, To::World)) {
        let port = (about.transport, about.port);
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports
}

/// One connection, whatever its family.
struct About {
    name: &'static str,
    from: From,
    owner: Owner,
    transport: Transport,
    source: Source,
    to: To,
    port: u16,
    before: &'static str,
    after: &'static str,
}

fn each() -> [About; 12] {
    let tcp = |name, owner, (to, port), [before, after]: [&'static str; 2]| About {
        name,
        from: From::Pod,
        owner,
        transport: Transport::Tcp,
        source: Source::Any,
        to,
        port,
        before,
        after,
    };
    let inbound = |name, port, answers| About {
        from: From::World,
        ..tcp(name, OUTSIDER, (To::OwnAddress, port), answers)
    };
    [
        tcp("app -> world", APP, (To::World, 80), ["world", "envoy:15001"]),
        tcp("app -> world, excluded port", APP, (To::World, 3306), ["world", "world"]),
        About {
            transport: Transport::Udp,
            ..tcp("app -> world, UDP", APP, (To::World, 53), ["world", "world"])
        },
        tcp("app -> itself, localhost", APP, (To::Localhost, 8080), ["app:8080", "app:8080"]),
        tcp("app -> itself, own address", APP, (To::OwnAddress, 8080), ["app:8080", "app:8080"]),
        tcp("proxy's user -> world", PROXY_USER, (To::World, 80), ["world", "world"]),
        tcp("proxy's group -> world", PROXY_GROUP, (To::World, 80), ["world", "world"]),
        tcp("proxy -> its own pod", PROXY, (To::OwnAddress, 8080), ["app:8080", "envoy:15006"]),
        About {
            source: Source::Passthrough,
            ..tcp("proxy -> app, passed on", PROXY, (To::OwnAddress, 8080), ["app:8080", "app:8080"])
        },
        inbound("world -> app", 8080, ["app:8080", "envoy:15006"]),
        inbound("world -> health port", 15021, ["envoy:15021", "envoy:15021"]),
        inbound("world -> tunnel port", 15008, ["envoy:15008", "envoy:15008"]),
    ]
}

impl About {
    fn within(self, family: Family) -> Connection {
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
        // 127.0.0.6 is everybody's; ::6 is nobody's until it is added to lo.
        let startable = source.is_none_or(|source| source.is_ipv4());
        Connection {
            name: self.name,
            from: self.from,
            call: Client {
                owner: self.owner,
                transport: self.transport,
                to: SocketAddr::new(to, self.port),
                disguise: SourceOptions { source, ..SourceOptions::default() },
            },
            before: startable.then_some(self.before),
            after: self.after,
        }
    }
}
