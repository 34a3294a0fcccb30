//! A sandbox with a proxy and an application in it, and connections to and from it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gybe_containerd_tests::{Node, Sandbox, SimulatedHost, manifest};
use gybe_demo::testnet::client::{Client, SourceOptions};
use gybe_demo::testnet::listener::{ListenAddress, Listeners, ListeningPort, ServerName};
use gybe_demo::testnet::namespace::Namespace;
use gybe_demo::testnet::outcome::{ConnectionOutcome, Reply};
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::ruleset::Transport;
use serde_json::Value;

pub(crate) const PROXY: Owner = Owner { uid: 1337, gid: 1337 };
pub(crate) const APPLICATION: Owner = Owner { uid: 1000, gid: 1000 };
/// The bridge's addresses, at which a pod reaches the node.
pub(crate) const OUTSIDE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 88, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x88, 0, 0, 0, 0, 0, 1))];

/// The kernel repeats a lost SYN after one second and after three.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A sandbox with processes.
pub(crate) struct RunningPod {
    pub(crate) id: String,
    pub(crate) addresses: Vec<IpAddr>,
    namespace: Arc<Namespace>,
    _listeners: Vec<Listeners>,
}

/// A client and a listener in the node's network namespace.
pub(crate) struct OutsideClient {
    namespace: Arc<Namespace>,
    _listeners: Listeners,
}

/// The listener that a connection reached.
#[derive(Debug, PartialEq)]
pub(crate) struct Destination {
    listener: String,
    /// The original destination, if the listener reports one.
    original: Option<SocketAddr>,
}

impl RunningPod {
    /// Publishes the manifest and starts the sandbox and its processes.
    pub(crate) fn start(node: &Node, sandbox: &Sandbox, manifest: &Value) -> RunningPod {
        manifest::publish(node.host(), sandbox, manifest).unwrap();
        let id = node.cri.run(sandbox).unwrap();
        RunningPod::in_sandbox(node, id)
    }

    /// Starts the processes of a pod in an existing sandbox.
    pub(crate) fn in_sandbox(node: &Node, id: String) -> RunningPod {
        let status = node.cri.sandbox_status(&id).unwrap();
        let addresses = status.addresses.iter().map(|text| text.parse().unwrap()).collect();
        RunningPod::in_namespace(&node.host().path(status.netns.unwrap()), id, addresses)
    }

    /// Starts the processes of a pod in a network namespace.
    pub(crate) fn in_namespace(netns: &Path, id: String, addresses: Vec<IpAddr>) -> RunningPod {
        let namespace = Arc::new(Namespace::open(netns).unwrap());
        let proxy = listeners(&namespace, PROXY, ServerName::NameAndPort("envoy"), &[15001, 15006]);
        let application = listeners(&namespace, APPLICATION, ServerName::Name("app"), &[8080]);
        RunningPod { id, addresses, namespace, _listeners: vec![proxy, application] }
    }

    /// Connects as a process of the pod.
    pub(crate) fn connect(&self, owner: Owner, to: IpAddr, port: u16) -> Destination {
        connect(&self.namespace, owner, SocketAddr::new(to, port))
    }
}

impl OutsideClient {
    pub(crate) fn new(node: &Node) -> OutsideClient {
        OutsideClient::on(node.host())
    }

    pub(crate) fn on(host: &SimulatedHost) -> OutsideClient {
        let namespace = Arc::new(Namespace::open(&host.netns()).unwrap());
        let root = Owner { uid: 0, gid: 0 };
        let listeners = listeners(&namespace, root, ServerName::Name("outside"), &[80]);
        OutsideClient { namespace, _listeners: listeners }
    }

    /// Connects as a process of the node.
    pub(crate) fn connect(&self, to: IpAddr, port: u16) -> Destination {
        connect(&self.namespace, Owner { uid: 0, gid: 0 }, SocketAddr::new(to, port))
    }
}

fn listeners(namespace: &Arc<Namespace>, owner: Owner, name: ServerName, ports: &[u16]) -> Listeners {
    let listening_port =
        |port: &u16| ListeningPort { transport: Transport::Tcp, port: *port, address: ListenAddress::Any };
    Listeners::start(namespace, owner, name, ports.iter().map(listening_port).collect()).unwrap()
}

fn connect(namespace: &Namespace, owner: Owner, to: SocketAddr) -> Destination {
    let client = Client { owner, transport: Transport::Tcp, to, source: SourceOptions::default() };
    match client.connect(namespace, TIMEOUT).unwrap() {
        ConnectionOutcome::Replied(Reply { by, original, .. }) => Destination { listener: by, original },
        other => Destination { listener: other.to_string(), original: None },
    }
}

impl Destination {
    /// The proxy's port, with the original destination.
    pub(crate) fn proxy(port: u16, address: IpAddr, original_port: u16) -> Destination {
        let original = Some(SocketAddr::new(address, original_port));
        Destination { listener: format!("envoy:{port}"), original }
    }
}

/// Compares only the listener: conntrack has an original destination for connections without redirection, too.
impl PartialEq<str> for Destination {
    fn eq(&self, name: &str) -> bool {
        self.listener == name
    }
}
