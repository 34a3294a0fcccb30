//! The fixture of the demo: a pod and its peer, two namespaces with a link between them and listeners in each.

use crate::testnet::link::{LinkEnd, LinkError, NextHop, join, route};
use crate::testnet::listener::{ListenAddress, ListenError, Listeners, ListeningPort, ServerName};
use crate::testnet::namespace::{Namespace, NamespaceError};
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::{InterfaceName, InterfaceNameError};
use gybe_netfilter::model::ruleset::Transport;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

pub const APP: Owner = Owner { uid: 1000, gid: 1000 };
pub const PROXY: Owner = Owner { uid: 1337, gid: 1337 };
pub const OUTSIDER: Owner = Owner { uid: 0, gid: 0 };

/// The pod's addresses, as in `examples/add.json`.
pub const POD: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(10, 244, 0, 10), Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 0x10));
/// The pod's gateway: the world's end of the link.
const GATEWAY: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(10, 244, 0, 1), Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 1));

/// The two namespaces and their listeners.
#[derive(Debug)]
pub struct Fixture {
    // Declared before the namespaces, so that listeners stop first.
    _listeners: [Listeners; 3],
    /// The pod, with an application and a proxy in it.
    pub pod: Arc<Namespace>,
    /// The world, which owns every address that is not the pod's.
    pub world: Arc<Namespace>,
}

#[derive(Debug, thiserror::Error)]
pub enum FixtureError {
    #[error("cannot create the namespaces of a pod and its peer")]
    Namespace(#[from] NamespaceError),
    #[error("cannot link a pod and its peer")]
    Link(#[from] LinkError),
    #[error("cannot listen in the pod or its peer")]
    Listen(#[from] ListenError),
    #[error("an interface has an invalid name")]
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
    /// Creates the fixture; the world listens on `ports`.
    pub fn new(ports: &[(Transport, u16)]) -> Result<Self, FixtureError> {
        let pod = Arc::new(Namespace::new()?);
        let world = Arc::new(Namespace::new()?);
        let name = InterfaceName::parse("eth0")?;
        let end = |namespace, addresses| LinkEnd { namespace, name: name.clone(), addresses };
        join(&end(&pod, networks(POD)), &end(&world, networks(GATEWAY)))?;
        let everything: [IpNet; 2] = [IpNet::from(Ipv4Net::default()), IpNet::from(Ipv6Net::default())];
        for (network, gateway) in everything.into_iter().zip([IpAddr::from(GATEWAY.0), GATEWAY.1.into()]) {
            route(&pod, network, NextHop::Via(gateway))?;
            route(&world, network, NextHop::Local)?;
        }
        let outside = ports.iter().map(|(transport, port)| listen_on(*transport, *port));
        let listeners = [
            Listeners::start(&pod, PROXY, ServerName::NameAndPort("envoy"), proxy())?,
            Listeners::start(
                &pod,
                APP,
                ServerName::NameAndPort("app"),
                vec![listen_on(Transport::Tcp, 8080)],
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

/// The ports of Istio's proxy: outbound, inbound, tunnel, health.
fn proxy() -> Vec<ListeningPort> {
    [15001, 15006, 15008, 15021].map(|port| listen_on(Transport::Tcp, port)).to_vec()
}

fn listen_on(transport: Transport, port: u16) -> ListeningPort {
    ListeningPort { transport, port, address: ListenAddress::Any }
}
