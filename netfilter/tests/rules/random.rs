//! Random policies, rules and packets from few values, so that packets often match rules.

use gybe_netfilter::model::packet::{Connection, ConnectionPhase, Direction, Owner, Packet};
use gybe_netfilter::model::policy::{
    CidrSet, Destinations, Dns, Families, Groups, Inbound, InterfaceName, InvalidPackets, LoopbackCidr,
    MaskedMark, Mode, Outbound, Owners, PortRange, PortSet, RedirectPolicy,
};
use gybe_netfilter::model::ruleset::{Family, Is, Match, Networks, Transport};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// A pseudorandom sequence, the same in every run (xorshift64).
pub(crate) struct Random(u64);

const PORTS: [u16; 9] = [0, 53, 80, 443, 8080, 15008, 15020, 15053, 65535];
pub(crate) const V4: [&str; 6] =
    ["127.0.0.1", "127.0.0.6", "127.1.2.3", "10.1.2.3", "10.244.0.10", "20.1.2.3"];
pub(crate) const V6: [&str; 5] = ["::1", "::6", "fd01::3", "fd00:10::10", "fd02::3"];
const NETS: [&str; 10] = [
    "10.0.0.0/8",
    "10.1.0.0/16",
    "20.1.2.3/32",
    "127.0.0.1/32",
    "127.0.0.0/8",
    "0.0.0.0/0",
    "fd01::/16",
    "::1/128",
    "fd00::/8",
    "::/0",
];
const IDS: [u32; 5] = [0, 3, 1000, 1337, 4401];
pub(crate) const INTERFACES: [&str; 4] = ["lo", "eth0", "eth1", "net1"];

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn some<T: Copy>(&mut self, of: &[T], most: usize) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| self.one(of)).collect()
    }

    fn ports(&mut self) -> PortSet {
        let firsts = self.some(&PORTS, 20);
        firsts
            .into_iter()
            .filter_map(|p| PortRange::new(p, p.saturating_add(u16::try_from(self.below(3)).ok()?)))
            .collect()
    }

    fn cidrs(&mut self, most: usize) -> CidrSet {
        self.some(&NETS, most).into_iter().map(|net| net.parse::<IpNet>().unwrap()).collect()
    }

    fn interfaces(&mut self, most: usize) -> BTreeSet<InterfaceName> {
        self.some(&INTERFACES, most).into_iter().map(|name| InterfaceName::parse(name).unwrap()).collect()
    }

    fn ids(&mut self, most: usize) -> BTreeSet<u32> {
        self.some(&IDS, most).into_iter().collect()
    }

    fn is(&mut self) -> Is {
        self.one(&[Is::In, Is::NotIn])
    }

    fn networks(&mut self) -> Networks {
        let family = self.one(&[Family::V4, Family::V6]);
        let cidrs = loop {
            let cidrs = self.cidrs(4);
            let none = match family {
                Family::V4 => cidrs.v4().is_empty(),
                Family::V6 => cidrs.v6().is_empty(),
            };
            if !none {
                break cidrs;
            }
        };
        match family {
            Family::V4 => Networks::V4(cidrs.v4().to_vec()),
            Family::V6 => Networks::V6(cidrs.v6().to_vec()),
        }
    }

    /// Returns any match that is valid in an output chain; ports follow their protocol.
    pub(crate) fn condition(&mut self) -> Match {
        match self.below(10) {
            0 => Match::Source(self.is(), self.networks()),
            1 | 2 => Match::Destination(self.is(), self.networks()),
            3 => Match::OutInterface(self.interfaces(3)),
            4 => Match::OwnerUid(self.ids(3)),
            5 => Match::OwnerGid(self.ids(3)),
            6 => Match::Mark(self.is(), self.one(&[0.into(), 1337.into(), MaskedMark::new(0x539, 0xfff)])),
            7 => Match::Protocol(self.one(&[Transport::Tcp, Transport::Udp])),
            8 => Match::SourcePort(self.is(), self.ports()),
            _ => Match::DestinationPort(self.is(), self.ports()),
        }
    }

    pub(crate) fn packet(&mut self) -> Packet {
        let v4 = self.below(2) == 0;
        let address = |random: &mut Self| {
            let text = if v4 { random.one(&V4) } else { random.one(&V6) };
            SocketAddr::new(text.parse().unwrap(), random.one(&PORTS))
        };
        let (source, destination) = (address(self), address(self));
        let by = InterfaceName::parse(self.one(&INTERFACES)).unwrap();
        let leaves = self.below(3) > 0;
        let direction = if leaves { Direction::Leaves { by } } else { Direction::Arrives { by } };
        let protocol = self.one(&[Transport::Tcp, Transport::Udp]);
        let phase = self.one(&[
            ConnectionPhase::New,
            ConnectionPhase::New,
            ConnectionPhase::Established,
            ConnectionPhase::Invalid,
        ]);
        let mut packet = Packet::first(direction, protocol, source, destination);
        packet.connection = Connection { phase, mark: self.one(&[0, 1337]) };
        packet.mark = self.one(&[0, 0, 1337, 1338]);
        if leaves && self.below(5) > 0 {
            packet.owner = Some(Owner { uid: self.one(&IDS), gid: self.one(&IDS) });
        }
        packet
    }

    pub(crate) fn policy(&mut self) -> RedirectPolicy {
        let port = |number: u16| number.try_into().unwrap();
        RedirectPolicy {
            mode: self.one(&[Mode::Redirect, Mode::Redirect, Mode::Tproxy { mark: 1337, route_table: 133 }]),
            outbound_port: port(15001),
            inbound_port: port(15006),
            tunnel_port: port(15008),
            proxy_uids: Owners::new(1337, self.ids(2)),
            proxy_gids: Owners::new(1337, self.ids(2)),
            inbound: if self.below(3) == 0 {
                Inbound::Only(self.ports())
            } else {
                Inbound::AllBut(self.ports())
            },
            outbound: Outbound {
                excluded_ports: self.ports(),
                excluded_to: self.cidrs(2),
                included_ports: self.ports(),
                included_to: if self.below(2) == 0 {
                    Destinations::All
                } else {
                    Destinations::Only(self.cidrs(4))
                },
                groups: if self.below(3) == 0 {
                    Groups::Only(self.ids(2))
                } else {
                    Groups::AllBut(self.ids(2))
                },
            },
            excluded_interfaces: self.interfaces(1),
            virtual_interfaces: self.interfaces(1),
            dns: self.dns(),
            invalid: self.one(&[InvalidPackets::Pass, InvalidPackets::Drop]),
            loopback: self.one(&["127.0.0.1/32", "127.0.0.1/8"]).parse::<LoopbackCidr>().unwrap(),
            families: self.one(&[Families::V4Only, Families::V4AndV6]),
        }
    }

    fn dns(&mut self) -> Dns {
        let servers = self.cidrs(2);
        match self.below(3) {
            0 => Dns::Off,
            1 if !servers.is_empty() => Dns::Servers(servers),
            _ => Dns::All,
        }
    }
}
