//! Every recorded connection with rules written by iptables-legacy and iptables-nft reaches its recorded destination.

use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Difference, Rules, Until, differences};
use gybe_integration::parallel::in_parallel;
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Location, Vector};
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::compile::compile;
use gybe_netfilter::iptables::{Iptables, Variant, script};
use gybe_netfilter::model::policy::{Destinations, InterfaceName};
use gybe_netfilter::model::ruleset::Family;
use ipnet::IpNet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Between fork and exec a child holds a copy of every socket of this process, and a port that a copy uses cannot be
/// bound again. Therefore no connection is made while another test writes rules.
static ONE_TEST_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The number of networks that are created before the first connection.
const TOPOLOGIES: usize = 16;

/// The iptables deadline, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

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

fn every_flow_has_its_recorded_outcome(variant: Variant) -> Result<(), Failure> {
    let _guard = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let backend = Iptables::find(variant)?.with_deadline(PATIENCE);
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
    every_flow_has_its_recorded_outcome(Variant::Legacy)
}

#[test]
fn with_iptables_nft_every_flow_has_its_recorded_outcome() -> Result<(), Failure> {
    every_flow_has_its_recorded_outcome(Variant::Nft)
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
    for variant in [Variant::Legacy, Variant::Nft] {
        let backend = Iptables::find(variant)?.with_deadline(PATIENCE);
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
    for variant in [Variant::Legacy, Variant::Nft] {
        for rule in ["proxy-uid", "inbound-to-proxy", "outbound-to-proxy", "proxy-to-own-pod-v6"] {
            let topology =
                redirected(&Iptables::find(variant)?.with_deadline(PATIENCE), &vector, |redirection| {
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
