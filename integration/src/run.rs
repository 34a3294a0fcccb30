//! Makes the recorded connections, one after the other, and tells where the fates differ.

use crate::complaint::Complaint;
use crate::crowd::side_by_side;
use crate::topology::Topology;
use crate::vectors::{Flow, Location, Vector};
use gybe_installer::testnet::client::{Client, ClientError, SourceOptions};
use gybe_installer::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::redirection::Redirection;
use std::fmt;
use std::thread;
use std::time::Duration;

/// How long a connection that should be answered may take. They take less than a millisecond; a
/// busy machine may need more, and patience costs nothing when all is well.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// How long a connection that should not be answered is given to be answered all the same.
const UNANSWERED_FOR: Duration = Duration::from_secs(1);

/// Below the kernel's own range (`ip_local_port_range`, from 32768), so that connections made at
/// the same time never choose the same.
const OWN_PORTS: u16 = 20000;

/// A connection that did not end as it should.
#[derive(Debug, Clone)]
pub struct Difference {
    /// Which.
    pub id: String,
    /// What should have become of it.
    pub wanted: ConnectionOutcome,
    /// What did.
    pub found: ConnectionOutcome,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} instead of {}", self.id, self.found, self.wanted)
    }
}

/// With the rules, or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// The pod has the rules of its policy.
    There,
    /// It has none.
    NotThere,
}

impl Flow {
    /// What should become of it.
    pub fn wanted(&self, rules: Rules) -> &ConnectionOutcome {
        match rules {
            Rules::There => &self.with_rules,
            Rules::NotThere => &self.without_rules,
        }
    }
}

/// When to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// When every connection was made.
    TheEnd,
    /// When one has ended otherwise than recorded.
    ADifference,
}

/// Makes every vector's connections, each policy in a network of its own, written by `backend`.
///
/// # Errors
/// With every connection that did not end where it was recorded to end, or when the kernel or the
/// machine would not have it tried.
pub fn all_under(vectors: Vec<Vector>, backend: &(dyn Backend + Sync)) -> Result<(), Complaint> {
    let wrong = side_by_side(vectors, |vector| {
        let redirection = Redirection::of(&vector.policy);
        let found = under(&vector, &redirection, backend, Until::TheEnd)?;
        Ok(found.iter().map(|difference| format!("{}: {difference}", vector.name)).collect())
    });
    let wrong = wrong.into_iter().collect::<Result<Vec<Vec<String>>, Complaint>>()?.concat();
    if wrong.is_empty() { Ok(()) } else { Err(Complaint::that(wrong.join("\n"))) }
}

/// Makes one vector's connections in a network of their own, whose pod holds `redirection`.
///
/// # Errors
/// When the network could not be made, the redirection not be written, or a connection not be tried.
pub fn under(
    vector: &Vector,
    redirection: &Redirection,
    backend: &(dyn Backend + Sync),
    until: Until,
) -> Result<Vec<Difference>, Complaint> {
    let topology = Topology::raise(vector.policy.mode, &vector.flows)?;
    topology.at(Location::Pod).run(|| redirection.apply(backend))??;
    Ok(differences(&topology, &vector.flows, Rules::There, until)?)
}

/// Makes the connections of `flows` and returns those whose fate is not the recorded one.
///
/// They are made in order, because a few share one five-tuple. Those that nobody should answer are
/// waited for beside the others.
///
/// # Errors
/// When a connection could not be made as it was recorded.
pub fn differences(
    topology: &Topology,
    flows: &[Flow],
    rules: Rules,
    until: Until,
) -> Result<Vec<Difference>, ClientError> {
    let silent = |flow: &&Flow| *flow.wanted(rules) == ConnectionOutcome::Timeout;
    thread::scope(|scope| {
        let waiting: Vec<_> = flows
            .iter()
            .filter(silent)
            .zip(OWN_PORTS..)
            .map(|(flow, port)| scope.spawn(move || check(topology, flow, rules, Some(port))))
            .collect();
        let mut found = Vec::new();
        for flow in flows.iter().filter(|flow| !silent(flow)) {
            found.extend(check(topology, flow, rules, None)?);
            if until == Until::ADifference && !found.is_empty() {
                break;
            }
        }
        for thread in waiting {
            found.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(found)
    })
}

fn check(
    topology: &Topology,
    flow: &Flow,
    rules: Rules,
    port: Option<u16>,
) -> Result<Option<Difference>, ClientError> {
    let wanted = flow.wanted(rules);
    let patience = if *wanted == ConnectionOutcome::Timeout { UNANSWERED_FOR } else { ANSWERED_WITHIN };
    let found = call(flow, port).connect(topology.at(flow.from), patience)?;
    let difference = Difference { id: flow.id.clone(), wanted: wanted.clone(), found };
    Ok((!flow.agrees(wanted, &difference.found)).then_some(difference))
}

/// Makes one connection and tells what became of it.
///
/// # Errors
/// When it could not be made as it is described.
pub fn make(topology: &Topology, flow: &Flow, patience: Duration) -> Result<ConnectionOutcome, ClientError> {
    call(flow, None).connect(topology.at(flow.from), patience)
}

fn call(flow: &Flow, port: Option<u16>) -> Client {
    let source = SourceOptions { address: flow.source, port: flow.source_port.or(port), mark: flow.mark };
    Client { owner: flow.owner, transport: flow.transport, to: flow.to, source }
}

impl Flow {
    /// Is it the same fate?
    ///
    /// Who answered, and where he thinks the connection comes from, must be the same. So must the
    /// original destination, with one exception: for a connection that the rules left alone, it is
    /// there or not depending on whether connection tracking happens to be on for its family, which
    /// no rule of ours decides. It must then be where the caller went.
    pub(crate) fn agrees(&self, wanted: &ConnectionOutcome, found: &ConnectionOutcome) -> bool {
        let (ConnectionOutcome::Answered(wanted), ConnectionOutcome::Answered(found)) = (wanted, found)
        else {
            return wanted == found;
        };
        let left_alone =
            matches!(&self.without_rules, ConnectionOutcome::Answered(answer) if answer.by == wanted.by);
        let same_target = if left_alone {
            found.original.is_none_or(|original| original == self.to)
        } else {
            found.original == wanted.original
        };
        found.by == wanted.by && found.source == wanted.source && same_target
    }
}
