//! Every recorded connection under every recorded policy reaches its recorded destination, with rules written by
//! each backend; and every rule is necessary: without it, at least one connection has another outcome. Istio 1.0's
//! rules, with one inbound port and everything redirected to 15001, have outcomes written by hand.

use gybe_installer::pod::policy_file::PolicyFile;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Difference, Rules, Until, check_vector, check_vectors, differences};
use gybe_integration::namespace::in_parallel;
use gybe_integration::predict::{Mutant, mutants};
use gybe_integration::programs::{patient_iptables, run};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Flow, Location, Vector};
use gybe_netfilter::apply::redirection::{Redirection, remove};
use gybe_netfilter::compile::compile;
use gybe_netfilter::iptables::{Iptables, script};
use gybe_netfilter::kernel::routes::Routes;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::{Destinations, InterfaceName};
use gybe_netfilter::model::ruleset::Engine;
use gybe_netfilter::model::ruleset::{Family, Transport};
use gybe_netfilter::nft::Nft;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

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

/// Between fork and exec a child holds a copy of every socket of this process, and a port that a copy uses cannot be
/// bound again. Therefore no connection is made while another test writes rules.
static ONE_TEST_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The number of networks that are created before the first connection.
const TOPOLOGIES: usize = 16;

/// Creates the recorded network with the policy's redirection as changed by `change`.
fn redirected(
    backend: &Iptables,
    vector: &Vector,
    change: impl FnOnce(&mut Redirection) + Send,
) -> Result<Topology, Failure> {
    let topology = Topology::new(vector.policy.mode, &vector.flows)?;
    let mut redirection = Redirection::of(&vector.policy);
    change(&mut redirection);
    topology.at(Location::Pod).run(|| redirection.apply(backend))??;
    Ok(topology)
}

fn every_flow_has_its_recorded_outcome(variant: Engine) -> Result<(), Failure> {
    let _guard = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let backend = patient_iptables(variant)?;
    let mut all: Vec<String> = Vec::new();
    for vectors in vectors::all()?.chunks(TOPOLOGIES) {
        let topologies = in_parallel(vectors.iter().collect(), |vector| redirected(&backend, vector, |_| {}));
        let topologies = topologies.into_iter().collect::<Result<Vec<_>, _>>()?;
        let found = in_parallel(vectors.iter().zip(topologies).collect(), |(vector, topology)| {
            Ok::<_, Failure>((vector, differences(&topology, &vector.flows, Rules::Present, Until::End)?))
        });
        for found in found {
            let (vector, found) = found?;
            all.extend(found.iter().map(|difference| format!("{}: {difference}", vector.name)));
        }
    }
    assert!(all.is_empty(), "{} flows: {all:#?}", all.len());
    Ok(())
}

#[test]
fn with_iptables_legacy_every_flow_has_its_recorded_outcome() -> Result<(), Failure> {
    every_flow_has_its_recorded_outcome(Engine::Legacy)
}

#[test]
fn with_iptables_nft_every_flow_has_its_recorded_outcome() -> Result<(), Failure> {
    every_flow_has_its_recorded_outcome(Engine::NfTables)
}

/// Returns the policy with lists so long that their product needs chains that jump to each other. No flow matches the
/// added members. Returns `None` if the policy has no two such lists.
fn with_long_lists(vector: &Vector) -> Result<Option<Vector>, Failure> {
    let mut policy = vector.policy.clone();
    let Destinations::Only(networks) = &policy.outbound.included_to else { return Ok(None) };
    if policy.virtual_interfaces.is_empty() || networks.is_empty() || networks.names_loopback() {
        return Ok(None);
    }
    let before =
        networks.v4().iter().copied().map(IpNet::V4).chain(networks.v6().iter().copied().map(IpNet::V6));
    let more = (0..60_u8).map(|n| IpNet::from(std::net::IpAddr::from([198, 51, 100, 2 * n])));
    let more = more
        .chain((0..60_u16).map(|n| IpNet::from(std::net::IpAddr::from([0x3fff, 0, 0, 0, 0, 0, 0, 2 * n]))));
    policy.outbound.included_to = Destinations::Only(before.chain(more).collect());
    for n in 0..40 {
        policy.virtual_interfaces.insert(InterfaceName::parse(&format!("machine{n}"))?);
    }
    Ok(Some(Vector { policy, ..vector.clone() }))
}

#[test]
fn with_a_product_of_long_lists_in_two_chains_every_flow_has_its_recorded_outcome() -> Result<(), Failure> {
    let _guard = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let vectors = vectors::all()?.iter().map(with_long_lists).collect::<Result<Vec<_>, _>>()?;
    let vectors: Vec<Vector> = vectors.into_iter().flatten().collect();
    assert!(!vectors.is_empty(), "no policy captures networks for virtual machines");
    for variant in [Engine::Legacy, Engine::NfTables] {
        let backend = patient_iptables(variant)?;
        for vector in &vectors {
            let text = script(&compile(&vector.policy), Family::V4).unwrap();
            assert!(text.contains("-j ISTIO_LIST_1"), "{}: {text}", vector.name);
            let topology = redirected(&backend, vector, |_| {})?;
            let found = differences(&topology, &vector.flows, Rules::Present, Until::End)?;
            assert!(found.is_empty(), "{variant:?}, {}: {found:#?}", vector.name);
        }
    }
    Ok(())
}

#[test]
fn a_missing_rule_changes_the_outcome_of_a_flow() -> Result<(), Failure> {
    let _guard = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let vector = vectors::all()?.into_iter().find(|vector| vector.name == "inject-default-dual");
    let vector = vector.ok_or_else(|| Failure::new("no vector inject-default-dual"))?;
    for variant in [Engine::Legacy, Engine::NfTables] {
        for rule in ["proxy-uid", "inbound-to-proxy", "outbound-to-proxy", "proxy-to-own-pod-v6"] {
            let topology = redirected(&patient_iptables(variant)?, &vector, |redirection| {
                let rest = redirection.rules.without(rule);
                redirection.rules = rest.unwrap_or_else(|| redirection.rules.clone());
            })?;
            let found: Vec<Difference> =
                differences(&topology, &vector.flows, Rules::Present, Until::FirstDifference)?;
            assert!(!found.is_empty(), "{variant:?} without {rule}");
        }
    }
    Ok(())
}

const POLICY: &str = r#"{
    "proxy_port": 15001, "inbound_capture_port": 15001, "inbound_ports_include": ["80"],
    "proxy_uids": ["1337"], "proxy_gids": ["1337"], "enable_ipv6": false
}"#;

const APP: Owner = Owner { uid: 1000, gid: 1000 };
const PROXY: Owner = Owner { uid: 1337, gid: 1337 };
const PROXY_USER: Owner = Owner { uid: 1337, gid: 1000 };
const PROXY_GROUP: Owner = Owner { uid: 2000, gid: 1337 };

const TO_PROXY: &str = "envoy:15001";

#[test]
fn with_istio_1_0s_policy_every_connection_has_the_expected_outcome() -> Result<(), Failure> {
    let flows = [
        // Inbound: the one port, and no other.
        flow(Location::Peer, APP, "10.244.0.10:80", ["refused", TO_PROXY])?,
        flow(Location::Peer, APP, "10.244.0.10:8080", ["app:8080", "app:8080"])?,
        // Outbound: all connections of the application, none of the proxy, which is matched by user or by group.
        flow(Location::Pod, APP, "10.1.2.3:80", ["ext-peer", TO_PROXY])?,
        flow(Location::Pod, APP, "20.1.2.3:9000", ["ext-peer", TO_PROXY])?,
        flow(Location::Pod, PROXY, "10.1.2.3:80", ["ext-peer", "ext-peer"])?,
        flow(Location::Pod, PROXY_USER, "10.1.2.3:80", ["ext-peer", "ext-peer"])?,
        flow(Location::Pod, PROXY_GROUP, "10.1.2.3:80", ["ext-peer", "ext-peer"])?,
        // Connections to 127.0.0.1 inside the pod are direct for every user.
        flow(Location::Pod, APP, "127.0.0.1:8080", ["app:8080", "app:8080"])?,
        flow(Location::Pod, PROXY, "127.0.0.1:8080", ["app:8080", "app:8080"])?,
        // The proxy's connections to its own pod's address are redirected to the proxy.
        flow(Location::Pod, PROXY, "10.244.0.10:8080", ["app:8080", TO_PROXY])?,
        // Different today: the old fourth rule matched no owner, so the application's connections to its own pod's
        // address were redirected too. Now they are direct.
        flow(Location::Pod, APP, "10.244.0.10:8080", ["app:8080", "app:8080"])?,
        // Different today: for the same reason connections of a proxy that is matched by group alone were redirected.
        flow(Location::Pod, PROXY_GROUP, "10.244.0.10:8080", ["app:8080", "app:8080"])?,
        // Different today: the proxy's tunnel port 15008, which did not exist then, is excluded from that redirect.
        flow(Location::Pod, PROXY, "10.244.0.10:15008", ["envoy:15008", "envoy:15008"])?,
    ];
    let policy = PolicyFile::parse(POLICY)?.policy(&[])?;
    let vector = Vector { name: "istio-1.0".into(), policy, flows: flows.to_vec() };
    let topology = Topology::new(vector.policy.mode, &vector.flows)?;
    let control = differences(&topology, &vector.flows, Rules::Absent, Until::End)?;
    assert!(control.is_empty(), "without rules: {control:#?}");
    let found = check_vector(&vector, &Redirection::of(&vector.policy), &Nft, Until::End)?;
    assert!(found.is_empty(), "with rules: {found:#?}");
    Ok(())
}

fn flow(from: Location, owner: Owner, to: &str, [without, with]: [&str; 2]) -> Result<Flow, Failure> {
    let source = match from {
        Location::Pod if to.starts_with("127.") => "127.0.0.1",
        Location::Pod => "10.244.0.10",
        _ => "10.244.0.1",
    };
    // Listeners outside the pod do not report the original destination; without a redirect it is the same.
    let outcome = |by: &str| match by {
        "refused" => by.to_owned(),
        TO_PROXY => format!("{by} orig={to} src={source}"),
        _ => format!("{by} src={source}"),
    };
    Ok(Flow {
        id: format!("{from:?} {owner:?} {to}"),
        from,
        transport: Transport::Tcp,
        to: to.parse()?,
        owner,
        source: None,
        source_port: None,
        mark: None,
        without_rules: outcome(without).parse()?,
        with_rules: outcome(with).parse()?,
    })
}
