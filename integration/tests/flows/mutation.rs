//! Every rule is necessary: without it, at least one connection has another outcome.

use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Until, check_vector};
use gybe_integration::mutation::{Mutant, mutants};
use gybe_integration::parallel::in_parallel;
use gybe_integration::vectors;
use gybe_netfilter::compile::RULE_IDS;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::redirection::Redirection;
use gybe_netfilter::routes::Routes;
use std::collections::BTreeSet;

/// Rules whose absence no connection of an honest caller can show; `rarely.rs` and `unheard.rs` show what they do.
const SHOWN_ELSEWHERE: [&str; 7] = [
    "drop-invalid",
    "not-intercepted-v4",
    "not-intercepted-v6",
    "proxy-keeps-source",
    "zone-upstream-answers",
    "zone-upstream-answers-v4",
    "zone-upstream-answers-v6",
];

/// The test below covers only rules that the policy of some flow has.
#[test]
fn every_rule_there_is_stands_in_some_flows_policy() -> Result<(), Failure> {
    let mutants = mutants(&vectors::all()?)?;
    let held: BTreeSet<&str> = mutants.keys().map(|rule| rule.0).collect();
    assert_eq!(held, BTreeSet::from(RULE_IDS));
    Ok(())
}

#[test]
fn without_any_one_rule_some_flow_goes_elsewhere() -> Result<(), Failure> {
    let mut mutants = mutants(&vectors::all()?)?;
    mutants.retain(|rule, _| !SHOWN_ELSEWHERE.contains(&rule.0));
    let fates = in_parallel(mutants.into_iter().collect(), |(rule, mutants)| {
        Ok::<_, Failure>((rule, betrayed(&mutants)?))
    });
    let mut survivors = Vec::new();
    for fate in fates {
        let (rule, betrayed) = fate?;
        if !betrayed {
            survivors.push(rule.0);
        }
    }
    assert!(survivors.is_empty(), "no flow needs these rules: {survivors:?}");
    Ok(())
}

/// Reports whether a connection of one of the mutants shows that its rule is missing.
fn betrayed(mutants: &[Mutant]) -> Result<bool, Failure> {
    for mutant in mutants {
        let routes = Routes::of(&mutant.vector.policy);
        let redirection = Redirection { rules: mutant.rules.clone(), routes };
        if !check_vector(&mutant.vector, &redirection, &Nft, Until::FirstDifference)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}
