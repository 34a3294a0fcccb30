//! Gybe beside Istio's own programs: the same arguments for `istio-iptables` and `gybe init`, the same pods for
//! `istio-cni` and `gybe-cni`, compared by connections; the same ambient pods for both agents.
//! `integration/incumbent/setup.sh` builds Istio's programs.
//!
//! `make -C integration incumbent SEED=17 SETS=1 PODS=0` tries argument set 17 alone.

#![allow(clippy::print_stdout, reason = "the seed of a run, for the next one")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod ambient;
mod ambient_faults;
mod arguments;
#[path = "../repair/clients.rs"]
#[allow(dead_code, reason = "the tests of repair use the rest")]
mod clients;
#[path = "../repair/cluster.rs"]
#[allow(dead_code, reason = "the tests of repair use the rest")]
mod cluster;
#[path = "../repair/node.rs"]
#[allow(dead_code, reason = "the tests of repair use the rest")]
mod node;
mod pods;
mod side;
mod spellings;

use gybe_integration::differential::Case;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Rules, Until, differences};
use gybe_integration::namespace::in_parallel_at_most;
use gybe_integration::random_flow;
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{Flow, Location};
use gybe_netfilter::model::policy::istio::PASSTHROUGH_V6;
use gybe_netfilter::model::policy::{Families, RedirectPolicy};
use gybe_test_support::wait_until;
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::net::UdpSocket;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Random connections for each policy, in addition to those that every policy gets.
const CONNECTIONS: usize = 60;

/// Networks that are used at the same time.
const CONCURRENT: usize = 8;

/// Which families' connections are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compared {
    BothFamilies,
    /// Istio's nft engine captures IPv6 that is off (docs/ISTIO.md, D1).
    V4,
}

/// Returns the number in this variable.
pub(crate) fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).unwrap_or_default();
    if text.is_empty() { otherwise } else { text.parse().unwrap_or_else(|_| panic!("{variable}={text}")) }
}

/// Draws one value; the same number draws the same value.
pub(crate) fn drawn<T>(number: u64, strategy: &impl Strategy<Value = T>) -> T {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    strategy.new_tree(&mut runner).unwrap().current()
}

/// Returns the policy with random connections and their predicted outcomes.
pub(crate) fn case(policy: RedirectPolicy, number: u64) -> Result<Case, Failure> {
    Case::of(policy, &drawn(number, &vec(random_flow::flows(), CONNECTIONS)), number)
}

/// Makes a network for the policy.
pub(crate) fn network(policy: &RedirectPolicy) -> Result<Topology, Failure> {
    Topology::new(policy.mode, &random_flow::every_port())
}

/// Counts the connections that were compared.
pub(crate) static CONNECTIONS_MADE: AtomicUsize = AtomicUsize::new(0);

/// A network whose rules one program has written.
pub(crate) struct Written {
    /// Names the item, the program and its input.
    pub(crate) what: String,
    pub(crate) case: Case,
    pub(crate) topology: Topology,
    /// Why the program did not write what it should, if it did not.
    pub(crate) failure: Option<String>,
    /// Whether the pod is redirected.
    pub(crate) rules: Rules,
    pub(crate) compared: Compared,
}

impl Written {
    /// Makes the connections; returns those with another outcome than the prediction.
    pub(crate) fn differences(&self) -> Result<Vec<String>, Failure> {
        if let Some(failure) = &self.failure {
            return Ok(vec![format!("{}\n  {failure}", self.what)]);
        }
        let is_compared = |flow: &&Flow| self.compared == Compared::BothFamilies || flow.to.is_ipv4();
        // The address `::6` exists only with a redirection.
        let exists =
            |flow: &&Flow| self.rules == Rules::Present || flow.source.is_none_or(|source| source.is_ipv4());
        let flows: Vec<Flow> = self.case.flows.iter().filter(is_compared).filter(exists).cloned().collect();
        if self.rules == Rules::Present && self.case.policy.families == Families::V4AndV6 {
            wait_for_passthrough_address(&self.topology)?;
        }
        CONNECTIONS_MADE.fetch_add(flows.len(), Ordering::Relaxed);
        let found = differences(&self.topology, &flows, self.rules, Until::End)?;
        Ok(found.iter().map(|found| format!("{}\n  {found}", self.what)).collect())
    }
}

/// `istio-iptables` does not wait for the kernel's check that no other host has the address.
fn wait_for_passthrough_address(topology: &Topology) -> Result<(), Failure> {
    let can_bind = || UdpSocket::bind((PASSTHROUGH_V6, 0)).is_ok();
    Ok(topology.at(Location::Pod).run(|| wait_until("the address ::6 can be bound", can_bind))?)
}

/// Compares every numbered item, and once more when the first comparison found a difference: a busy machine may delay
/// a connection. Panics with every difference that remains.
pub(crate) fn compare_all(
    what: &str,
    numbers: Range<u64>,
    write: impl Fn(u64) -> Result<Vec<Written>, Failure> + Sync,
) -> Result<(), Failure> {
    let numbers: Vec<u64> = numbers.collect();
    let first = doubtful(&numbers, &write)?;
    let again: Vec<u64> = first.iter().map(|(number, _)| *number).collect();
    let found = doubtful(&again, &write)?;
    let made = CONNECTIONS_MADE.load(Ordering::Relaxed);
    println!(
        "{} {what}: {made} connections so far, {} with differences, {} compared twice",
        numbers.len(),
        found.len(),
        again.len()
    );
    let found: Vec<String> = found.into_iter().flat_map(|(_, found)| found).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

/// Returns the numbers with differences. Between fork and exec a child holds a copy of every socket of this process,
/// and a port that a copy uses cannot be bound again, so no connection is made while programs start.
fn doubtful(
    numbers: &[u64],
    write: &(impl Fn(u64) -> Result<Vec<Written>, Failure> + Sync),
) -> Result<Vec<(u64, Vec<String>)>, Failure> {
    let mut found = Vec::new();
    for numbers in numbers.chunks(CONCURRENT) {
        let written =
            in_parallel_at_most(CONCURRENT, numbers.to_vec(), |number| Ok((number, write(number)?)));
        let written = written.into_iter().collect::<Result<Vec<(u64, Vec<Written>)>, Failure>>()?;
        let compared = in_parallel_at_most(CONCURRENT, written, |(number, written)| {
            let found = written.iter().map(Written::differences).collect::<Result<Vec<_>, Failure>>()?;
            Ok((number, found.concat()))
        });
        let compared = compared.into_iter().collect::<Result<Vec<(u64, Vec<String>)>, Failure>>()?;
        found.extend(compared.into_iter().filter(|(_, found)| !found.is_empty()));
    }
    Ok(found)
}
