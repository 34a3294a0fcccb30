//! Random connections in the recorded network.

use crate::predict::is_own;
use crate::vectors::{Flow, Location};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::istio::{PASSTHROUGH_V4, PASSTHROUGH_V6};
use gybe_netfilter::model::ruleset::Transport;
use proptest::prelude::{Just, Strategy};
use proptest::sample::select;
use std::net::{IpAddr, SocketAddr};

/// The destinations of connections from each namespace.
const DESTINATIONS: [(Location, &[&str]); 4] = [
    (
        Location::Pod,
        &[
            "10.1.2.3",
            "fd01::3",
            "10.244.0.10",
            "fd00:10::10",
            "127.0.0.1",
            "::1",
            "20.1.2.3",
            "fd02::3",
            "10.96.0.10",
            "fd00:96::10",
            "127.1.2.3",
            "8.8.8.8",
            "2001:4860::8888",
            "192.168.77.1",
            "fd00:77::1",
            "172.30.0.1",
            "fd00:30::1",
            "172.30.0.10",
            "fd00:30::10",
            "10.244.0.1",
        ],
    ),
    (
        Location::Peer,
        &["10.244.0.10", "fd00:10::10", "192.168.77.1", "fd00:77::1", "192.168.77.2", "fd00:77::2"],
    ),
    (
        Location::Vm,
        &[
            "10.1.2.3",
            "fd01::3",
            "20.1.2.3",
            "fd02::3",
            "10.96.0.10",
            "fd00:96::10",
            "192.168.77.1",
            "fd00:77::1",
            "10.244.0.10",
            "fd00:10::10",
            "172.30.0.10",
        ],
    ),
    (Location::Sec, &["172.30.0.10", "fd00:30::10"]),
];

const TCP_PORTS: [u16; 19] = [
    80, 8080, 53, 4000, 5000, 22, 9000, 1234, 15000, 15001, 15006, 15008, 15020, 15021, 15053, 15090, 8100,
    79, 65535,
];
const UDP_PORTS: [u16; 5] = [53, 8080, 1234, 15053, 80];

const OWNERS: [[u32; 2]; 11] = [
    [1000, 1000],
    [1337, 1337],
    [2000, 1337],
    [1337, 1000],
    [0, 1337],
    [2000, 4401],
    [3, 1000],
    [2000, 2],
    [0, 0],
    [1000, 1337],
    [65534, 65534],
];

/// Any connection, with its outcome without rules.
pub fn flows() -> impl Strategy<Value = Flow> {
    let from = select(vec![
        Location::Pod,
        Location::Pod,
        Location::Pod,
        Location::Pod,
        Location::Pod,
        Location::Peer,
        Location::Peer,
        Location::Vm,
        Location::Sec,
    ]);
    let port = select([TCP_PORTS.map(|port| (Transport::Tcp, port)).to_vec(), udp(), udp()].concat());
    let rest = (port, select(OWNERS.to_vec()), select(vec![false, false, false, true]));
    from.prop_flat_map(|from| (Just(from), select(destinations(from))))
        .prop_flat_map(move |(from, to)| (Just(from), Just(to), rest.clone()))
        .prop_map(|(from, to, ((transport, port), [uid, gid], passes))| {
            let (inside, owner) = match from {
                Location::Pod => (is_own(to), Owner { uid, gid }),
                _ => (false, Owner { uid: 0, gid: 0 }),
            };
            let source = (inside && passes).then(|| passthrough(to));
            flow(from, transport, SocketAddr::new(to, port), owner).bound_to(source, None)
        })
        .prop_filter("refused by ICMP, which the kernel rate-limits", |flow| {
            let by_icmp = flow.from != Location::Pod && flow.transport == Transport::Udp;
            !(by_icmp && flow.without_rules == ConnectionOutcome::Refused)
        })
}

fn udp() -> Vec<(Transport, u16)> {
    UDP_PORTS.map(|port| (Transport::Udp, port)).to_vec()
}

/// A connection to every port used here, of each network outside.
pub fn every_port() -> Vec<Flow> {
    let ports = TCP_PORTS.map(|port| (Transport::Tcp, port)).into_iter().chain(udp());
    let root = Owner { uid: 0, gid: 0 };
    let call = |(transport, port)| {
        let to = |ip: [u8; 4]| flow(Location::Pod, transport, SocketAddr::from((ip, port)), root);
        [to([10, 1, 2, 3]).bound_to(None, None), to([172, 30, 0, 1]).bound_to(None, None)]
    };
    ports.flat_map(call).collect()
}

/// Connections that share one five-tuple, to be made in this order before a policy's other connections.
/// `number` selects the tuple: conntrack keeps entries for a while, so each policy needs another one.
pub fn of_one_five_tuple(number: u64) -> Vec<Flow> {
    // Below the source ports of other connections; no policy's range begins or ends here.
    let port = u16::try_from(number % 900).map_or(18000, |number| 18000 + 2 * number);
    let servers = ["10.96.0.10", "fd00:96::10"].into_iter().filter_map(|text| text.parse().ok());
    let query = |to: IpAddr, [uid, gid]: [u32; 2], port| {
        flow(Location::Pod, Transport::Udp, SocketAddr::new(to, 53), Owner { uid, gid })
            .bound_to(None, Some(port))
    };
    let each = |to| {
        [
            query(to, [1000, 1000], port),
            query(to, [1337, 1337], port),
            query(to, [1000, 1000], port),
            query(to, [0, 1337], port + 1),
            query(to, [1000, 1000], port + 1),
        ]
    };
    servers.flat_map(each).collect()
}

/// The proxy connecting to the application from a client's address; its outcome cannot be predicted from the rules.
pub fn from_a_clients_address(mark: u32) -> Vec<Flow> {
    let call = |to: &str, from: &str, uid| {
        let to = SocketAddr::new(to.parse().ok()?, 8080);
        let flow = flow(Location::Pod, Transport::Tcp, to, Owner { uid, gid: 1337 });
        Some(Flow { mark: Some(mark), ..flow.bound_to(from.parse().ok(), None) })
    };
    [call("10.244.0.10", "10.244.0.1", 1337), call("fd00:10::10", "fd00:10::1", 0)]
        .into_iter()
        .flatten()
        .collect()
}

fn flow(from: Location, transport: Transport, to: SocketAddr, owner: Owner) -> Flow {
    let id = String::new();
    let unknown = ConnectionOutcome::Timeout;
    let (without_rules, with_rules) = (unknown.clone(), unknown);
    Flow {
        id,
        from,
        transport,
        to,
        owner,
        source: None,
        source_port: None,
        mark: None,
        without_rules,
        with_rules,
    }
}

impl Flow {
    /// Binds its source and sets its outcome without rules.
    fn bound_to(self, source: Option<IpAddr>, source_port: Option<u16>) -> Self {
        let flow = Self { source, source_port, ..self };
        let id = format!(
            "{:?} {:?} -> {} {:?} from {source:?}:{source_port:?}",
            flow.from, flow.transport, flow.to, flow.owner
        );
        Self { id, without_rules: flow.outcome_without_rules(), ..flow }
    }
}

fn destinations(from: Location) -> Vec<IpAddr> {
    let texts = DESTINATIONS.iter().filter(|(source, _)| *source == from).flat_map(|(_, to)| *to);
    texts.filter_map(|text| text.parse().ok()).collect()
}

fn passthrough(to: IpAddr) -> IpAddr {
    if to.is_ipv4() { PASSTHROUGH_V4.into() } else { PASSTHROUGH_V6.into() }
}
