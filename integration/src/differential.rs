//! Makes the same connections under the same policy with each backend's rules, and compares their outcomes with each
//! other and with the prediction from the rules. The callers choose the policies and connections.

use crate::failure::Failure;
use crate::flow_check::{Rules, Until, differences, make};
use crate::predict::{in_the_pod, trace_flow};
use crate::random_flow::{every_port, from_a_clients_address, of_one_five_tuple};
use crate::topology::Topology;
use crate::vectors::{Flow, Location};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{Redirection, remove};
use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::live::LiveRules;
use gybe_netfilter::model::policy::{Mode, RedirectPolicy};
use std::collections::BTreeMap;
use std::time::Duration;
use std::{fmt, thread};

/// How long an answer is waited for to a connection whose outcome is not predicted.
const UNPREDICTED_PATIENCE: Duration = Duration::from_secs(1);

/// How long an answer is waited for when a connection is made again because two backends differ.
const REPEATED_PATIENCE: Duration = Duration::from_secs(5);

/// A policy and connections that are made under it.
#[derive(Debug, Clone)]
pub struct Case {
    /// The policy.
    pub policy: RedirectPolicy,
    /// Its rules in the recorded pod.
    pub rules: LiveRules,
    /// Connections with the predicted outcome.
    pub flows: Vec<Flow>,
    /// Connections that are not predicted: only the backends' outcomes are compared.
    pub unpredicted: Vec<Flow>,
}

impl Case {
    /// Returns the policy with these connections, and those that every policy gets: `number` keeps their ports apart
    /// from another policy's.
    ///
    /// # Errors
    /// Never, as long as the prediction names valid interfaces.
    pub fn of(policy: RedirectPolicy, flows: &[Flow], number: u64) -> Result<Self, Failure> {
        let rules = in_the_pod(&compile(&policy))?;
        let mark = if let Mode::Tproxy { mark, .. } = policy.mode { mark } else { 1337 };
        let all = of_one_five_tuple(number).into_iter().chain(flows.iter().cloned()).enumerate();
        let numbered = all.map(|(number, flow)| Flow { id: format!("#{number} {}", flow.id), ..flow });
        let flows =
            numbered.map(|flow| flow.with_predicted_outcome(&policy, &rules)).collect::<Result<_, _>>()?;
        Ok(Self { policy, rules, flows, unpredicted: from_a_clients_address(mark) })
    }
}

/// The recorded network, in which one backend writes one policy's rules after the other's.
pub struct Testbed<'b> {
    backend: &'b dyn Backend,
    topology: Topology,
}

impl<'b> Testbed<'b> {
    /// Creates the network with a proxy of that mode.
    ///
    /// # Errors
    /// When the process may not create it.
    pub fn new(mode: Mode, backend: &'b dyn Backend) -> Result<Self, Failure> {
        Ok(Self { backend, topology: Topology::new(mode, &every_port())? })
    }

    /// Replaces the previous redirection with this one.
    ///
    /// # Errors
    /// When the rules read back differ.
    pub fn write(&self, redirection: &Redirection) -> Result<(), Failure> {
        let work = || {
            // Addresses and routes of another policy would stay.
            remove(self.backend)?;
            redirection.apply(self.backend)?;
            redirection.differences(self.backend, &Presence::look()?)
        };
        match self.topology.at(Location::Pod).run(work)??.first() {
            None => Ok(()),
            Some(first) => {
                let name = self.backend.name();
                Err(Failure::new(format!("{name} wrote something else: {first}\n{redirection:?}")))
            }
        }
    }

    /// Returns the number of packets that each of Gybe's rules matched.
    fn counters(&self) -> Result<BTreeMap<String, u64>, Failure> {
        let inventory = self.topology.at(Location::Pod).run(|| self.backend.inspect())??;
        let of_part = |part: &gybe_netfilter::model::inventory::Part| {
            let chain = part.name.clone();
            let named = |item: &gybe_netfilter::model::inventory::Item| {
                Some((format!("{chain}/{}", item.id), item.packets?))
            };
            part.items.iter().filter_map(named).collect::<Vec<_>>()
        };
        let mut counters = BTreeMap::new();
        for (name, packets) in inventory.parts.iter().flat_map(of_part) {
            *counters.entry(name).or_default() += packets;
        }
        Ok(counters)
    }

    /// Makes one connection again and returns its outcome and the rules that matched.
    fn repeat(&self, flow: &Flow) -> Result<BackendOutcome, Failure> {
        let before = self.counters()?;
        let outcome = make(&self.topology, flow, REPEATED_PATIENCE)?;
        let has_matched = |(name, packets): &(String, u64)| *packets > before.get(name).copied().unwrap_or(0);
        let rules = self.counters()?.into_iter().filter(has_matched).map(|(name, _)| name).collect();
        Ok(BackendOutcome { backend: self.backend.name(), outcome, rules })
    }
}

/// The outcome of a connection with one backend's rules.
#[derive(Debug, Clone)]
pub struct BackendOutcome {
    backend: &'static str,
    outcome: ConnectionOutcome,
    rules: Vec<String>,
}

/// A connection whose outcomes differ.
#[derive(Debug, Clone)]
pub struct Disagreement {
    pub policy: RedirectPolicy,
    pub flow: Flow,
    predicted: String,
    outcomes: Vec<BackendOutcome>,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "policy: {:?}\nconnection: {}", self.policy, self.flow.id)?;
        writeln!(f, "packet: {:?}\ntrace: {}", self.flow.packet(), self.predicted)?;
        for BackendOutcome { backend, outcome, rules } in &self.outcomes {
            writeln!(f, "{backend}: {outcome}, matched by {}", rules.join(", "))?;
        }
        Ok(())
    }
}

/// Makes the case's connections on every testbed and returns the first one whose outcomes or prediction differ.
///
/// # Errors
/// When a connection could not be made.
pub fn first_disagreement(case: &Case, testbeds: &[Testbed<'_>]) -> Result<Option<Disagreement>, Failure> {
    let (found, difference) = thread::scope(|scope| {
        let difference = scope.spawn(|| first_difference(case, testbeds));
        let one =
            |topology| move || differences(topology, &case.flows, Rules::Present, Until::FirstDifference);
        let threads: Vec<_> = testbeds.iter().map(|testbed| scope.spawn(one(&testbed.topology))).collect();
        (threads.into_iter().map(join).collect::<Vec<_>>(), join(difference))
    });
    for found in found {
        let found = found?;
        let flow = found.first().and_then(|one| case.flows.iter().find(|flow| flow.id == one.id));
        if let Some(flow) = flow {
            return Ok(Some(disagreement_about(case, flow, testbeds)?));
        }
    }
    difference?.map(|flow| disagreement_about(case, flow, testbeds)).transpose()
}

/// Returns the first connection without a prediction about which the testbeds differ.
fn first_difference<'c>(case: &'c Case, testbeds: &[Testbed<'_>]) -> Result<Option<&'c Flow>, Failure> {
    for flow in &case.unpredicted {
        if !agree(flow, testbeds, UNPREDICTED_PATIENCE)? && !agree(flow, testbeds, REPEATED_PATIENCE)? {
            return Ok(Some(flow));
        }
    }
    Ok(None)
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Reports whether the connection has the same outcome on all testbeds.
fn agree(flow: &Flow, testbeds: &[Testbed<'_>], patience: Duration) -> Result<bool, Failure> {
    let outcomes: Vec<Result<ConnectionOutcome, _>> = thread::scope(|scope| {
        let make = |testbed| move || make(testbed, flow, patience);
        let threads: Vec<_> = testbeds.iter().map(|testbed| scope.spawn(make(&testbed.topology))).collect();
        threads.into_iter().map(join).collect()
    });
    let outcomes = outcomes.into_iter().collect::<Result<Vec<ConnectionOutcome>, _>>()?;
    Ok(outcomes.windows(2).all(|pair| matches!(pair, [one, other] if flow.agrees(one, other))))
}

fn disagreement_about(case: &Case, flow: &Flow, testbeds: &[Testbed<'_>]) -> Result<Disagreement, Failure> {
    let trace = trace_flow(&case.rules, flow)?;
    let rule = trace.rule().unwrap_or("no rule");
    let predicted = match case.unpredicted.iter().any(|other| other.id == flow.id) {
        true => format!("{:?} by {rule}", trace.first),
        false => format!("{:?} by {rule}, so {}", trace.first, flow.with_rules),
    };
    let outcomes = testbeds.iter().map(|testbed| testbed.repeat(flow)).collect::<Result<_, _>>()?;
    Ok(Disagreement { policy: case.policy.clone(), flow: flow.clone(), predicted, outcomes })
}
