//! A sandbox with processes in it: a proxy and an application that say who they are, and callers;
//! not where their connections ought to end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use gybe_containerd_tests::{Node, Sandbox, manifest};
use gybe_installer::testnet::client::{Client, SourceOptions};
use gybe_installer::testnet::listener::{ListenAddress, Listeners, ListeningPort, ServerName};
use gybe_installer::testnet::namespace::Namespace;
use gybe_installer::testnet::outcome::{ConnectionOutcome, Reply};
use gybe_netfilter::trace::{Owner, Transport};
use serde_json::Value;

pub(crate) const PROXY: Owner = Owner { uid: 1337, gid: 1337 };
pub(crate) const APPLICATION: Owner = Owner { uid: 1000, gid: 1000 };
/// The bridge's addresses: where a pod meets whatever is not itself.
pub(crate) const OUTSIDE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 88, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x88, 0, 0, 0, 0, 0, 1))];

/// The kernel sends a lost SYN again after one second and after three.
const PATIENCE: Duration = Duration::from_secs(10);

/// A pod at work.
pub(crate) struct Pod {
    pub(crate) id: String,
    pub(crate) addresses: Vec<IpAddr>,
    namespace: Arc<Namespace>,
    _listeners: Vec<Listeners>,
}

/// What is around the pods.
pub(crate) struct Outside {
    namespace: Arc<Namespace>,
    _listeners: Listeners,
}

/// Whom a connection met.
#[derive(Debug, PartialEq)]
pub(crate) struct Met {
    by: String,
    meant: Option<SocketAddr>,
}

impl Pod {
    /// Publishes the manifest, has the sandbox made, and starts who would run in it.
    pub(crate) fn start(node: &Node, sandbox: &Sandbox, manifest: &Value) -> Pod {
        manifest::publish(node.stage(), sandbox, manifest).unwrap();
        let id = node.cri.run(sandbox).unwrap();
        Pod::inhabit(node, id)
    }

    /// Starts who would run in a sandbox that is there.
    pub(crate) fn inhabit(node: &Node, id: String) -> Pod {
        let standing = node.cri.standing(&id).unwrap();
        let path = node.stage().path(standing.netns.unwrap());
        let namespace = Arc::new(Namespace::open(&path).unwrap());
        let addresses = standing.addresses.iter().map(|text| text.parse().unwrap()).collect();
        let proxy = listeners(&namespace, PROXY, ServerName::NameAndPort("envoy"), &[15001, 15006]);
        let application = listeners(&namespace, APPLICATION, ServerName::Name("app"), &[8080]);
        Pod { id, addresses, namespace, _listeners: vec![proxy, application] }
    }

    /// What becomes of a connection that one of the pod's processes makes.
    pub(crate) fn calls(&self, owner: Owner, to: IpAddr, port: u16) -> Met {
        call(&self.namespace, owner, SocketAddr::new(to, port))
    }
}

impl Outside {
    /// The node's own namespace, with somebody listening in it.
    pub(crate) fn of(node: &Node) -> Outside {
        let namespace = Arc::new(Namespace::open(&node.stage().netns()).unwrap());
        let root = Owner { uid: 0, gid: 0 };
        let peer = listeners(&namespace, root, ServerName::Name("outside"), &[80]);
        Outside { namespace, _listeners: peer }
    }

    /// What becomes of a connection that comes from outside the pod.
    pub(crate) fn calls(&self, to: IpAddr, port: u16) -> Met {
        call(&self.namespace, Owner { uid: 0, gid: 0 }, SocketAddr::new(to, port))
    }
}

fn listeners(namespace: &Arc<Namespace>, owner: Owner, badge: ServerName, ports: &[u16]) -> Listeners {
    let service = |port: &u16| ListeningPort {
        transport: Transport::Tcp,
        port: *port,
        address: ListenAddress::Any,
    };
    Listeners::start(namespace, owner, badge, ports.iter().map(service).collect()).unwrap()
}

fn call(namespace: &Namespace, owner: Owner, to: SocketAddr) -> Met {
    let call = Client { owner, transport: Transport::Tcp, to, source: SourceOptions::default() };
    match call.connect(namespace, PATIENCE).unwrap() {
        ConnectionOutcome::Answered(Reply { by, original, .. }) => Met { by, meant: original },
        other => Met { by: other.to_string(), meant: None },
    }
}

impl Met {
    /// The proxy, on that port, and it knows where the connection was meant to go.
    pub(crate) fn proxy(port: u16, address: IpAddr, meant: u16) -> Met {
        Met { by: format!("envoy:{port}"), meant: Some(SocketAddr::new(address, meant)) }
    }
}

/// Whoever is called so. That conntrack knows where the connection goes says nothing of a redirect.
impl PartialEq<str> for Met {
    fn eq(&self, name: &str) -> bool {
        self.by == name
    }
}
