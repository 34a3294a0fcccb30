//! Makes the connections of the flow vectors and compares their outcomes.

use crate::failure::Failure;
use crate::namespace::in_parallel;
use crate::topology::Topology;
use crate::vectors::{Flow, Location, Vector};
use gybe_demo::testnet::client::{Client, ClientError, SourceOptions};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::redirection::Redirection;
use std::time::Duration;
use std::{fmt, thread};

/// How long a connection that should be answered may take. It takes less than a millisecond on a quiet machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// How long a test waits for a reply that must not come.
const UNANSWERED_FOR: Duration = Duration::from_secs(1);

/// Source ports below the kernel's own range (`ip_local_port_range`, from 32768), so that concurrent
/// connections never get the same one.
const SOURCE_PORTS: u16 = 20000;

/// A connection whose outcome is not the expected one.
#[derive(Debug, Clone)]
pub struct Difference {
    pub id: String,
    pub expected: ConnectionOutcome,
    pub found: ConnectionOutcome,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} instead of {}", self.id, self.found, self.expected)
    }
}

/// Whether the pod has the rules of its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    Present,
    Absent,
}

impl Flow {
    pub fn expected(&self, rules: Rules) -> &ConnectionOutcome {
        match rules {
            Rules::Present => &self.with_rules,
            Rules::Absent => &self.without_rules,
        }
    }
}

/// When to stop making connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    End,
    /// When an outcome is not the expected one.
    FirstDifference,
}

/// Checks every vector, each in a network of its own, with rules written by `backend`.
///
/// # Errors
/// With every difference; or when a network, its rules or a connection could not be made.
pub fn check_vectors(vectors: Vec<Vector>, backend: &(dyn Backend + Sync)) -> Result<(), Failure> {
    let wrong = in_parallel(vectors, |vector| {
        let redirection = Redirection::of(&vector.policy);
        let found = check_vector(&vector, &redirection, backend, Until::End)?;
        Ok(found.iter().map(|difference| format!("{}: {difference}", vector.name)).collect())
    });
    let wrong = wrong.into_iter().collect::<Result<Vec<Vec<String>>, Failure>>()?.concat();
    if wrong.is_empty() { Ok(()) } else { Err(Failure::new(wrong.join("\n"))) }
}

/// Makes one vector's connections in a network of its own, whose pod has `redirection`.
///
/// # Errors
/// When the network, its rules or a connection could not be made.
pub fn check_vector(
    vector: &Vector,
    redirection: &Redirection,
    backend: &(dyn Backend + Sync),
    until: Until,
) -> Result<Vec<Difference>, Failure> {
    let topology = Topology::new(vector.policy.mode, &vector.flows)?;
    topology.at(Location::Pod).run(|| redirection.apply(backend))??;
    Ok(differences(&topology, &vector.flows, Rules::Present, until)?)
}

/// Makes the connections of `flows` and returns those whose outcome is not the expected one.
///
/// They are made in order, because a few share one five-tuple. Those that should time out wait in threads of
/// their own.
///
/// # Errors
/// When a connection could not be made as it was recorded.
pub fn differences(
    topology: &Topology,
    flows: &[Flow],
    rules: Rules,
    until: Until,
) -> Result<Vec<Difference>, ClientError> {
    let silent = |flow: &&Flow| *flow.expected(rules) == ConnectionOutcome::Timeout;
    thread::scope(|scope| {
        let waiting: Vec<_> = flows
            .iter()
            .filter(silent)
            .zip(SOURCE_PORTS..)
            .map(|(flow, port)| scope.spawn(move || check(topology, flow, rules, Some(port))))
            .collect();
        let mut found = Vec::new();
        for flow in flows.iter().filter(|flow| !silent(flow)) {
            found.extend(check(topology, flow, rules, None)?);
            if until == Until::FirstDifference && !found.is_empty() {
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
    let expected = flow.expected(rules);
    let patience = if *expected == ConnectionOutcome::Timeout { UNANSWERED_FOR } else { ANSWERED_WITHIN };
    let found = call(flow, port).connect(topology.at(flow.from), patience)?;
    let difference = Difference { id: flow.id.clone(), expected: expected.clone(), found };
    Ok((!flow.agrees(expected, &difference.found)).then_some(difference))
}

/// Makes one connection and returns its outcome.
///
/// # Errors
/// When it could not be made as described.
pub fn make(topology: &Topology, flow: &Flow, patience: Duration) -> Result<ConnectionOutcome, ClientError> {
    call(flow, None).connect(topology.at(flow.from), patience)
}

fn call(flow: &Flow, port: Option<u16>) -> Client {
    let source = SourceOptions { address: flow.source, port: flow.source_port.or(port), mark: flow.mark };
    Client { owner: flow.owner, transport: flow.transport, to: flow.to, source }
}

impl Flow {
    /// Reports whether two outcomes of this flow are the same: the listener and the source address that it sees,
    /// and the original destination.
    ///
    /// An original destination of a connection that the rules leave alone depends on whether connection tracking
    /// is active for its family, which no rule of Gybe's decides. If present, it is the flow's destination.
    pub fn agrees(&self, expected: &ConnectionOutcome, found: &ConnectionOutcome) -> bool {
        let (ConnectionOutcome::Replied(expected), ConnectionOutcome::Replied(found)) = (expected, found)
        else {
            return expected == found;
        };
        let left_alone =
            matches!(&self.without_rules, ConnectionOutcome::Replied(reply) if reply.by == expected.by);
        let same_target = if left_alone {
            found.original.is_none_or(|original| original == self.to)
        } else {
            found.original == expected.original
        };
        found.by == expected.by && found.source == expected.source && same_target
    }
}
