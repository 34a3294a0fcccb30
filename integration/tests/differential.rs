//! Random policies and random connections: nft, iptables-legacy and `trace` never disagree.
//!
//! `GYBE_SEED=17 GYBE_POLICIES=1` tries policy 17 alone; `make differential` takes both.
#![allow(clippy::print_stdout, reason = "the seed of a run, for the next one")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up must stop")]

use gybe_integration::callers::callers;
use gybe_integration::complaint::Complaint;
use gybe_integration::crowd::side_by_side;
use gybe_integration::differential::{Case, Disagreement, Stand, first_disagreement};
use gybe_integration::run::{Rules, Until, differences};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Flow};
use gybe_integration::wishes::wishes;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::nft::Nft;
use gybe_netfilter::policy::{Mode, RedirectPolicy};
use gybe_netfilter::redirection::Redirection;
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connections each policy gets beside those that all get.
const CONNECTIONS: usize = 100;

/// Policies whose worlds are there at a time.
const AT_A_TIME: usize = 8;

/// How many smaller policies are tried when one disagrees.
const SHRINKS: usize = 60;

/// For a busy machine; how long it may take is asked elsewhere.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program that is started holds a copy of every socket of this process until it runs, and a port
/// that is copied so cannot be bound again. So no connection is made while rules are written.
static ONE_TEST_AT_A_TIME: Mutex<()> = Mutex::new(());

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).unwrap_or_default();
    if text.is_empty() { otherwise } else { text.parse().unwrap_or_else(|_| panic!("{variable}={text}")) }
}

/// The source of all that is random about the policy with this number.
fn source(number: u64) -> TestRunner {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

fn policy_and_flows(number: u64) -> (impl ValueTree<Value = RedirectPolicy>, Vec<Flow>) {
    let mut source = source(number);
    let policy = wishes().new_tree(&mut source).unwrap();
    let flows = vec(callers(), CONNECTIONS).new_tree(&mut source).unwrap().current();
    (policy, flows)
}

fn stands<'b>(case: &Case, backends: &[&'b dyn Backend]) -> Result<Vec<Stand<'b>>, Complaint> {
    let redirection = Redirection::of(&case.policy);
    backends.iter().map(|backend| Stand::raise(case, *backend, &redirection)).collect()
}

/// The policy made as small as it can be made and still disagrees about that connection.
fn smallest(first: Disagreement, number: u64, backends: &[&dyn Backend]) -> Result<Disagreement, Complaint> {
    let (mut tree, flows) = policy_and_flows(number);
    let (mut smallest, mut smaller) = (first, tree.simplify());
    for _ in 0..SHRINKS {
        if !smaller {
            break;
        }
        let case = Case::of(tree.current(), &flows)?;
        let found = first_disagreement(&case, &stands(&case, backends)?)?;
        smaller = if found.is_some() { tree.simplify() } else { tree.complicate() };
        smallest = found.unwrap_or(smallest);
    }
    Ok(smallest)
}

#[test]
fn nft_legacy_and_trace_never_disagree() -> Result<(), Complaint> {
    let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (first, policies) = (number("GYBE_SEED", 1), number("GYBE_POLICIES", 200));
    println!("policies {first} to {}: GYBE_SEED={first} GYBE_POLICIES={policies}", first + policies - 1);
    let legacy = Iptables::find(Variant::Legacy)?.with_deadline(PATIENCE);
    let backends: [&dyn Backend; 2] = [&Nft, &legacy];
    let (begun, mut connections, mut fates) = (Instant::now(), 0, std::collections::BTreeMap::new());
    for numbers in (first..first + policies).collect::<Vec<_>>().chunks(AT_A_TIME) {
        let raised = side_by_side(numbers.to_vec(), |number| {
            let (policy, flows) = policy_and_flows(number);
            let case = Case::of(policy.current(), &flows)?;
            let stands = stands(&case, &backends)?;
            Ok::<_, Complaint>((number, case, stands))
        });
        let raised = raised.into_iter().collect::<Result<Vec<_>, _>>()?;
        for (_, case, _) in &raised {
            connections += case.flows.len() + case.unforetold.len();
            for flow in &case.flows {
                let fate = flow.with_rules.to_string();
                *fates.entry(fate.split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
            }
        }
        let found = side_by_side(raised, |(number, case, stands)| {
            Ok::<_, Complaint>(first_disagreement(&case, &stands)?.map(|found| (number, found)))
        });
        for found in found {
            if let Some((number, found)) = found? {
                let smallest = smallest(found.clone(), number, &backends)?;
                panic!("GYBE_SEED={number} GYBE_POLICIES=1\n{found}\nthe smallest policy found:\n{smallest}");
            }
        }
    }
    println!(
        "{connections} connections, each with nft, legacy and trace, in {:?}: {fates:?}",
        begun.elapsed()
    );
    Ok(())
}

/// The control: where connections go without rules is known, and random ones go everywhere.
#[test]
fn without_rules_random_connections_go_where_they_are_said_to_go() -> Result<(), Complaint> {
    let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (number, mode) in [(1, Mode::Redirect), (2, Mode::Tproxy { mark: 1337, route_table: 133 })] {
        let mut flows = vec(callers(), 400).new_tree(&mut source(number)).unwrap().current();
        // `::6` is there only with a redirection.
        flows.retain(|flow| flow.source.is_none_or(|source| source.is_ipv4()));
        let world = Topology::raise(mode, &flows)?;
        let found = differences(&world, &flows, Rules::NotThere, Until::TheEnd)?;
        assert!(found.is_empty(), "{mode:?}: {} of {}: {found:#?}", found.len(), flows.len());
    }
    for vector in vectors::recorded()? {
        for flow in vector.flows.iter().filter(|flow| flow.mark.is_none()) {
            if let gybe_installer::demo::fate::Fate::Answered(answer) = &flow.without_rules {
                let said = flow.untouched().to_string();
                assert_eq!(said.split(' ').next(), Some(answer.by.as_str()), "{}", flow.id);
            }
        }
    }
    Ok(())
}

/// Recorded fates are foretold with all that is in them.
#[test]
fn recorded_fates_are_foretold_whole() -> Result<(), Complaint> {
    for vector in vectors::all()? {
        let rules = gybe_netfilter::compile::compile(&vector.policy);
        for flow in vector.flows.iter().filter(|flow| flow.mark.is_none()) {
            let foretold = flow.clone().foretold(&vector.policy, &rules)?;
            let (said, recorded) = (foretold.with_rules.to_string(), flow.with_rules.to_string());
            let by = |text: &str| text.split(' ').next().unwrap().to_owned();
            assert_eq!(by(&said), by(&recorded), "{} {}", vector.name, flow.id);
        }
    }
    Ok(())
}

/// The control of the comparison itself: one backend with a rule too few is found out, and the
/// report says under which policy, with which packet, and what each backend's rules did.
#[test]
fn a_backend_that_lacks_a_rule_is_found_out() -> Result<(), Complaint> {
    let _others_wait = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let named = |vector: &vectors::Vector| vector.name == "inject-default-dual";
    let vector = vectors::all()?.into_iter().find(named).unwrap();
    let legacy = Iptables::find(Variant::Legacy)?.with_deadline(PATIENCE);
    let case = Case::of(vector.policy.clone(), &policy_and_flows(1).1)?;
    let whole = Redirection::of(&case.policy);
    let rules = whole.rules.without("proxy-uid").unwrap();
    let lacking = Redirection { rules, ..whole.clone() };
    for (nft, iptables) in [(&whole, &lacking), (&lacking, &whole)] {
        let stands = [Stand::raise(&case, &Nft, nft)?, Stand::raise(&case, &legacy, iptables)?];
        let report = first_disagreement(&case, &stands)?.unwrap().to_string();
        for part in ["policy: RedirectPolicy", "packet: ", "by proxy-uid, so", "nft: ", "iptables-legacy: "] {
            assert!(report.contains(part), "{part:?} in:\n{report}");
        }
        assert!(report.contains("outbound-to-proxy"), "{report}");
    }
    Ok(())
}
