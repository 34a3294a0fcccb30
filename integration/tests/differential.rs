//! Random policies and random connections: nft, iptables-legacy and `trace` never disagree.
//!
//! `GYBE_SEED=17 GYBE_POLICIES=1` tries policy 17 alone; `make differential` takes both.
#![allow(clippy::print_stdout, reason = "the seed of a run, for the next one")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use gybe_integration::differential::{Case, Disagreement, Testbed, first_disagreement};
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Rules, Until, differences};
use gybe_integration::parallel::in_parallel;
use gybe_integration::random_flow;
use gybe_integration::random_policy;
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Flow};
use gybe_netfilter::backend::Backend;
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::nft::Nft;
use gybe_netfilter::policy::{Mode, RedirectPolicy};
use gybe_netfilter::redirection::Redirection;
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Random connections for each policy, in addition to those that every policy gets.
const CONNECTIONS: usize = 100;

/// Concurrent pairs of networks, one for nft and one for legacy. Creating and removing a network takes long, so each
/// network gets many policies.
const LANES: usize = 12;

/// The limit of smaller policies that are tried after a disagreement.
const SHRINKS: usize = 60;

/// The iptables deadline, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Between fork and exec a child holds a copy of every socket of this process, and a port that a copy uses cannot be bound
/// again. Therefore no connection is made while another test writes rules.
static ONE_TEST_AT_A_TIME: Mutex<()> = Mutex::new(());

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).unwrap_or_default();
    if text.is_empty() { otherwise } else { text.parse().unwrap_or_else(|_| panic!("{variable}={text}")) }
}

/// Returns the random number generator for the policy with this number.
fn source(number: u64) -> TestRunner {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

fn policy_and_flows(number: u64) -> (impl ValueTree<Value = RedirectPolicy>, Vec<Flow>) {
    let mut source = source(number);
    let policy = random_policy::policies().new_tree(&mut source).unwrap();
    let flows = vec(random_flow::flows(), CONNECTIONS).new_tree(&mut source).unwrap().current();
    (policy, flows)
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
    let (mut tree, flows) = policy_and_flows(number);
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

/// Returns the cases grouped by the proxy's mode.
fn cases(numbers: Range<u64>) -> Result<Vec<Vec<(u64, Case)>>, Failure> {
    let case = |number| {
        let (policy, flows) = policy_and_flows(number);
        Ok((number, Case::of(policy.current(), &flows, number)?))
    };
    let cases: Vec<(u64, Case)> = numbers.map(case).collect::<Result<_, Failure>>()?;
    let (redirect, tproxy) = cases.into_iter().partition(|(_, case)| case.policy.mode == Mode::Redirect);
    Ok(vec![redirect, tproxy])
}

/// Makes the connections of the cases of one mode; returns the numbers of those with a disagreement.
fn doubtful(cases: &[(u64, Case)], backends: &[&dyn Backend]) -> Result<Vec<u64>, Failure> {
    let Some((_, first)) = cases.first() else { return Ok(Vec::new()) };
    let pair = |_| backends.iter().map(|backend| Testbed::new(first.policy.mode, *backend)).collect();
    let lanes = in_parallel((0..LANES.min(cases.len())).collect(), pair);
    let lanes = lanes.into_iter().collect::<Result<Vec<Vec<Testbed<'_>>>, Failure>>()?;
    let mut doubtful = Vec::new();
    for cases in cases.chunks(LANES) {
        let pairs: Vec<_> = cases.iter().zip(&lanes).collect();
        let written = in_parallel(pairs.clone(), |((_, case), testbeds)| write(case, testbeds));
        written.into_iter().collect::<Result<Vec<()>, Failure>>()?;
        let found = in_parallel(pairs, |((number, case), testbeds)| {
            Ok::<_, Failure>(first_disagreement(case, testbeds)?.map(|_| *number))
        });
        doubtful.extend(found.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten());
    }
    Ok(doubtful)
}

#[test]
fn nft_legacy_and_trace_never_disagree() -> Result<(), Failure> {
    let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (first, policies) = (number("GYBE_SEED", 1), number("GYBE_POLICIES", 200));
    println!("policies {first} to {}: GYBE_SEED={first} GYBE_POLICIES={policies}", first + policies - 1);
    let legacy = Iptables::find(Variant::Legacy)?.with_deadline(PATIENCE);
    let backends: [&dyn Backend; 2] = [&Nft, &legacy];
    let (begun, mut fates, mut second_looks) = (Instant::now(), BTreeMap::new(), 0);
    for cases in cases(first..first + policies)? {
        for flow in
            cases.iter().flat_map(|(_, case)| case.flows.iter().map(|flow| flow.with_rules.to_string()))
        {
            *fates.entry(flow.split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
        }
        for number in doubtful(&cases, &backends)? {
            // conntrack entries of an earlier policy can cause a disagreement: repeat in new networks.
            let case = &cases.iter().find(|(other, _)| *other == number).unwrap().1;
            if let Some(found) = first_disagreement(case, &fresh(case, &backends)?)? {
                let smallest = smallest(found.clone(), number, &backends)?;
                panic!("GYBE_SEED={number} GYBE_POLICIES=1\n{found}\nthe smallest policy found:\n{smallest}");
            }
            println!("policy {number}: agreed about only at the second look");
            second_looks += 1;
        }
    }
    // Bounds the repetitions, behind which an error that depends on the earlier policy could hide.
    assert!(second_looks * 50 <= policies, "{second_looks} of {policies} policies needed a second look");
    let connections: u64 = fates.values().sum();
    assert!(connections >= policies * 100, "{connections} connections for {policies} policies");
    println!(
        "{connections} connections, each with nft, legacy and trace, in {:?}: {fates:?}",
        begun.elapsed()
    );
    Ok(())
}

/// The control: without rules the destination of each connection is known, and the random ones cover all destinations.
#[test]
fn without_rules_random_connections_go_where_they_are_said_to_go() -> Result<(), Failure> {
    let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (number, mode) in [(1, Mode::Redirect), (2, Mode::Tproxy { mark: 1337, route_table: 133 })] {
        let mut flows = vec(random_flow::flows(), 400).new_tree(&mut source(number)).unwrap().current();
        // The address `::6` exists only with a redirection.
        flows.retain(|flow| flow.source.is_none_or(|source| source.is_ipv4()));
        let world = Topology::new(mode, &flows)?;
        let found = differences(&world, &flows, Rules::Absent, Until::End)?;
        assert!(found.is_empty(), "{mode:?}: {} of {}: {found:#?}", found.len(), flows.len());
    }
    for vector in vectors::recorded()? {
        for flow in vector.flows.iter().filter(|flow| flow.mark.is_none()) {
            if let gybe_installer::testnet::outcome::ConnectionOutcome::Answered(answer) = &flow.without_rules
            {
                let said = flow.outcome_without_rules().to_string();
                assert_eq!(said.split(' ').next(), Some(answer.by.as_str()), "{}", flow.id);
            }
        }
    }
    Ok(())
}

#[test]
fn who_answers_each_recorded_flow_is_foretold() -> Result<(), Failure> {
    for vector in vectors::all()? {
        let rules = gybe_netfilter::compile::compile(&vector.policy);
        for flow in vector.flows.iter().filter(|flow| flow.mark.is_none()) {
            let foretold = flow.clone().with_predicted_outcome(&vector.policy, &rules)?;
            let (said, recorded) = (foretold.with_rules.to_string(), flow.with_rules.to_string());
            let by = |text: &str| text.split(' ').next().unwrap().to_owned();
            assert_eq!(by(&said), by(&recorded), "{} {}", vector.name, flow.id);
        }
    }
    Ok(())
}

/// The control of the comparison: it detects a backend that omits a rule, and reports the policy, the packet, and the
/// verdict of each backend's rules.
#[test]
fn a_backend_that_lacks_a_rule_is_found_out() -> Result<(), Failure> {
    let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let named = |vector: &vectors::Vector| vector.name == "inject-default-dual";
    let vector = vectors::all()?.into_iter().find(named).unwrap();
    let legacy = Iptables::find(Variant::Legacy)?.with_deadline(PATIENCE);
    let case = Case::of(vector.policy.clone(), &policy_and_flows(1).1, 1)?;
    let whole = Redirection::of(&case.policy);
    let rules = whole.rules.without("proxy-uid").unwrap();
    let lacking = Redirection { rules, ..whole.clone() };
    for (nft, iptables) in [(&whole, &lacking), (&lacking, &whole)] {
        let mode = case.policy.mode;
        let testbeds = [Testbed::new(mode, &Nft)?, Testbed::new(mode, &legacy)?];
        testbeds
            .iter()
            .zip([nft, iptables])
            .try_for_each(|(testbed, redirection)| testbed.write(redirection))?;
        let report = first_disagreement(&case, &testbeds)?.unwrap().to_string();
        for part in ["policy: RedirectPolicy", "packet: ", "by proxy-uid, so", "nft: ", "iptables-legacy: "] {
            assert!(report.contains(part), "{part:?} in:\n{report}");
        }
        assert!(report.contains("outbound-to-proxy"), "{report}");
    }
    Ok(())
}
