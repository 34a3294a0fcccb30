//! Random policies and random connections: nft, iptables-legacy and `trace` never disagree.
//!
//! `GYBE_SEED=17 GYBE_POLICIES=1` tries policy 17 alone; `make -C integration differential` takes both.
#![allow(clippy::print_stdout, reason = "the seed of a run, for the next one")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use gybe_integration::differential::{Case, Testbed, first_disagreement};
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Rules, Until, differences};
use gybe_integration::predict::in_the_pod;
use gybe_integration::programs::patient_iptables;
use gybe_integration::random_policy::{cases, compare, policy_and_flows, source};
use gybe_integration::topology::Topology;
use gybe_integration::{random_flow, vectors};
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::compile::compile;
use gybe_netfilter::model::policy::Mode;
use gybe_netfilter::model::ruleset::Engine;
use gybe_netfilter::nft::Nft;
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Between fork and exec a child holds a copy of every socket of this process, and a port that a copy uses cannot be
/// bound again. Therefore no connection is made while another test writes rules.
static ONE_TEST_AT_A_TIME: Mutex<()> = Mutex::new(());

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).unwrap_or_default();
    if text.is_empty() { otherwise } else { text.parse().unwrap_or_else(|_| panic!("{variable}={text}")) }
}

#[test]
fn nft_legacy_and_trace_never_disagree() -> Result<(), Failure> {
    let _guard = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (first, policies) = (number("GYBE_SEED", 1), number("GYBE_POLICIES", 200));
    println!("policies {first} to {}: GYBE_SEED={first} GYBE_POLICIES={policies}", first + policies - 1);
    let legacy = patient_iptables(Engine::Legacy)?;
    let backends: [&dyn Backend; 2] = [&Nft, &legacy];
    let begun = Instant::now();
    let comparison = compare(cases(first..first + policies)?, &backends)?;
    // Bounds the repetitions, behind which an error that depends on the earlier policy could hide.
    let repeated = &comparison.repeated;
    assert!(repeated.len() * 50 <= comparison.policies, "compared again: {repeated:?}");
    let connections: usize = comparison.connections.values().sum();
    assert!(connections >= comparison.policies * 100, "{comparison}");
    println!("nft, legacy and trace agree in {:?}: {comparison}", begun.elapsed());
    Ok(())
}

/// The control: without rules the destination of each connection is known, and the random ones cover all destinations.
#[test]
fn without_rules_random_connections_have_their_predicted_outcome() -> Result<(), Failure> {
    let _guard = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (number, mode) in [(1, Mode::Redirect), (2, Mode::Tproxy { mark: 1337, route_table: 133 })] {
        let mut flows = vec(random_flow::flows(), 400).new_tree(&mut source(number)).unwrap().current();
        // The address `::6` exists only with a redirection.
        flows.retain(|flow| flow.source.is_none_or(|source| source.is_ipv4()));
        let topology = Topology::new(mode, &flows)?;
        let found = differences(&topology, &flows, Rules::Absent, Until::End)?;
        assert!(found.is_empty(), "{mode:?}: {} of {}: {found:#?}", found.len(), flows.len());
    }
    for vector in vectors::recorded()? {
        for flow in vector.flows.iter().filter(|flow| flow.mark.is_none()) {
            if let gybe_demo::testnet::outcome::ConnectionOutcome::Replied(answer) = &flow.without_rules {
                let outcome = flow.outcome_without_rules().to_string();
                assert_eq!(outcome.split(' ').next(), Some(answer.by.as_str()), "{}", flow.id);
            }
        }
    }
    Ok(())
}

#[test]
fn the_listener_that_answers_each_recorded_flow_is_predicted() -> Result<(), Failure> {
    for vector in vectors::all()? {
        let rules = in_the_pod(&compile(&vector.policy))?;
        for flow in vector.flows.iter().filter(|flow| flow.mark.is_none()) {
            let predicted = flow.clone().with_predicted_outcome(&vector.policy, &rules)?;
            let (outcome, recorded) = (predicted.with_rules.to_string(), flow.with_rules.to_string());
            let by = |text: &str| text.split(' ').next().unwrap().to_owned();
            assert_eq!(by(&outcome), by(&recorded), "{} {}", vector.name, flow.id);
        }
    }
    Ok(())
}

/// The control of the comparison: it detects a backend that omits a rule, and reports the policy, the packet, and the
/// verdict of each backend's rules.
#[test]
fn a_backend_that_omits_a_rule_is_detected() -> Result<(), Failure> {
    let _guard = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let named = |vector: &vectors::Vector| vector.name == "inject-default-dual";
    let vector = vectors::all()?.into_iter().find(named).unwrap();
    let legacy = patient_iptables(Engine::Legacy)?;
    let case = Case::of(vector.policy.clone(), &policy_and_flows(1)?.1, 1)?;
    let complete = Redirection::of(&case.policy);
    let rules = complete.rules.without("proxy-uid").unwrap();
    let incomplete = Redirection { rules, ..complete.clone() };
    for (nft, iptables) in [(&complete, &incomplete), (&incomplete, &complete)] {
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
