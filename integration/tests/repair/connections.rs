//! TCP connections that are open when a pod is repaired keep their path in both directions.

use crate::node::{Node, Pod};
use gybe_demo::testnet::link::{LinkEnd, join};
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::programs::ours;
use gybe_netfilter::model::policy::InterfaceName;
use gybe_test_support::PATIENCE;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

pub(crate) const BACKENDS: [&str; 3] = ["nft", "iptables-nft", "iptables-legacy"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    /// Each side has sent data.
    Busy,
    /// No side has sent anything.
    Idle,
}

/// A connection between the pod and another host.
pub(crate) struct Open {
    pub(crate) what: String,
    of_pod: TcpStream,
    of_peer: TcpStream,
}

/// A pod with a link to another host, and connections in both directions and families.
pub(crate) struct Linked {
    pub(crate) pod: Pod,
    pub(crate) peer: Namespace,
    pub(crate) open: Vec<Open>,
    /// How long a byte may take.
    pub(crate) patience: Duration,
}

pub(crate) const FAMILIES: [(&str, &str); 2] = [("10.244.0.3", "10.244.0.77"), ("fd00:10::3", "fd00:10::77")];

impl Linked {
    pub(crate) fn without_connections() -> Self {
        let (pod, peer) = (Pod::new(1), Namespace::new().unwrap());
        pod.sh("ip link delete eth0; ip route flush table main");
        let end = |namespace, addresses: [&str; 2]| LinkEnd {
            namespace,
            name: InterfaceName::parse("eth0").unwrap(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        };
        join(
            &end(&pod.netns, ["10.244.0.3/24", "fd00:10::3/64"]),
            &end(&peer, ["10.244.0.77/24", "fd00:10::77/64"]),
        )
        .unwrap();
        Self { pod, peer, open: Vec::new(), patience: PATIENCE }
    }

    fn new(patience: Duration) -> Self {
        let mut linked = Self { patience, ..Self::without_connections() };
        linked.connect_all();
        linked
    }

    /// Opens connections of every kind.
    pub(crate) fn connect_all(&mut self) {
        for (of_pod, of_peer) in FAMILIES {
            for traffic in [Traffic::Busy, Traffic::Idle] {
                self.connect(of_pod, of_peer, traffic);
            }
        }
    }

    fn connect(&mut self, of_pod: &str, of_peer: &str, traffic: Traffic) {
        let (of_pod, of_peer): (IpAddr, IpAddr) = (of_pod.parse().unwrap(), of_peer.parse().unwrap());
        let (inward, server) = connection(&self.peer, &self.pod.netns, of_pod);
        let (outward, other) = connection(&self.pod.netns, &self.peer, of_peer);
        for (what, of_pod, of_peer) in [("inbound", server, inward), ("outbound", outward, other)] {
            let mut open =
                Open { what: format!("{traffic:?} {what} {}", of_pod.peer_addr().unwrap()), of_pod, of_peer };
            for end in [&open.of_pod, &open.of_peer] {
                end.set_read_timeout(Some(self.patience)).unwrap();
            }
            if traffic == Traffic::Busy {
                assert!(open.works());
            }
            self.open.push(open);
        }
    }
}

/// Connects from one namespace to this address in the other; returns both ends.
fn connection(from: &Namespace, to: &Namespace, address: IpAddr) -> (TcpStream, TcpStream) {
    let listener = to.run(|| TcpListener::bind(SocketAddr::new(address, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let client = from.run(|| TcpStream::connect_timeout(&target, Duration::from_secs(5)).unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

impl Open {
    /// Reports whether bytes arrive in both directions.
    pub(crate) fn works(&mut self) -> bool {
        passes(&mut self.of_peer, &mut self.of_pod) && passes(&mut self.of_pod, &mut self.of_peer)
    }
}

fn passes(from: &mut TcpStream, to: &mut TcpStream) -> bool {
    let mut byte = [0];
    from.write_all(b"x").is_ok() && to.read_exact(&mut byte).is_ok()
}

pub(crate) type ChangePod = fn(&mut Value);

/// Policies that treat packets of unknown connections differently.
pub(crate) const POLICIES: [(&str, ChangePod); 3] = [
    ("redirect", |_| ()),
    ("tproxy", |pod| {
        pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = json!("TPROXY");
    }),
    ("invalid packets dropped", |pod| {
        let variables = pod["spec"]["initContainers"][1]["env"].as_array_mut().unwrap();
        variables.push(json!({ "name": "INVALID_DROP", "value": "true" }));
    }),
];

#[test]
fn open_connections_keep_their_path_with_every_backend_family_and_policy() {
    for backend in BACKENDS {
        for (policy, change) in POLICIES {
            let node = Node::new(&format!("open-{backend}"), backend);
            let mut linked = Linked::new(PATIENCE);
            node.manifest("shop", &linked.pod, change);
            node.cached("shop", &linked.pod, "eth0");
            node.start(&linked.pod);
            let sandboxes = node.repair();
            let of_pod = &sandboxes[0];
            let expected = (&json!(true), &json!(backend), &json!(8));
            let found = (&of_pod["repaired"], &of_pod["backend"], &of_pod["open_connections"]);
            assert_eq!(found, expected, "{backend}, {policy}: {of_pod}");
            for open in &mut linked.open {
                assert!(open.works(), "{backend}, {policy}: {}", open.what);
            }
            assert!(new_connections_reach_the_proxy(&linked), "{backend}, {policy}");
        }
    }
}

/// Reports whether a new connection in each family ends at the proxy's port: nothing listens at its own destination.
fn new_connections_reach_the_proxy(linked: &Linked) -> bool {
    FAMILIES.iter().all(|(of_pod, of_peer)| {
        let loopback = if of_pod.contains(':') { "[::1]:15001" } else { "127.0.0.1:15001" };
        let proxy = linked.pod.netns.run(|| TcpListener::bind(loopback).unwrap()).unwrap();
        let to = SocketAddr::new(of_peer.parse().unwrap(), 9999);
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(2)).is_ok();
        let is_connected = linked.pod.netns.run(connect).unwrap();
        drop(proxy);
        is_connected
    })
}

/// The control: rules that are written without precaution reset the same connections.
#[test]
fn rules_that_are_written_without_precaution_reset_open_connections() {
    for backend in BACKENDS {
        let mut linked = Linked::new(Duration::from_millis(200));
        let path = linked.pod.netns.path().display().to_string();
        let policy = r#"{"enable_ipv6":true}"#;
        let words = ["apply", "--netns", &path, "--backend", backend, "--policy", "-"];
        assert_eq!(ours("gybe", &words, policy).unwrap().code, Some(0));
        for open in &mut linked.open {
            assert!(!open.works(), "{backend}: {}", open.what);
        }
    }
}
