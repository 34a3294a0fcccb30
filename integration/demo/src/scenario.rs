//! The scenario: the connections without Gybe, the ADD, the connections with Gybe. `report` prints the result.

use super::add::{AddError, AddPaths, RecordedAdd, TracedRun};
use super::connections::{self, ClientLocation, Connection};
use crate::testnet::client::ClientError;
use crate::testnet::listener::{ListenAddress, ListenError, Listeners, ListeningPort, ServerName};
use crate::testnet::namespace::{LinkEnd, LinkError, Namespace, NamespaceError, NextHop, join, route};
use crate::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{Redirection, RedirectionError};
use gybe_netfilter::inspect::live::{LiveRules, LiveTrace};
use gybe_netfilter::kernel::netns;
use gybe_netfilter::kernel::routes::RoutesError;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::packet::{Direction, Owner, Packet};
use gybe_netfilter::model::policy::{InterfaceName, InterfaceNameError};
use gybe_netfilter::model::ruleset::{RuleId, Transport};
use gybe_netfilter::nft::Nft;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub struct ScenarioOptions<'a> {
    /// A command that executes the plugin once it is traced.
    pub plugin: Command,
    /// A directory in which the scenario creates one for the pod's manifest.
    pub scratch: &'a Path,
    /// The id of a rule to leave out.
    pub without: Option<&'a str>,
}

#[derive(Debug)]
pub struct ScenarioResult {
    pub add: TracedRun,
    pub without: Option<RuleId>,
    pub rows: Vec<Row>,
}

/// One connection, made without and with Gybe.
#[derive(Debug)]
pub struct Row {
    pub connection: Connection,
    pub before: ConnectionOutcome,
    pub after: ConnectionOutcome,
    /// The prediction.
    pub trace: LiveTrace,
    /// Whether the kernel's counter of the deciding rule has increased.
    pub counted: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    #[error("cannot create the test network")]
    Fixture(#[from] FixtureError),
    #[error("cannot make the connections")]
    Client(#[from] ClientError),
    #[error("cannot make the ADD")]
    Add(#[from] AddError),
    #[error("the ADD failed (exit code {exit:?}): {output}")]
    AddFailed { exit: Option<i32>, output: String },
    #[error("after the ADD the pod's rules differ from the desired ones: {0}")]
    Deviates(String),
    #[error("the pod has no rule {id}; it has {}", .known.join(", "))]
    NoSuchRule { id: String, known: Vec<&'static str> },
    #[error("cannot read or write the pod's rules")]
    Rules(#[from] RedirectionError),
    #[error("cannot read the pod's addresses")]
    Addresses(#[from] RoutesError),
    #[error("an interface has an invalid name")]
    Name(#[from] InterfaceNameError),
}

impl Hint for ScenarioError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Fixture(error) => error.hint(),
            Self::Client(error) => error.hint(),
            Self::Rules(error) => error.hint(),
            _ => None,
        }
    }
}

impl From<NamespaceError> for ScenarioError {
    fn from(error: NamespaceError) -> Self {
        Self::Fixture(error.into())
    }
}

/// A reply takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the scenario. A connection with another outcome than expected is part of the result, not an error.
pub fn run(options: ScenarioOptions<'_>) -> Result<ScenarioResult, ScenarioError> {
    let fixture = Fixture::new(&connections::world_ports())?;
    let add = RecordedAdd::recorded()?;
    let addresses: Vec<IpAddr> = fixture.pod.run(netns::addresses)??.iter().map(|found| found.ip).collect();
    let desired = Redirection::of(&add.policy(&addresses)?);
    let reduced = options.without.map(|id| without_rule(&desired, id)).transpose()?;
    let all = connections::all();
    let before = all.iter().map(|one| connect(&fixture, one)).collect::<Result<Vec<_>, _>>()?;
    let add = add.call(options.plugin, AddPaths { netns: &fixture.pod.path(), scratch: options.scratch })?;
    check_exit(&add)?;
    let deviations = fixture.pod.run(|| desired.differences(&Nft, &Presence::look()?))??;
    if !deviations.is_empty() {
        let deviations: Vec<String> = deviations.iter().map(ToString::to_string).collect();
        return Err(ScenarioError::Deviates(deviations.join(", ")));
    }
    if let Some((_, rest)) = &reduced {
        fixture.pod.run(|| rest.apply(&Nft))??;
    }
    let rules = reduced.as_ref().map_or(&desired.rules, |(_, rest)| &rest.rules);
    let rules = LiveRules::of_ruleset(rules)?.with_interface("eth0", &[POD.0.into(), POD.1.into()]);
    let rows = all.into_iter().zip(before).map(|(one, before)| row(&fixture, &rules, one, before));
    let rows = rows.collect::<Result<_, _>>()?;
    Ok(ScenarioResult { add, without: reduced.map(|(rule, _)| rule), rows })
}

fn without_rule(desired: &Redirection, id: &str) -> Result<(RuleId, Redirection), ScenarioError> {
    let known = || desired.rules.rules().map(|(_, rule)| rule.id);
    match (known().find(|rule| rule.0 == id), desired.rules.without(id)) {
        (Some(rule), Some(rules)) => Ok((rule, Redirection { rules, ..desired.clone() })),
        _ => {
            Err(ScenarioError::NoSuchRule { id: id.to_owned(), known: known().map(|rule| rule.0).collect() })
        }
    }
}

fn check_exit(add: &TracedRun) -> Result<(), ScenarioError> {
    if add.exit == Some(0) {
        return Ok(());
    }
    let output = if add.stdout.is_empty() { &add.stderr } else { &add.stdout };
    Err(ScenarioError::AddFailed { exit: add.exit, output: output.trim().to_owned() })
}

fn connect(fixture: &Fixture, connection: &Connection) -> Result<ConnectionOutcome, ClientError> {
    let namespace = match connection.from {
        ClientLocation::Pod => &fixture.pod,
        ClientLocation::World => &fixture.world,
    };
    connection.client.connect(namespace, TIMEOUT)
}

fn row(
    fixture: &Fixture,
    rules: &LiveRules,
    connection: Connection,
    before: ConnectionOutcome,
) -> Result<Row, ScenarioError> {
    let trace = rules.trace(&packet(&connection, &before)?);
    let count = || -> Result<u64, ScenarioError> {
        let Some(rule) = trace.rule() else { return Ok(0) };
        let inventory = fixture.pod.run(|| Nft.inspect())?.map_err(RedirectionError::from)?;
        let items = inventory.parts.iter().flat_map(|part| &part.items);
        Ok(items.filter(|item| item.id == rule).filter_map(|item| item.packets).sum())
    };
    let counted = count()?;
    let after = connect(fixture, &connection)?;
    let counted = count()? > counted;
    Ok(Row { connection, before, after, trace, counted })
}

/// Returns the first packet of a connection, as the pod's rules see it, with the source address that the listener
/// reported in the run without rules.
fn packet(connection: &Connection, before: &ConnectionOutcome) -> Result<Packet, ScenarioError> {
    let client = &connection.client;
    let source = match before {
        ConnectionOutcome::Replied(reply) => Some(reply.source),
        _ => client.source.address,
    };
    let source = SocketAddr::new(source.unwrap_or(client.to.ip()), 40000);
    let is_own =
        client.to.ip().is_loopback() || [IpAddr::from(POD.0), POD.1.into()].contains(&client.to.ip());
    let eth0 = InterfaceName::parse("eth0")?;
    Ok(match connection.from {
        ClientLocation::World => {
            Packet::first(Direction::Arrives { by: eth0 }, client.transport, source, client.to)
        }
        ClientLocation::Pod => {
            let by = if is_own { InterfaceName::loopback() } else { eth0 };
            Packet::first(Direction::Leaves { by }, client.transport, source, client.to)
                .owned_by(client.owner)
        }
    })
}

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
