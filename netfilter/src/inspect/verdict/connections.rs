//! The connections that are tried: one of every kind that the desired rules or the rules of the namespace distinguish.

use super::values::{Property, Values, number};
use crate::inspect::live::rules::NamespaceRules;
use crate::inspect::walk::{Budget, Listeners};
use crate::model::packet::{Direction, Owner, Packet};
use crate::model::policy::InterfaceName;
use crate::model::ruleset::{Family, Transport};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// More combinations of values are not tried.
pub(super) const MOST: usize = 300_000;

/// The port of a client, where no rule names one.
pub(super) const CLIENT_PORT: u16 = 40_000;
/// The port of a server, where no rule names one.
const SERVER_PORT: u16 = 9_999;

/// Addresses for documentation (RFC 5737, RFC 3849).
fn elsewhere(family: Family) -> [IpAddr; 2] {
    let v6 = |last| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
    match family {
        Family::V4 => [Ipv4Addr::new(198, 51, 100, 1).into(), Ipv4Addr::new(192, 0, 2, 1).into()],
        Family::V6 => [v6(1), v6(2)],
    }
}

/// Calls `try_it` with the first packet of each connection until it returns false; `None` when there are too many.
pub(super) fn each(
    ns: &NamespaceRules,
    values: &Values,
    listeners: Listeners,
    budget: &Budget,
    mut try_it: impl FnMut(Packet) -> bool,
) -> Option<()> {
    let plans =
        Family::ALL.into_iter().map(|family| ConnectionPlan::of(ns, values, listeners, budget, family));
    let plans = plans.collect::<Option<Vec<ConnectionPlan>>>()?;
    let combinations = plans.iter().map(|plan| plan.outbound_size().saturating_add(plan.inbound_size()));
    if combinations.fold(0_usize, usize::saturating_add) > MOST {
        return None;
    }
    for plan in &plans {
        if !(plan.outbound(ns, &mut try_it) && plan.inbound(ns, &mut try_it)) {
            break;
        }
    }
    Some(())
}

/// The first packet of a connection of the application to an address outside.
pub(super) fn outbound_to(destination: IpAddr, listeners: Listeners) -> Packet {
    let [source, _] = elsewhere(Family::of(destination));
    let eth0 = InterfaceName::parse("eth0").unwrap_or_else(|_| InterfaceName::loopback());
    let ends = (SocketAddr::new(source, CLIENT_PORT), SocketAddr::new(destination, SERVER_PORT));
    Packet::first(Direction::Leaves { by: eth0 }, Transport::Tcp, ends.0, ends.1)
        .owned_by(listeners.application)
}

/// The values that are combined for one IP version.
struct ConnectionPlan {
    family: Family,
    destinations: Vec<IpAddr>,
    sources: Vec<IpAddr>,
    ports: Vec<u16>,
    client_ports: Vec<u16>,
    owners: Vec<Owner>,
    marks: Vec<u32>,
    interfaces: Vec<InterfaceName>,
    /// The mark of ztunnel's sockets; 0 for a sidecar.
    proxy_mark: u32,
}

impl ConnectionPlan {
    fn of(
        ns: &NamespaceRules,
        values: &Values,
        listeners: Listeners,
        budget: &Budget,
        family: Family,
    ) -> Option<Self> {
        let port = |value: u128| u16::try_from(value).unwrap_or_default();
        let address = |value: u128| match (family, u32::try_from(value)) {
            (Family::V4, Ok(value)) => IpAddr::V4(Ipv4Addr::from_bits(value)),
            _ => IpAddr::V6(Ipv6Addr::from_bits(value)),
        };
        // Routing tells these apart: loopback, the pod's own addresses, all others.
        let kind = |value: u128| match address(value) {
            address if address.is_loopback() => 1,
            address if ns.is_local(address) => 2,
            _ => 0,
        };
        let own = ns.interfaces.iter().flat_map(|interface| interface.addresses.iter().copied());
        let own = own.filter(|address| Family::of(*address) == family);
        let [elsewhere, another] = elsewhere(family);
        let first: Vec<u128> =
            [elsewhere, family.loopback(), another].into_iter().chain(own).map(number).collect();
        let [source, destination] = match family {
            Family::V4 => [Property::SourceV4, Property::DestinationV4],
            Family::V6 => [Property::SourceV6, Property::DestinationV6],
        };
        let of = |property| -> Option<Vec<IpAddr>> {
            Some(values.of(property, &first, kind, budget)?.into_iter().map(address).collect())
        };
        let ports = |property, first: u16| -> Option<Vec<u16>> {
            Some(values.of(property, &[first.into()], |_| 0, budget)?.into_iter().map(port).collect())
        };
        let id = |value: u128| u32::try_from(value).unwrap_or_default();
        let ids = |property, first: [u32; 2]| values.of(property, &first.map(u128::from), |_| 0, budget);
        let (proxy, app) = (listeners.proxy, listeners.application);
        let gids = ids(Property::Gid, [app.gid, proxy.gid])?;
        let owner =
            |uid: u128| gids.iter().map(move |gid| Owner { uid: id(uid), gid: id(*gid) }).collect::<Vec<_>>();
        let names = ns.interfaces.iter().map(|interface| interface.name.clone());
        let names: std::collections::BTreeSet<String> =
            names.chain(values.interfaces.iter().cloned()).chain(["eth0".to_owned()]).collect();
        let interfaces = names.iter().filter(|name| *name != "lo");
        Some(Self {
            family,
            destinations: of(destination)?,
            sources: of(source)?,
            ports: ports(Property::DestinationPort, SERVER_PORT)?,
            client_ports: ports(Property::SourcePort, CLIENT_PORT)?,
            owners: ids(Property::Uid, [app.uid, proxy.uid])?.into_iter().flat_map(owner).collect(),
            marks: values.of(Property::Mark, &[0], |_| 0, budget)?.into_iter().map(id).collect(),
            interfaces: interfaces.filter_map(|name| InterfaceName::parse(name).ok()).collect(),
            proxy_mark: listeners.proxy_mark,
        })
    }

    fn outbound_size(&self) -> usize {
        self.inbound_size().saturating_mul(self.owners.len()).saturating_mul(self.marks.len())
    }

    fn inbound_size(&self) -> usize {
        let addresses = [self.destinations.len(), self.sources.len(), self.interfaces.len()];
        let ports = [self.ports.len(), self.client_ports.len(), Transport::ALL.len()];
        [addresses, ports].into_iter().flatten().fold(1, usize::saturating_mul)
    }

    /// Tries the connections that the pod's own sockets make.
    fn outbound(&self, ns: &NamespaceRules, try_it: &mut impl FnMut(Packet) -> bool) -> bool {
        for destination in &self.destinations {
            let is_inside = ns.is_local(*destination) || destination.is_loopback();
            let loopback = [InterfaceName::loopback()];
            let interfaces = if is_inside { &loopback[..] } else { &self.interfaces };
            for by in interfaces {
                let direction = Direction::Leaves { by: by.clone() };
                for source in self.sources_to(ns, *destination, by) {
                    for packet in self.packets(&direction, source, *destination) {
                        for owner in &self.owners {
                            // Only ztunnel connects to the application from a client's address.
                            let is_own = |mark: &&u32| ns.is_local(source) || **mark == self.proxy_mark;
                            for mark in self.marks.iter().filter(is_own) {
                                if !try_it(packet.clone().owned_by(*owner).marked(*mark)) {
                                    return false;
                                }
                            }
                        }
                    }
                }
            }
        }
        true
    }

    /// The address that routing chooses, the pod's own addresses that rules name, and, for ztunnel's connections to the
    /// application, those of clients.
    fn sources_to(&self, ns: &NamespaceRules, to: IpAddr, by: &InterfaceName) -> Vec<IpAddr> {
        let chosen = match ns.is_local(to) {
            true => Some(to),
            false => ns.primary(by.as_str(), to).or_else(|| {
                let own = ns.interfaces.iter().filter(|interface| interface.name != "lo");
                let mut own = own.flat_map(|interface| interface.addresses.iter().copied());
                own.find(|address| Family::of(*address) == self.family)
            }),
        };
        let named = self.sources.iter().copied().filter(|source| {
            let is_clients = self.proxy_mark != 0 && ns.is_local(to) && !to.is_loopback();
            // Packets that leave the pod have no loopback source.
            match ns.is_local(*source) {
                true => ns.is_local(to) || !source.is_loopback(),
                false => is_clients && !source.is_loopback(),
            }
        });
        let mut sources: Vec<IpAddr> = chosen.into_iter().chain(named).collect();
        sources.dedup();
        sources
    }

    /// Tries the connections that arrive.
    fn inbound(&self, ns: &NamespaceRules, try_it: &mut impl FnMut(Packet) -> bool) -> bool {
        let [elsewhere, _] = elsewhere(self.family);
        for by in self.interfaces.iter().filter(|by| ns.is_reached_by(by.as_str(), self.family)) {
            let own = ns.primary(by.as_str(), elsewhere);
            let to = self.destinations.iter().copied().filter(|to| !to.is_loopback()).chain(own);
            let direction = Direction::Arrives { by: by.clone() };
            for destination in to {
                for source in self.sources.iter().filter(|source| !ns.is_local(**source)) {
                    if !self.packets(&direction, *source, destination).all(&mut *try_it) {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// The first packets between two addresses: of both protocols, with every pair of ports.
    fn packets(&self, direction: &Direction, from: IpAddr, to: IpAddr) -> impl Iterator<Item = Packet> {
        let from = move |port: &u16| SocketAddr::new(from, *port);
        let pairs = self.ports.iter().flat_map(move |port| {
            self.client_ports.iter().map(move |client| (from(client), SocketAddr::new(to, *port)))
        });
        Transport::ALL.into_iter().flat_map(move |transport| {
            pairs.clone().map(move |(from, to)| Packet::first(direction.clone(), transport, from, to))
        })
    }
}
