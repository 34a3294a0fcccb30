//! The scenario: the connections without Gybe, the ADD, the connections with Gybe. `report` prints the result.

use super::add::{AddError, AddPaths, RecordedAdd};
use super::connections::{self, ClientLocation, Connection};
use super::fixture::{Fixture, FixtureError, POD};
use super::traced::TracedRun;
use crate::testnet::client::ClientError;
use crate::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{Redirection, RedirectionError};
use gybe_netfilter::inspect::live::{LiveRules, LiveTrace};
use gybe_netfilter::kernel::netns;
use gybe_netfilter::kernel::routes::RoutesError;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::packet::{Direction, Packet};
use gybe_netfilter::model::policy::InterfaceName;
use gybe_netfilter::model::ruleset::RuleId;
use gybe_netfilter::nft::Nft;
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
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
    Name(#[from] gybe_netfilter::model::policy::InterfaceNameError),
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

impl From<crate::testnet::namespace::NamespaceError> for ScenarioError {
    fn from(error: crate::testnet::namespace::NamespaceError) -> Self {
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
