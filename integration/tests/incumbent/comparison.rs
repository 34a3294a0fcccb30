//! What the tests here share: their numbers, the random connections, and the repetition of a doubtful comparison.

use gybe_integration::differential::Case;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Rules, Until, differences};
use gybe_integration::parallel::in_parallel_at_most;
use gybe_integration::random_flow;
use gybe_integration::topology::Topology;
use gybe_integration::vectors::Flow;
use gybe_netfilter::policy::RedirectPolicy;
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
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
    Ok(Topology::new(policy.mode, &random_flow::every_port())?)
}

/// Counts the connections that were compared.
pub(crate) static CONNECTIONS_MADE: AtomicUsize = AtomicUsize::new(0);

/// Makes the connections; returns those with another outcome than the prediction.
pub(crate) fn wrong_connections(
    case: &Case,
    topology: &Topology,
    rules: Rules,
    compared: Compared,
) -> Result<Vec<String>, Failure> {
    let is_compared = |flow: &&Flow| compared == Compared::BothFamilies || flow.to.is_ipv4();
    // The address `::6` exists only with a redirection.
    let exists = |flow: &&Flow| rules == Rules::Present || flow.source.is_none_or(|source| source.is_ipv4());
    let flows: Vec<Flow> = case.flows.iter().filter(is_compared).filter(exists).cloned().collect();
    CONNECTIONS_MADE.fetch_add(flows.len(), Ordering::Relaxed);
    let found = differences(topology, &flows, rules, Until::End)?;
    Ok(found.iter().map(ToString::to_string).collect())
}

/// Compares every numbered item, and once more when the first comparison found a difference: a busy machine may delay
/// a connection. Panics with every difference that remains.
pub(crate) fn compare_all(
    what: &str,
    numbers: std::ops::Range<u64>,
    compare: impl Fn(u64) -> Result<Vec<String>, Failure> + Sync,
) -> Result<(), Failure> {
    let count = numbers.end - numbers.start;
    let repeated = AtomicUsize::new(0);
    let found = in_parallel_at_most(CONCURRENT, numbers.collect(), |number| {
        if compare(number)?.is_empty() {
            return Ok(Vec::new());
        }
        repeated.fetch_add(1, Ordering::Relaxed);
        compare(number)
    });
    let found = found.into_iter().collect::<Result<Vec<Vec<String>>, Failure>>()?.concat();
    let (made, repeated) = (CONNECTIONS_MADE.load(Ordering::Relaxed), repeated.into_inner());
    println!(
        "{count} {what}: {made} connections so far, {} differences, {repeated} compared twice",
        found.len()
    );
    assert!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}
