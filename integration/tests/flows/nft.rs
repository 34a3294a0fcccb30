//! Every recorded connection under every recorded policy, with rules written by the nft backend.

use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Rules, Until, check_vectors, differences};
use gybe_integration::programs::run;
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Location};
use gybe_netfilter::nft::Nft;
use gybe_netfilter::redirection::{Redirection, remove};

#[test]
fn under_every_policy_every_flow_ends_where_it_was_recorded_to_end() -> Result<(), Failure> {
    check_vectors(vectors::all()?, &Nft)
}

#[test]
fn what_is_applied_twice_or_after_another_policy_is_as_if_applied_once() -> Result<(), Failure> {
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
        let world = Topology::new(then.policy.mode, &then.flows)?;
        for policy in [&before.policy, &then.policy] {
            let redirection = Redirection::of(policy);
            world.at(Location::Pod).run(|| redirection.apply(&Nft))??;
        }
        let found = differences(&world, &then.flows, Rules::Present, Until::End)?;
        assert!(found.is_empty(), "{} after {}: {found:#?}", then.name, before.name);
    }
    Ok(())
}

#[test]
fn when_the_rules_are_removed_every_flow_goes_where_it_went_before() -> Result<(), Failure> {
    for vector in vectors::all()?.iter().filter(|vector| vector.name.ends_with("tproxy-dual")) {
        let world = Topology::new(vector.policy.mode, &vector.flows)?;
        let redirection = Redirection::of(&vector.policy);
        world.at(Location::Pod).run(|| redirection.apply(&Nft))??;
        world.at(Location::Pod).run(|| remove(&Nft))??;
        let found = differences(&world, &vector.flows, Rules::Absent, Until::End)?;
        assert!(found.is_empty(), "{}: {found:#?}", vector.name);
    }
    Ok(())
}

/// The source of an answer of the application is the pod's address, so such a rule matches it.
#[test]
fn with_tproxy_answers_find_the_proxy_beside_a_routing_rule_of_the_pods_own() -> Result<(), Failure> {
    for vector in vectors::all()?.iter().filter(|vector| vector.name.ends_with("tproxy-dual")) {
        let world = Topology::new(vector.policy.mode, &vector.flows)?;
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
                world.at(Location::Pod).run(|| run("ip", &own.split(' ').collect::<Vec<_>>(), ""))??;
            assert_eq!(ran.code, Some(0), "{own}: {}", ran.err);
        }
        let control = differences(&world, &vector.flows, Rules::Absent, Until::End)?;
        assert!(control.is_empty(), "{}, without rules: {control:#?}", vector.name);
        let redirection = Redirection::of(&vector.policy);
        world.at(Location::Pod).run(|| redirection.apply(&Nft))??;
        let found = differences(&world, &vector.flows, Rules::Present, Until::End)?;
        assert!(found.is_empty(), "{}: {found:#?}", vector.name);
    }
    Ok(())
}
