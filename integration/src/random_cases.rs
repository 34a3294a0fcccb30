//! Random policies with random connections, by number: the same number gives the same case again. Compares backends
//! and `trace` on many of them, and shrinks the policy of a disagreement.

use crate::differential::{Case, Disagreement, Testbed, first_disagreement};
use crate::failure::Failure;
use crate::parallel::in_parallel;
use crate::vectors::Flow;
use crate::{random_flow, random_policy};
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::model::policy::{Mode, RedirectPolicy};
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Random connections for each policy, in addition to those that every policy gets.
const CONNECTIONS: usize = 100;

/// Concurrent groups of networks, each with one network for each backend. Creating and removing a network takes long,
/// so each network gets many policies.
const LANES: usize = 12;

/// The limit of smaller policies that are tried after a disagreement.
const SHRINKS: usize = 60;

/// What was compared without a disagreement.
#[derive(Debug, Clone, Default)]
pub struct Comparison {
    /// The number of policies.
    pub policies: usize,
    /// The number of connections by their predicted listener.
    pub connections: BTreeMap<String, usize>,
    /// The numbers of the policies that were compared again, in new networks.
    pub repeated: Vec<u64>,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policies, connections, repeated } = self;
        let sum: usize = connections.values().sum();
        write!(f, "{policies} policies, {sum} connections: {connections:?}; compared again: {repeated:?}")
    }
}

/// Returns the random number generator of a number.
///
pub fn source(number: u64) -> TestRunner {
    let mut seed = [0; 32];
    for (byte, of_number) in seed.iter_mut().zip(number.to_le_bytes()) {
        *byte = of_number;
    }
    TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Draws the policy and the connections of a number.
///
/// # Errors
/// When the strategies yield no value.
pub fn policy_and_flows(number: u64) -> Result<(impl ValueTree<Value = RedirectPolicy>, Vec<Flow>), Failure> {
    let mut source = source(number);
    let none = |reason| Failure::new(format!("no value for {number}: {reason}"));
    let policy = random_policy::policies().new_tree(&mut source).map_err(none)?;
    let flows = vec(random_flow::flows(), CONNECTIONS).new_tree(&mut source).map_err(none)?.current();
    Ok((policy, flows))
}

/// Returns the cases of these numbers.
///
/// # Errors
/// As [`policy_and_flows`].
pub fn cases(numbers: Range<u64>) -> Result<Vec<(u64, Case)>, Failure> {
    let case = |number| {
        let (policy, flows) = policy_and_flows(number)?;
        Ok((number, Case::of(policy.current(), &flows, number)?))
    };
    numbers.map(case).collect()
}

/// Makes the connections of all cases with the rules of each backend.
///
/// # Errors
/// With the first disagreement between the backends and `trace`, and the smallest policy found that has it; or when a
/// connection could not be made.
pub fn compare(cases: Vec<(u64, Case)>, backends: &[&dyn Backend]) -> Result<Comparison, Failure> {
    let mut comparison = Comparison { policies: cases.len(), ..Comparison::default() };
    for flow in cases.iter().flat_map(|(_, case)| &case.flows) {
        let outcome = flow.with_rules.to_string();
        let listener = outcome.split(' ').next().unwrap_or_default();
        *comparison.connections.entry(listener.to_owned()).or_default() += 1;
    }
    // A network is for proxies of one mode.
    let (redirect, tproxy): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|(_, case)| case.policy.mode == Mode::Redirect);
    for cases in [redirect, tproxy] {
        let doubtful = doubtful(&cases, backends)?;
        for (number, case) in cases.iter().filter(|(number, _)| doubtful.contains(number)) {
            // conntrack entries of an earlier policy can cause a disagreement: repeat in new networks.
            if let Some(found) = first_disagreement(case, &fresh(case, backends)?)? {
                let smallest = smallest(found.clone(), *number, backends)?;
                return Err(Failure::new(format!(
                    "GYBE_SEED={number} GYBE_POLICIES=1\n{found}\nthe smallest policy found:\n{smallest}"
                )));
            }
            comparison.repeated.push(*number);
        }
    }
    Ok(comparison)
}

/// Makes the connections of the cases of one mode; returns the numbers of those with a disagreement.
fn doubtful(cases: &[(u64, Case)], backends: &[&dyn Backend]) -> Result<Vec<u64>, Failure> {
    let Some((_, first)) = cases.first() else { return Ok(Vec::new()) };
    let group = |_| backends.iter().map(|backend| Testbed::new(first.policy.mode, *backend)).collect();
    let lanes = in_parallel((0..LANES.min(cases.len())).collect(), group);
    let lanes = lanes.into_iter().collect::<Result<Vec<Vec<Testbed<'_>>>, Failure>>()?;
    let mut doubtful = Vec::new();
    for cases in cases.chunks(LANES) {
        let groups: Vec<_> = cases.iter().zip(&lanes).collect();
        let written = in_parallel(groups.clone(), |((_, case), testbeds)| write(case, testbeds));
        written.into_iter().collect::<Result<Vec<()>, Failure>>()?;
        let found = in_parallel(groups, |((number, case), testbeds)| {
            Ok::<_, Failure>(first_disagreement(case, testbeds)?.map(|_| *number))
        });
        doubtful.extend(found.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten());
    }
    Ok(doubtful)
}

/// Creates new networks for one case, one for each backend.
fn fresh<'b>(case: &Case, backends: &[&'b dyn Backend]) -> Result<Vec<Testbed<'b>>, Failure> {
    let testbeds: Vec<Testbed<'b>> =
        backends.iter().map(|backend| Testbed::new(case.policy.mode, *backend)).collect::<Result<_, _>>()?;
    write(case, &testbeds)?;
    Ok(testbeds)
}

fn write(case: &Case, testbeds: &[Testbed<'_>]) -> Result<(), Failure> {
    let redirection = Redirection::of(&case.policy);
    testbeds.iter().try_for_each(|testbed| testbed.write(&redirection))
}

/// Shrinks the policy as far as the disagreement about the connection remains.
fn smallest(first: Disagreement, number: u64, backends: &[&dyn Backend]) -> Result<Disagreement, Failure> {
    let (mut tree, flows) = policy_and_flows(number)?;
    let (mut smallest, mut smaller) = (first, tree.simplify());
    for _ in 0..SHRINKS {
        if !smaller {
            break;
        }
        let case = Case::of(tree.current(), &flows, number)?;
        let found = first_disagreement(&case, &fresh(&case, backends)?)?;
        smaller = if found.is_some() { tree.simplify() } else { tree.complicate() };
        smallest = found.unwrap_or(smallest);
    }
    Ok(smallest)
}
