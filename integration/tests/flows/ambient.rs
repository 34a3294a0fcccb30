//! Every recorded connection of an ambient pod under every recorded policy, with rules written by each backend; and
//! every rule is necessary: without it, at least one connection has another outcome.

use gybe_demo::testnet::client::{Client, SourceOptions};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Difference, Rules, Until, differences};
use gybe_integration::namespace::in_parallel;
use gybe_integration::predict::{in_the_pod, trace_flow};
use gybe_integration::programs::{patient, patient_iptables};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::Location;
use gybe_integration::vectors::ambient::{AmbientVector, recorded};
use gybe_netfilter::apply::backend::{Backend, BackendKind};
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{Redirection, remove, remove_all};
use gybe_netfilter::compile::compile_ambient;
use gybe_netfilter::inspect::live::LiveRules;
use gybe_netfilter::inspect::verdict::{Desired, RedirectionState, VerdictContext, judge_namespace};
use gybe_netfilter::kernel::routes::Routes;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::ambient::{AmbientDns, AmbientPolicy};
use gybe_netfilter::model::policy::{Families, InterfaceName, PortSet, RedirectPolicy};
use gybe_netfilter::model::ruleset::{
    Chain, ChainName, ConnectionState, Engine, Is, Match, Rule, RuleId, Transport, Verdict,
};
use gybe_netfilter::nft::Nft;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a connection that should be answered may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The number of networks that are created before the first connection: between fork and exec an iptables program has
/// a copy of every socket of this process, and a port that a copy uses cannot be bound again.
const TOPOLOGIES: usize = 16;

fn redirected(
    vector: &AmbientVector,
    backend: &dyn Backend,
    redirection: &Redirection,
) -> Result<Topology, Failure> {
    let topology = Topology::ambient(&vector.flows)?;
    topology.at(Location::Pod).run(|| redirection.apply(backend))??;
    Ok(topology)
}

fn vector(name: &str) -> Result<AmbientVector, Failure> {
    let found = recorded()?.into_iter().find(|vector| vector.name == name);
    found.ok_or_else(|| Failure::new(format!("no vector {name}")))
}

#[test]
fn without_rules_every_flow_has_its_recorded_outcome() -> Result<(), Failure> {
    let flows = vector("in-dns-dual")?.flows;
    let found = differences(&Topology::ambient(&flows)?, &flows, Rules::Absent, Until::End)?;
    assert!(found.is_empty(), "{} flows: {found:#?}", found.len());
    Ok(())
}

/// One test for all backends, because no connection is made while rules are written.
#[test]
fn with_every_backend_every_flow_has_its_recorded_outcome() -> Result<(), Failure> {
    let (by_nft, legacy) = (patient_iptables(Engine::NfTables)?, patient_iptables(Engine::Legacy)?);
    let backends: [&dyn Backend; 3] = [&Nft, &by_nft, &legacy];
    let vectors = recorded()?;
    let each: Vec<_> = vectors.iter().flat_map(|vector| backends.map(|backend| (vector, backend))).collect();
    let mut all: Vec<String> = Vec::new();
    for some in each.chunks(TOPOLOGIES) {
        let topologies = in_parallel(some.to_vec(), |(vector, backend)| {
            redirected(vector, backend, &Redirection::of_ambient(&vector.policy))
        });
        let topologies = topologies.into_iter().collect::<Result<Vec<_>, _>>()?;
        let found = in_parallel(some.iter().zip(topologies).collect(), |((vector, backend), topology)| {
            let found = differences(&topology, &vector.flows, Rules::Present, Until::End)?;
            let name = |difference: &Difference| format!("{} {}: {difference}", backend.name(), vector.name);
            Ok::<_, Failure>(found.iter().map(name).collect::<Vec<_>>())
        });
        all.extend(found.into_iter().collect::<Result<Vec<_>, _>>()?.concat());
    }
    assert!(all.is_empty(), "{} flows: {all:#?}", all.len());
    Ok(())
}

/// Rules whose absence no ordinary connection shows; the tests below show it.
const NOT_SHOWN: [&str; 2] = ["to-original-source", "zone-answers-to-ztunnel"];

#[test]
fn without_any_one_rule_some_flow_has_another_outcome() -> Result<(), Failure> {
    let mut mutants: BTreeMap<RuleId, Vec<AmbientVector>> = BTreeMap::new();
    for vector in recorded()? {
        for (_, rule) in compile_ambient(&vector.policy).rules() {
            mutants.entry(rule.id).or_default().push(vector.clone());
        }
    }
    let code = include_str!("../../../netfilter/src/compile/ambient.rs");
    let (code, _) = code.split_once("#[cfg(test)]").ok_or_else(|| Failure::new("no unit tests"))?;
    let code = code.lines().filter(|line| !line.trim().starts_with("//"));
    let ids: BTreeSet<&str> = code.flat_map(|line| line.split('"').skip(1).step_by(2)).collect();
    assert_eq!(mutants.keys().map(|rule| rule.0).collect::<BTreeSet<_>>(), ids);
    mutants.retain(|rule, _| !NOT_SHOWN.contains(&rule.0));
    let survivors = in_parallel(mutants.into_iter().collect(), |(rule, vectors)| {
        for vector in vectors {
            let whole = Redirection::of_ambient(&vector.policy);
            let rules = whole.rules.without(rule.0).ok_or_else(|| Failure::new(rule.0))?;
            let topology = redirected(&vector, &Nft, &Redirection { rules, ..whole })?;
            let found = differences(&topology, &vector.flows, Rules::Present, Until::FirstDifference)?;
            if !found.is_empty() {
                return Ok(None);
            }
        }
        Ok(Some(rule.0))
    });
    let survivors = survivors.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    let survivors: Vec<&str> = survivors.into_iter().flatten().collect();
    assert!(survivors.is_empty(), "no flow needs these rules: {survivors:?}");
    Ok(())
}

/// Without its route, ztunnel's connection with the client's address gets no answer; with the route alone, neither.
#[test]
fn rules_and_routes_need_each_other() -> Result<(), Failure> {
    let vector = vector("in-dns-dual")?;
    let whole = Redirection::of_ambient(&vector.policy);
    let without_routes = Redirection { routes: Routes::default(), ..whole.clone() };
    let topology = redirected(&vector, &Nft, &without_routes)?;
    let found = differences(&topology, &vector.flows, Rules::Present, Until::End)?;
    let ids: Vec<&str> = found.iter().map(|one| one.id.as_str()).collect();
    assert!(ids.iter().all(|id| id.contains("ztunnel(as ")), "{ids:?}");
    assert!(["v4.", "v6."].iter().all(|family| ids.iter().any(|id| id.starts_with(family))), "{ids:?}");
    Ok(())
}

/// A marked packet that leaves the pod: no route by its mark delivers it to the pod, so none is written here.
#[test]
fn a_connection_with_the_mark_of_an_original_source_is_left_alone() -> Result<(), Failure> {
    let vector = vector("in-nodns-dual")?;
    let rules = compile_ambient(&vector.policy);
    for (rules, by) in [
        (rules.clone(), "ext-peer"),
        (rules.without("to-original-source").ok_or_else(|| Failure::new("no rule"))?, "envoy:15001"),
    ] {
        let topology = redirected(&vector, &Nft, &Redirection { rules, routes: Routes::default() })?;
        for to in ["10.1.2.3:80", "[fd01::3]:80"] {
            let source = SourceOptions { mark: Some(0xf111), ..SourceOptions::default() };
            let owner = Owner { uid: 0, gid: 0 };
            let call = Client { owner, transport: Transport::Tcp, to: to.parse()?, source };
            let outcome = call.connect(topology.at(Location::Pod), PATIENCE)?.to_string();
            assert_eq!(outcome.split(' ').next(), Some(by), "{to}");
        }
    }
    Ok(())
}

/// The upstream's answer is tracked in the zone of ztunnel's query, so that it belongs to that connection.
#[test]
fn an_upstream_resolvers_answer_is_in_the_conntrack_zone_of_ztunnels_query() -> Result<(), Failure> {
    let vector = vector("in-dns-dual")?;
    let from_dns = Match::SourcePort(Is::In, PortSet::from_iter([53]));
    let known = Match::State(ConnectionState::EstablishedOrRelated);
    let eth0 = Match::InInterface(BTreeSet::from([InterfaceName::parse("eth0")?]));
    let matches = vec![eth0, Match::Protocol(Transport::Udp), from_dns, known];
    let witness = Rule { id: RuleId("witness"), matches, verdict: Verdict::Return };
    for server in ["10.96.0.10:53", "[fd00:96::10]:53"] {
        for (is_there, seen) in [(true, 1), (false, 0)] {
            let whole = Redirection::of_ambient(&vector.policy);
            let mut rules = match is_there {
                true => whole.rules.clone(),
                false => {
                    whole.rules.without("zone-answers-to-ztunnel").ok_or_else(|| Failure::new("no rule"))?
                }
            };
            let chains = rules.chains.iter_mut().filter(|chain| chain.name == ChainName::ManglePrerouting);
            chains.for_each(|chain: &mut Chain| chain.rules.push(witness.clone()));
            let topology = redirected(&vector, &Nft, &Redirection { rules, ..whole })?;
            let source = SourceOptions { mark: Some(0x539), ..SourceOptions::default() };
            let owner = Owner { uid: 0, gid: 1337 };
            let query = Client { owner, transport: Transport::Udp, to: server.parse()?, source };
            let outcome = query.connect(topology.at(Location::Pod), PATIENCE)?;
            assert!(matches!(outcome, ConnectionOutcome::Replied(_)), "{server}: {outcome}");
            let inventory = topology.at(Location::Pod).run(|| Nft.inspect())??;
            let items = inventory.parts.iter().flat_map(|part| &part.items);
            let counted: u64 =
                items.filter(|item| item.id == "witness").filter_map(|item| item.packets).sum();
            assert_eq!(counted, seen, "{server}, rule there: {is_there}");
        }
    }
    Ok(())
}

/// A change of the policy, of the backend and of the kind leaves nothing behind; so does a removal.
#[test]
fn a_changed_policy_leaves_nothing_of_the_earlier_one() -> Result<(), Failure> {
    let (dns, no_dns) = (vector("in-dns-dual")?, vector("gateway-nodns-v4")?);
    let sidecar = RedirectPolicy::injected(Families::V4AndV6);
    let kinds = BackendKind::ALL;
    let each: Vec<_> = kinds.iter().flat_map(|first| kinds.map(|second| (*first, second))).collect();
    let results = in_parallel(each, |(first, second)| {
        let topology = Topology::ambient(&no_dns.flows)?;
        let pod = topology.at(Location::Pod);
        let writers = [(first, Redirection::of_ambient(&dns.policy)), (second, Redirection::of(&sidecar))];
        let last = (first, Redirection::of_ambient(&no_dns.policy));
        for (kind, redirection) in writers.into_iter().chain([last]) {
            let backend = patient(kind)?;
            pod.run(|| redirection.apply(&*backend))??;
            // Idempotent.
            pod.run(|| redirection.apply(&*backend))??;
            let presence = pod.run(Presence::look)??;
            assert_eq!(presence.ours, [kind], "{first}, then {second}");
            let differences = pod.run(|| redirection.differences(&*backend, &presence))??;
            assert!(differences.is_empty(), "{first}, then {second}: {differences:?}");
        }
        let found = differences(&topology, &no_dns.flows, Rules::Present, Until::End)?;
        assert!(found.is_empty(), "{first}, then {second}: {found:#?}");
        pod.run(remove_all)??;
        let presence = pod.run(Presence::look)??;
        assert_eq!(presence, Presence::default());
        let none = Redirection::of_ambient(&dns.policy).routes;
        let missing = pod.run(|| -> Result<_, Failure> {
            let mut rtnetlink = gybe_netfilter::kernel::routes::Rtnetlink::open()?;
            Ok((none.missing(&mut rtnetlink)?.len(), Routes::default().extra(&mut rtnetlink)?.len()))
        })??;
        assert_eq!(missing, (4, 0), "two rules and two routes are gone");
        Ok(())
    });
    results.into_iter().collect()
}

#[test]
fn after_removal_every_flow_has_its_outcome_without_rules() -> Result<(), Failure> {
    let vector = vector("in-dns-dual")?;
    let topology = redirected(&vector, &Nft, &Redirection::of_ambient(&vector.policy))?;
    topology.at(Location::Pod).run(|| remove(&Nft))??;
    let found = differences(&topology, &vector.flows, Rules::Absent, Until::End)?;
    assert!(found.is_empty(), "{found:#?}");
    Ok(())
}

/// As in a pod whose runtime disables IPv6: the rules are there, and routes of IPv6 are neither needed nor possible.
#[test]
fn where_ipv6_is_disabled_the_policy_is_applied_without_routes_of_ipv6() -> Result<(), Failure> {
    let vector = vector("in-dns-dual")?;
    let topology = Topology::ambient(&vector.flows)?;
    let pod = topology.at(Location::Pod);
    pod.run(|| std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"))??;
    let redirection = Redirection::of_ambient(&vector.policy);
    pod.run(|| redirection.apply(&Nft))??;
    let presence = pod.run(Presence::look)??;
    let differences = pod.run(|| redirection.differences(&Nft, &presence))??;
    assert!(differences.is_empty(), "{differences:?}");
    Ok(())
}

/// The rules in the kernel lead every flow where the rules of the policy lead it, and the verdict says so; without one
/// rule, or without a route, it does not.
#[test]
fn live_rules_and_verdict_know_the_policy() -> Result<(), Failure> {
    let names = ["in-dns-dual", "in-nodns-machines-eth1-net1-dual", "gateway-dns-v4"];
    let each: Vec<_> = names.iter().flat_map(|name| BackendKind::ALL.map(|kind| (*name, kind))).collect();
    let results = in_parallel(each, |(name, kind)| {
        let (vector, backend) = (vector(name)?, patient(kind)?);
        let whole = Redirection::of_ambient(&vector.policy);
        let topology = redirected(&vector, &*backend, &whole)?;
        let pod = topology.at(Location::Pod);
        let live = pod.run(LiveRules::read)??;
        let desired = in_the_pod(&whole.rules)?;
        for flow in &vector.flows {
            let (live, desired) = (trace_flow(&live, flow)?, trace_flow(&desired, flow)?);
            assert_eq!(live.outcome, desired.outcome, "{kind} {name} {} {:?}", flow.id, live.obstacle);
        }
        let judge = |policy: &AmbientPolicy| {
            pod.run(|| judge_namespace(Desired::Ambient(policy), VerdictContext::default()))
        };
        let verdict = judge(&vector.policy)??;
        assert!(verdict.holds(), "{kind} {name}: {verdict:?}");
        let unknown = pod.run(|| judge_namespace(Desired::NotKnown, VerdictContext::default()))??;
        assert_eq!(unknown.state, RedirectionState::Redirected, "{kind} {name}: {unknown:?}");
        let other = AmbientPolicy {
            dns: match vector.policy.dns {
                AmbientDns::Off => AmbientDns::Captured,
                AmbientDns::Captured => AmbientDns::Off,
            },
            ..vector.policy.clone()
        };
        assert!(!judge(&other)??.holds(), "{kind} {name}");
        let rest = whole.rules.without("outbound-to-ztunnel-v4").ok_or_else(|| Failure::new("no rule"))?;
        pod.run(|| Redirection { rules: rest, ..whole.clone() }.apply(&*backend))??;
        assert_eq!(judge(&vector.policy)??.state, RedirectionState::NotRedirected, "{kind} {name}");
        let no_routes = Redirection { routes: Routes::default(), ..whole.clone() };
        pod.run(|| no_routes.apply(&*backend))??;
        let verdict = judge(&vector.policy)??;
        assert_eq!(verdict.state, RedirectionState::NotRedirected, "{kind} {name}: {verdict:?}");
        Ok(())
    });
    results.into_iter().collect()
}
