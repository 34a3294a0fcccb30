//! Every recorded connection under every recorded policy, with rules written by the nft backend; and every rule is
//! necessary: without it, at least one connection has another outcome.

use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Rules, Until, check_vector, check_vectors, differences};
use gybe_integration::mutation::{Mutant, mutants};
use gybe_integration::parallel::in_parallel;
use gybe_integration::programs::run;
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Location};
use gybe_netfilter::apply::redirection::{Redirection, remove};
use gybe_netfilter::kernel::routes::Routes;
use gybe_netfilter::nft::Nft;
use std::collections::BTreeSet;

#[test]
fn under_every_policy_every_flow_has_its_recorded_outcome() -> Result<(), Failure> {
    check_vectors(vectors::all()?, &Nft)
}

#[test]
fn a_policy_applied_twice_or_over_another_has_the_same_outcomes() -> Result<(), Failure> {
    let vectors = vectors::all()?;
    for (before, then) in [
        ("inject-default-dual", "inject-default-dual"),
        ("dns-all-dual", "outbound-include-cidr"),
        ("outbound-none", "dns-all-tproxy-dual"),
    ] {
        let named = |name| vectors.iter().find(|vector| vector.name == name);
        let (Some(before), Some(then)) = (named(before), named(then)) else {
            return Err(Failure::new(format!("no vector {before} or {then}")));
        };
        // Every network has both families, because routes and the address ::6 on lo stay for the next policy.
        let topology = Topology::new(then.policy.mode, &then.flows)?;
        for policy in [&before.policy, &then.policy] {
            let redirection = Redirection::of(policy);
            topology.at(Location::Pod).run(|| redirection.apply(&Nft))??;
        }
        let found = differences(&topology, &then.flows, Rules::Present, Until::End)?;
        assert!(found.is_empty(), "{} after {}: {found:#?}", then.name, before.name);
    }
    Ok(())
}

#[test]
fn after_removal_every_flow_has_its_outcome_without_rules() -> Result<(), Failure> {
    for vector in vectors::all()?.iter().filter(|vector| vector.name.ends_with("tproxy-dual")) {
        let topology = Topology::new(vector.policy.mode, &vector.flows)?;
        let redirection = Redirection::of(&vector.policy);
        topology.at(Location::Pod).run(|| redirection.apply(&Nft))??;
        topology.at(Location::Pod).run(|| remove(&Nft))??;
        let found = differences(&topology, &vector.flows, Rules::Absent, Until::End)?;
        assert!(found.is_empty(), "{}: {found:#?}", vector.name);
    }
    Ok(())
}

/// The source of an answer of the application is the pod's address, so such a rule matches it.
#[test]
fn with_tproxy_answers_reach_the_proxy_despite_a_routing_rule_of_the_pod() -> Result<(), Failure> {
    for vector in vectors::all()?.iter().filter(|vector| vector.name.ends_with("tproxy-dual")) {
        let topology = Topology::new(vector.policy.mode, &vector.flows)?;
        for own in [
            "rule add from 10.244.0.10 lookup 100",
            "route add default via 10.244.0.1 table 100",
            "route add 192.168.77.0/24 dev eth1 table 100",
            "route add 172.30.0.0/24 dev net1 table 100",
            "-6 rule add from fd00:10::10 lookup 100",
            "-6 route add default via fd00:10::1 table 100",
            "-6 route add fd00:77::/64 dev eth1 table 100",
            "-6 route add fd00:30::/64 dev net1 table 100",
        ] {
            let ran =
                topology.at(Location::Pod).run(|| run("ip", &own.split(' ').collect::<Vec<_>>(), ""))??;
            assert_eq!(ran.code, Some(0), "{own}: {}", ran.err);
        }
        let control = differences(&topology, &vector.flows, Rules::Absent, Until::End)?;
        assert!(control.is_empty(), "{}, without rules: {control:#?}", vector.name);
        let redirection = Redirection::of(&vector.policy);
        topology.at(Location::Pod).run(|| redirection.apply(&Nft))??;
        let found = differences(&topology, &vector.flows, Rules::Present, Until::End)?;
        assert!(found.is_empty(), "{}: {found:#?}", vector.name);
    }
    Ok(())
}

/// Rules whose absence no ordinary connection shows; `exceptional_packets.rs` tests them.
const TESTED_WITH_EXCEPTIONAL_PACKETS: [&str; 7] = [
    "drop-invalid",
    "not-intercepted-v4",
    "not-intercepted-v6",
    "proxy-keeps-source",
    "zone-upstream-answers",
    "zone-upstream-answers-v4",
    "zone-upstream-answers-v6",
];

/// Every rule id. The source of the chains contains no other string literals, so the source is read: it also has the
/// rules that no policy in a test produces.
fn rule_ids() -> BTreeSet<&'static str> {
    let chains = [
        include_str!("../../../netfilter/src/compile/raw.rs"),
        include_str!("../../../netfilter/src/compile/mangle.rs"),
        include_str!("../../../netfilter/src/compile/inbound.rs"),
        include_str!("../../../netfilter/src/compile/outbound.rs"),
    ];
    let code = chains.iter().flat_map(|text| text.lines()).filter(|line| !line.trim().starts_with("//"));
    code.flat_map(|line| line.split('"').skip(1).step_by(2)).collect()
}

/// The test below covers only rules that the policy of some flow has.
#[test]
fn every_rule_is_in_the_policy_of_some_flow() -> Result<(), Failure> {
    let mutants = mutants(&vectors::all()?)?;
    let used: BTreeSet<&str> = mutants.keys().map(|rule| rule.0).collect();
    assert_eq!(used, rule_ids());
    Ok(())
}

#[test]
fn without_any_one_rule_some_flow_has_another_outcome() -> Result<(), Failure> {
    let mut mutants = mutants(&vectors::all()?)?;
    mutants.retain(|rule, _| !TESTED_WITH_EXCEPTIONAL_PACKETS.contains(&rule.0));
    let results = in_parallel(mutants.into_iter().collect(), |(rule, mutants)| {
        Ok::<_, Failure>((rule, has_another_outcome(&mutants)?))
    });
    let mut survivors = Vec::new();
    for result in results {
        let (rule, is_detected) = result?;
        if !is_detected {
            survivors.push(rule.0);
        }
    }
    assert!(survivors.is_empty(), "no flow needs these rules: {survivors:?}");
    Ok(())
}

/// Reports whether a connection of one of the mutants shows that its rule is missing.
fn has_another_outcome(mutants: &[Mutant]) -> Result<bool, Failure> {
    for mutant in mutants {
        let routes = Routes::of(&mutant.vector.policy);
        let redirection = Redirection { rules: mutant.rules.clone(), routes };
        if !check_vector(&mutant.vector, &redirection, &Nft, Until::FirstDifference)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}
