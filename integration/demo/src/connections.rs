//! The connections of the scenario, with the expected listener of each without and with the redirect. The
//! expectations are written by hand and not derived from the rules.

use super::scenario::{APP, OUTSIDER, POD, PROXY};
use crate::testnet::client::{Client, SourceOptions};
use crate::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::inspect::live::Outcome;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::istio::{PASSTHROUGH_V4, PASSTHROUGH_V6};
use gybe_netfilter::model::ruleset::{Family, Transport};
use nix::errno::Errno;
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

/// An effect of a redirect on a connection that the rules alone do not show. The caller names it for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideEffect {
    /// None: a connection that the rules leave alone ends as it does without them.
    None,
    /// The redirect adds the connection's source address, `::6`.
    AddsSource,
    /// The source address is not the pod's, so replies are lost unless the redirect's marks and routes return
    /// them.
    MayLoseReplies,
    /// Replies are lost: they go to an address that is not the pod's, or match rules for the proxy.
    LosesReplies,
}

/// A connection's destination and its outcome without rules.
#[derive(Debug, Clone, Copy)]
pub struct Control<'a> {
    pub to: SocketAddr,
    pub outcome: &'a ConnectionOutcome,
}

/// Reports whether `outcome` follows from the prediction for the same connection without rules.
pub fn follows(
    predicted: Outcome,
    control: Control<'_>,
    side_effect: SideEffect,
    outcome: &ConnectionOutcome,
) -> bool {
    let replies_lost = match side_effect {
        SideEffect::LosesReplies => return *outcome == ConnectionOutcome::Timeout,
        SideEffect::MayLoseReplies => {
            *control.outcome == ConnectionOutcome::Timeout && *outcome == ConnectionOutcome::Timeout
        }
        SideEffect::None | SideEffect::AddsSource => false,
    };
    replies_lost
        || match predicted {
            Outcome::Redirected(port) | Outcome::Intercepted(port) => {
                matches!(outcome, ConnectionOutcome::Replied(reply) if reply.by == format!("envoy:{port}")
                    && reply.original.is_none_or(|original| original == control.to))
            }
            Outcome::Untouched => is_untouched(control, side_effect, outcome),
            Outcome::Dropped => *outcome == ConnectionOutcome::Timeout,
            Outcome::Translated(_) | Outcome::RepliesLost | Outcome::Unknown => false,
        }
}

/// The other members of a reply depend on the client and on conntrack, so they may differ.
fn is_untouched(control: Control<'_>, side_effect: SideEffect, outcome: &ConnectionOutcome) -> bool {
    let by_the_app = |by: &str| by == format!("app:{}", control.to.port());
    match (control.outcome, outcome) {
        (ConnectionOutcome::Replied(before), ConnectionOutcome::Replied(after)) => before.by == after.by,
        (ConnectionOutcome::Failed(Errno::EADDRNOTAVAIL), ConnectionOutcome::Replied(after))
            if side_effect == SideEffect::AddsSource =>
        {
            by_the_app(&after.by)
        }
        (ConnectionOutcome::Timeout, ConnectionOutcome::Replied(after))
            if side_effect == SideEffect::MayLoseReplies =>
        {
            by_the_app(&after.by)
        }
        (before, after) => before == after && side_effect != SideEffect::AddsSource,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Dropped, Intercepted, Redirected, Untouched};

    const APP: &str = "app:80 src=10.0.0.2";
    const PROXY: &str = "envoy:15001 orig=10.0.0.1:80 src=10.0.0.2";
    const NO_ADDRESS: &str = "ERR [Errno 99] Cannot assign requested address";

    #[test]
    fn an_outcome_must_follow_from_the_prediction_and_a_timeout_needs_a_reason() {
        let proxy = 15001.try_into().unwrap();
        for (predicted, side_effect, before, after, expected) in [
            (Redirected(proxy), SideEffect::None, APP, PROXY, true),
            (Intercepted(proxy), SideEffect::None, APP, PROXY, true),
            (Redirected(proxy), SideEffect::None, APP, APP, false),
            (Redirected(proxy), SideEffect::None, APP, "envoy:15006 src=10.0.0.2", false),
            (Redirected(proxy), SideEffect::None, APP, "envoy:15001 orig=10.0.0.9:80 src=10.0.0.2", false),
            (Redirected(proxy), SideEffect::None, APP, "timeout", false),
            (Redirected(proxy), SideEffect::None, "timeout", "timeout", false),
            (Redirected(proxy), SideEffect::None, APP, "refused", false),
            (Redirected(proxy), SideEffect::MayLoseReplies, "timeout", "timeout", true),
            (Redirected(proxy), SideEffect::MayLoseReplies, APP, "timeout", false),
            (Untouched, SideEffect::None, APP, APP, true),
            (Untouched, SideEffect::None, APP, "app:80 orig=10.0.0.1:80 src=10.0.0.3", true),
            (Untouched, SideEffect::None, APP, PROXY, false),
            (Untouched, SideEffect::None, APP, "timeout", false),
            (Untouched, SideEffect::None, "timeout", "timeout", true),
            (Untouched, SideEffect::None, "timeout", APP, false),
            (Untouched, SideEffect::None, NO_ADDRESS, NO_ADDRESS, true),
            (Untouched, SideEffect::None, NO_ADDRESS, APP, false),
            (Untouched, SideEffect::AddsSource, NO_ADDRESS, APP, true),
            (Untouched, SideEffect::AddsSource, NO_ADDRESS, NO_ADDRESS, false),
            (Untouched, SideEffect::MayLoseReplies, "timeout", APP, true),
            (Untouched, SideEffect::MayLoseReplies, "timeout", PROXY, false),
            (Untouched, SideEffect::LosesReplies, APP, "timeout", true),
            (Untouched, SideEffect::LosesReplies, APP, APP, false),
            (Dropped, SideEffect::None, APP, "timeout", true),
            (Dropped, SideEffect::None, APP, APP, false),
        ] {
            let (control, outcome) = (before.parse().unwrap(), after.parse().unwrap());
            let control = Control { to: "10.0.0.1:80".parse().unwrap(), outcome: &control };
            let found = follows(predicted, control, side_effect, &outcome);
            assert_eq!(found, expected, "{predicted:?} {side_effect:?}: {before}, then {after}");
        }
    }
}
