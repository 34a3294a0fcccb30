//! The play: the connections without Gybe, the ADD, the connections with it. How it is told is in
//! `report.rs`.

use super::add::{AddError, AddPaths, RecordedAdd};
use super::connections::{self, Connection, From};
use super::fixture::{Fixture, FixtureError, POD};
use super::traced::TracedRun;
use crate::testnet::client::ClientError;
use crate::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::hint::Hint;
use gybe_netfilter::netns;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::policy::InterfaceName;
use gybe_netfilter::presence::Presence;
use gybe_netfilter::redirection::{Redirection, RedirectionError};
use gybe_netfilter::routes::RoutesError;
use gybe_netfilter::ruleset::{RuleId, Ruleset};
use gybe_netfilter::trace::{Direction, Packet, Trace, trace};
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What is played.
#[derive(Debug)]
pub struct ScenarioOptions<'a> {
    /// A command that becomes the plugin, watched.
    pub plugin: Command,
    /// Where a directory for the pod's manifest may be made.
    pub scratch: &'a Path,
    /// A rule to leave out.
    pub without: Option<&'a str>,
}

/// What happened.
#[derive(Debug)]
pub struct ScenarioResult {
    /// The ADD.
    pub add: TracedRun,
    /// The rule that was left out.
    pub without: Option<RuleId>,
    /// The connections.
    pub rows: Vec<Row>,
}

/// One connection, made twice.
#[derive(Debug)]
pub struct Row {
    /// Which.
    pub connection: Connection,
    /// What became of it without Gybe.
    pub before: ConnectionOutcome,
    /// And with.
    pub after: ConnectionOutcome,
    /// What the rules themselves say.
    pub trace: Trace,
    /// Did the kernel's counter of the deciding rule move?
    pub counted: bool,
}

/// Why it could not be played to its end.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// No stage.
    #[error("cannot set the stage")]
    Fixture(#[from] FixtureError),
    /// A connection could not be made as it is meant.
    #[error("cannot make the connections")]
    Call(#[from] ClientError),
    /// No ADD.
    #[error("cannot make the ADD")]
    RecordedAdd(#[from] AddError),
    /// The ADD failed.
    #[error("the ADD failed (exit {exit:?}): {said}")]
    Refused {
        /// The plugin's exit code, if it had one.
        exit: Option<i32>,
        /// What it said.
        said: String,
    },
    /// The ADD wrote something else than the pod asks for.
    #[error("after the ADD the pod's namespace is not as it should be: {0}")]
    Deviates(String),
    /// No rule of that name.
    #[error("the pod has no rule {id}; it has {}", .known.join(", "))]
    NoSuchRule {
        /// The name asked for.
        id: String,
        /// Those there are.
        known: Vec<&'static str>,
    },
    /// The rules could not be read, or not be written without one.
    #[error("cannot handle the pod's rules")]
    Rules(#[from] RedirectionError),
    /// The pod's addresses could not be read.
    #[error("cannot learn the pod's addresses")]
    Addresses(#[from] RoutesError),
    /// An interface of this file has no proper name.
    #[error("an interface has no proper name")]
    Name(#[from] gybe_netfilter::policy::InterfaceNameError),
}

impl Hint for ScenarioError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Fixture(error) => error.hint(),
            Self::Call(error) => error.hint(),
            Self::Rules(error) => error.hint(),
            _ => None,
        }
    }
}

impl std::convert::From<crate::testnet::namespace::NamespaceError> for ScenarioError {
    fn from(error: crate::testnet::namespace::NamespaceError) -> Self {
        Self::Fixture(error.into())
    }
}

/// Every connection is answered at once or goes wrong.
const PATIENCE: Duration = Duration::from_secs(2);

/// Plays it.
///
/// # Errors
/// When it cannot be played. Connections that go where they should not are no error.
pub fn play(script: ScenarioOptions<'_>) -> Result<ScenarioResult, ScenarioError> {
    let stage = Fixture::set(&connections::world_ports())?;
    let add = RecordedAdd::recorded()?;
    let addresses: Vec<IpAddr> = stage.pod.run(netns::addresses)??.iter().map(|found| found.ip).collect();
    let wanted = Redirection::of(&add.policy(&addresses)?);
    let less = script.without.map(|id| less(&wanted, id)).transpose()?;
    let all = connections::all();
    let before = all.iter().map(|one| make(&stage, one)).collect::<Result<Vec<_>, _>>()?;
    let add = add.call(script.plugin, AddPaths { netns: &stage.pod.path(), scratch: script.scratch })?;
    succeeded(&add)?;
    let deviations = stage.pod.run(|| wanted.differences(&Nft, &Presence::look()?))??;
    if !deviations.is_empty() {
        let said: Vec<String> = deviations.iter().map(ToString::to_string).collect();
        return Err(ScenarioError::Deviates(said.join(", ")));
    }
    if let Some((_, rest)) = &less {
        stage.pod.run(|| rest.apply(&Nft))??;
    }
    let rules = less.as_ref().map_or(&wanted.rules, |(_, rest)| &rest.rules);
    let rows = all.into_iter().zip(before).map(|(one, before)| row(&stage, rules, (one, before)));
    let rows = rows.collect::<Result<_, _>>()?;
    Ok(ScenarioResult { add, without: less.map(|(rule, _)| rule), rows })
}

fn less(wanted: &Redirection, id: &str) -> Result<(RuleId, Redirection), ScenarioError> {
    let known = || wanted.rules.rules().map(|(_, rule)| rule.id);
    match (known().find(|rule| rule.0 == id), wanted.rules.without(id)) {
        (Some(rule), Some(rules)) => Ok((rule, Redirection { rules, ..wanted.clone() })),
        _ => {
            Err(ScenarioError::NoSuchRule { id: id.to_owned(), known: known().map(|rule| rule.0).collect() })
        }
    }
}

fn succeeded(add: &TracedRun) -> Result<(), ScenarioError> {
    if add.exit == Some(0) {
        return Ok(());
    }
    let said = if add.stdout.is_empty() { &add.stderr } else { &add.stdout };
    Err(ScenarioError::Refused { exit: add.exit, said: said.trim().to_owned() })
}

fn make(stage: &Fixture, connection: &Connection) -> Result<ConnectionOutcome, ClientError> {
    let there = match connection.from {
        From::Pod => &stage.pod,
        From::World => &stage.world,
    };
    connection.call.make(there, PATIENCE)
}

fn row(
    stage: &Fixture,
    rules: &Ruleset,
    (connection, before): (Connection, ConnectionOutcome),
) -> Result<Row, ScenarioError> {
    let trace = trace(rules, &packet(&connection, &before)?);
    let count = || -> Result<u64, ScenarioError> {
        let Some(rule) = trace.decided_by else { return Ok(0) };
        let there = stage.pod.run(|| Nft.inspect())?.map_err(RedirectionError::from)?;
        let items = there.parts.iter().flat_map(|part| &part.items);
        Ok(items.filter(|item| item.id == rule.0).filter_map(|item| item.packets).sum())
    };
    let counted = count()?;
    let after = make(stage, &connection)?;
    let counted = count()? > counted;
    Ok(Row { connection, before, after, trace, counted })
}

/// Its first packet, as the pod's rules see it. Its source is the one that was seen without them.
fn packet(connection: &Connection, before: &ConnectionOutcome) -> Result<Packet, ScenarioError> {
    let call = &connection.call;
    let seen = match before {
        ConnectionOutcome::Answered(answer) => Some(answer.source),
        _ => call.disguise.source,
    };
    let source = SocketAddr::new(seen.unwrap_or(call.to.ip()), 40000);
    let own = call.to.ip().is_loopback() || [IpAddr::from(POD.0), POD.1.into()].contains(&call.to.ip());
    let eth0 = InterfaceName::parse("eth0")?;
    Ok(match connection.from {
        From::World => Packet::first(Direction::Arrives { by: eth0 }, call.transport, source, call.to),
        From::Pod => {
            let by = if own { InterfaceName::loopback() } else { eth0 };
            Packet::first(Direction::Leaves { by }, call.transport, source, call.to).owned_by(call.owner)
        }
    })
}
