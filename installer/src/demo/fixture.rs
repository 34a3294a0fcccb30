//! A pod and its peer: two namespaces, a link between them, and those who answer in each.

use crate::testnet::link::{LinkEnd, LinkError, NextHop, join, route};
use crate::testnet::listener::{ListenAddress, ListenError, Listeners, ListeningPort, ServerName};
use crate::testnet::namespace::{Namespace, NamespaceError};
use gybe_netfilter::hint::Hint;
use gybe_netfilter::policy::{InterfaceName, InterfaceNameError};
use gybe_netfilter::trace::{Owner, Transport};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The application.
pub const APP: Owner = Owner { uid: 1000, gid: 1000 };
/// The proxy.
pub const PROXY: Owner = Owner { uid: 1337, gid: 1337 };
/// Anybody outside.
pub const OUTSIDER: Owner = Owner { uid: 0, gid: 0 };

/// The pod's addresses, those of `examples/add.json`.
pub const POD: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(10, 244, 0, 10), Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 0x10));
/// Its gateway, where the world begins.
const GATEWAY: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(10, 244, 0, 1), Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 1));

/// The two namespaces and everybody in them, until this value goes.
#[derive(Debug)]
pub struct Fixture {
    // Before the namespaces: who listens stops first.
    _listeners: [Listeners; 3],
    /// The pod, with an application and a proxy in it.
    pub pod: Arc<Namespace>,
    /// The world, which owns every address that is not the pod's.
    pub world: Arc<Namespace>,
}

/// Why there is no stage.
#[derive(Debug, thiserror::Error)]
pub enum FixtureError {
    /// No namespace.
    #[error("cannot make the namespaces of a pod and its peer")]
    Namespace(#[from] NamespaceError),
    /// No link between them.
    #[error("cannot join a pod and its peer")]
    Link(#[from] LinkError),
    /// Nobody in them.
    #[error("nobody listens in the pod or outside")]
    Listen(#[from] ListenError),
    /// A name in this file is none.
    #[error("an interface has no proper name")]
    Name(#[from] InterfaceNameError),
}

impl Hint for FixtureError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Namespace(error) => error.hint(),
            Self::Link(error) => error.hint(),
            Self::Listen(error) => error.hint(),
            Self::Name(_) => None,
        }
    }
}

impl Fixture {
    /// Sets it up, with the world answering on `ports`.
    ///
    /// # Errors
    /// When the process or the kernel cannot.
    pub fn set(ports: &[(Transport, u16)]) -> Result<Self, FixtureError> {
        let pod = Arc::new(Namespace::new()?);
        let world = Arc::new(Namespace::new()?);
        let name = InterfaceName::parse("eth0")?;
        let end = |namespace, addresses| LinkEnd { namespace, name: name.clone(), addresses };
        join(&end(&pod, networks(POD)), &end(&world, networks(GATEWAY)))?;
        let everything: [IpNet; 2] = [IpNet::from(Ipv4Net::default()), IpNet::from(Ipv6Net::default())];
        for (network, gateway) in everything.into_iter().zip([IpAddr::from(GATEWAY.0), GATEWAY.1.into()]) {
            route(&pod, network, NextHop::Via(gateway))?;
            route(&world, network, NextHop::Here)?;
        }
        let outside =
            ports.iter().map(|(transport, port)| service(*transport, *port, ListenAddress::Everywhere));
        let listeners = [
            Listeners::start(&pod, PROXY, ServerName::NameAndPort("envoy"), proxy())?,
            Listeners::start(
                &pod,
                APP,
                ServerName::NameAndPort("app"),
                vec![service(Transport::Tcp, 8080, ListenAddress::Everywhere)],
            )?,
            Listeners::start(&world, OUTSIDER, ServerName::Name("world"), outside.collect())?,
        ];
        Ok(Self { _listeners: listeners, pod, world })
    }
}

fn networks((v4, v6): (Ipv4Addr, Ipv6Addr)) -> Vec<IpNet> {
    [(IpAddr::from(v4), 24), (v6.into(), 64)]
        .into_iter()
        .filter_map(|(address, prefix)| IpNet::new(address, prefix).ok())
        .collect()
}

/// Where Istio's proxy listens: outbound, inbound, tunnel, health.
fn proxy() -> Vec<ListeningPort> {
    [15001, 15006, 15008, 15021].map(|port| service(Transport::Tcp, port, ListenAddress::Everywhere)).to_vec()
}

fn service(transport: Transport, port: u16, reach: ListenAddress) -> ListeningPort {
    ListeningPort { transport, port, reach }
}
