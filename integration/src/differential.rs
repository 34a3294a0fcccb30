//! The same connections under the same policy, its rules written by nft, by iptables-legacy and read
//! by `trace`: do they agree? Which policies and connections are tried is not decided here.

use crate::failure::Failure;
use crate::flow_check::{Rules, Until, differences, make};
use crate::predict::trace_flow;
use crate::random_flow::{every_port, from_a_clients_address, of_one_five_tuple};
use crate::topology::Topology;
use crate::vectors::{Flow, Location};
use gybe_installer::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::compile::compile;
use gybe_netfilter::policy::{Mode, RedirectPolicy};
use gybe_netfilter::presence::Presence;
use gybe_netfilter::redirection::{Redirection, remove};
use gybe_netfilter::ruleset::Ruleset;
use std::collections::BTreeMap;
use std::fmt;
use std::thread;
use std::time::Duration;

/// How long a connection is given whose fate nobody foretells.
const UNFORETOLD: Duration = Duration::from_secs(1);

/// How long it is given once more when two backends do not agree about it.
const CAREFULLY: Duration = Duration::from_secs(5);

/// A policy and connections that are made under it.
#[derive(Debug, Clone)]
pub struct Case {
    /// The policy.
    pub policy: RedirectPolicy,
    /// What `trace` goes by.
    pub rules: Ruleset,
    /// Connections with the fate that `trace` foretells.
    pub flows: Vec<Flow>,
    /// Connections whose fate the backends have to agree about among themselves.
    pub unforetold: Vec<Flow>,
}

impl Case {
    /// The policy with these connections, and those that every policy gets: `number` keeps them from
    /// being taken for another policy's.
    ///
    /// # Errors
    /// Never, as long as `foretell` names real interfaces.
    pub fn of(policy: RedirectPolicy, flows: &[Flow], number: u64) -> Result<Self, Failure> {
        let rules = compile(&policy);
        let mark = if let Mode::Tproxy { mark, .. } = policy.mode { mark } else { 1337 };
        let all = of_one_five_tuple(number).into_iter().chain(flows.iter().cloned()).enumerate();
        let numbered = all.map(|(number, flow)| Flow { id: format!("#{number} {}", flow.id), ..flow });
        let flows =
            numbered.map(|flow| flow.with_predicted_outcome(&policy, &rules)).collect::<Result<_, _>>()?;
        Ok(Self { policy, rules, flows, unforetold: from_a_clients_address(mark) })
    }
}

/// The recorded network, in which one backend writes one policy's rules after the other's.
pub struct Testbed<'b> {
    backend: &'b dyn Backend,
    world: Topology,
}

impl<'b> Testbed<'b> {
    /// Raises it for a proxy of that mode.
    ///
    /// # Errors
    /// When the process or the kernel cannot.
    pub fn new(mode: Mode, backend: &'b dyn Backend) -> Result<Self, Failure> {
        Ok(Self { backend, world: Topology::new(mode, &every_port())? })
    }

    /// Writes `redirection` in place of what was written before.
    ///
    /// # Errors
    /// When it is not what is there afterwards.
    pub fn write(&self, redirection: &Redirection) -> Result<(), Failure> {
        let work = || {
            // Addresses and routes of another policy would stay.
            remove(self.backend)?;
            redirection.apply(self.backend)?;
            redirection.differences(self.backend, &Presence::look()?)
        };
        match self.world.at(Location::Pod).run(work)??.first() {
            None => Ok(()),
            Some(first) => {
                let name = self.backend.name();
                Err(Failure::new(format!("{name} wrote something else: {first}\n{redirection:?}")))
            }
        }
    }

    /// How often each of our rules was met.
    fn counters(&self) -> Result<BTreeMap<String, u64>, Failure> {
        let inventory = self.world.at(Location::Pod).run(|| self.backend.inspect())??;
        let of_part = |part: &gybe_netfilter::inventory::Part| {
            let chain = part.name.clone();
            let named = |item: &gybe_netfilter::inventory::Item| {
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

    /// Makes one connection once more: what becomes of it, and which rules it meets.
    fn testimony(&self, flow: &Flow) -> Result<Testimony, Failure> {
        let before = self.counters()?;
        let fate = make(&self.world, flow, CAREFULLY)?;
        let met = |(name, packets): &(String, u64)| *packets > before.get(name).copied().unwrap_or(0);
        let rules = self.counters()?.into_iter().filter(met).map(|(name, _)| name).collect();
        Ok(Testimony { backend: self.backend.name(), fate, rules })
    }
}

/// What one backend's rules did to a connection.
#[derive(Debug, Clone)]
pub struct Testimony {
    backend: &'static str,
    fate: ConnectionOutcome,
    rules: Vec<String>,
}

/// A connection about which not all are of one opinion.
#[derive(Debug, Clone)]
pub struct Disagreement {
    /// Under which policy.
    pub policy: RedirectPolicy,
    /// Which connection.
    pub flow: Flow,
    foretold: String,
    testimonies: Vec<Testimony>,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "policy: {:?}\nconnection: {}", self.policy, self.flow.id)?;
        writeln!(f, "packet: {:?}\ntrace: {}", self.flow.packet(), self.foretold)?;
        for Testimony { backend, fate, rules } in &self.testimonies {
            writeln!(f, "{backend}: {fate}, having met {}", rules.join(", "))?;
        }
        Ok(())
    }
}

/// Makes the case's connections on every testbed; the first one about which they and `trace` differ.
///
/// # Errors
/// When a connection could not be made.
pub fn first_disagreement(case: &Case, testbeds: &[Testbed<'_>]) -> Result<Option<Disagreement>, Failure> {
    let (found, quarrel) = thread::scope(|scope| {
        let quarrel = scope.spawn(|| first_quarrel(case, testbeds));
        let one = |world| move || differences(world, &case.flows, Rules::Present, Until::FirstDifference);
        let threads: Vec<_> = testbeds.iter().map(|testbed| scope.spawn(one(&testbed.world))).collect();
        (threads.into_iter().map(joined).collect::<Vec<_>>(), joined(quarrel))
    });
    for found in found {
        let found = found?;
        let flow = found.first().and_then(|one| case.flows.iter().find(|flow| flow.id == one.id));
        if let Some(flow) = flow {
            return Ok(Some(examined(case, flow, testbeds)?));
        }
    }
    quarrel?.map(|flow| examined(case, flow, testbeds)).transpose()
}

/// The first connection that nobody foretells and about which the testbeds differ.
fn first_quarrel<'c>(case: &'c Case, testbeds: &[Testbed<'_>]) -> Result<Option<&'c Flow>, Failure> {
    for flow in &case.unforetold {
        if !agree(flow, testbeds, UNFORETOLD)? && !agree(flow, testbeds, CAREFULLY)? {
            return Ok(Some(flow));
        }
    }
    Ok(None)
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Does the same become of the connection on all testbeds?
fn agree(flow: &Flow, testbeds: &[Testbed<'_>], patience: Duration) -> Result<bool, Failure> {
    let fates: Vec<Result<ConnectionOutcome, _>> = thread::scope(|scope| {
        let make = |testbed| move || make(testbed, flow, patience);
        let threads: Vec<_> = testbeds.iter().map(|testbed| scope.spawn(make(&testbed.world))).collect();
        threads.into_iter().map(joined).collect()
    });
    let fates = fates.into_iter().collect::<Result<Vec<ConnectionOutcome>, _>>()?;
    Ok(fates.windows(2).all(|pair| matches!(pair, [one, other] if flow.agrees(one, other))))
}

fn examined(case: &Case, flow: &Flow, testbeds: &[Testbed<'_>]) -> Result<Disagreement, Failure> {
    let trace = trace_flow(&case.rules, flow)?;
    let rule = trace.decided_by.map_or("no rule", |rule| rule.0);
    let foretold = match case.unforetold.iter().any(|other| other.id == flow.id) {
        true => format!("{:?} by {rule}", trace.outcome),
        false => format!("{:?} by {rule}, so {}", trace.outcome, flow.with_rules),
    };
    let testimonies = testbeds.iter().map(|testbed| testbed.testimony(flow)).collect::<Result<_, _>>()?;
    Ok(Disagreement { policy: case.policy.clone(), flow: flow.clone(), foretold, testimonies })
}
