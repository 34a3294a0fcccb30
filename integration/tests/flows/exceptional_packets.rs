//! Rules whose effect no ordinary connection shows: crafted packets or conntrack's entries show it. Each test runs with
//! the rule, and as a control without it.

use gybe_demo::testnet::client::{Client, SourceOptions};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_integration::failure::Failure;
use gybe_integration::namespace::in_parallel;
use gybe_integration::programs::patient_iptables;
use gybe_integration::topology::{Stray, Topology};
use gybe_integration::vectors::{self, Location, Vector};
use gybe_netfilter::apply::apply;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::compile::compile;
use gybe_netfilter::kernel::routes::Routes;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::{Inbound, InterfaceName, Mode, Port, PortSet, RedirectPolicy};
use gybe_netfilter::model::ruleset::Engine;
use gybe_netfilter::model::ruleset::{
    Chain, ChainName, ConnectionState, Is, Match, Rule, RuleId, Ruleset, Transport, Verdict,
};
use gybe_netfilter::nft::Nft;
use std::collections::BTreeSet;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
const NO_ANSWER_WITHIN: Duration = Duration::from_secs(1);

fn vector(name: &str) -> Result<Vector, Failure> {
    let found = vectors::all()?.into_iter().find(|vector| vector.name == name);
    found.ok_or_else(|| Failure::new(format!("no vector {name}")))
}

/// Creates the recorded network with the policy's rules as changed by `change`.
fn topology_with(
    vector: &Vector,
    change: impl FnOnce(Ruleset) -> Result<Ruleset, Failure>,
) -> Result<Topology, Failure> {
    let topology = Topology::new(vector.policy.mode, &vector.flows)?;
    let rules = change(compile(&vector.policy))?;
    let redirection = Redirection { rules, routes: Routes::of(&vector.policy) };
    topology.at(Location::Pod).run(|| redirection.apply(&Nft))??;
    Ok(topology)
}

fn without(rules: &Ruleset, id: &str) -> Result<Ruleset, Failure> {
    rules.without(id).ok_or_else(|| Failure::new(format!("no rule {id}")))
}

/// Returns the rules with one more at the end of the chain.
fn with(mut rules: Ruleset, chain: ChainName, rule: Rule) -> Ruleset {
    match rules.chains.iter_mut().find(|there| there.name == chain) {
        Some(there) => there.rules.push(rule),
        None => rules.chains.push(Chain { name: chain, rules: vec![rule] }),
    }
    rules
}

fn arrives_by_eth0() -> Result<Match, Failure> {
    Ok(Match::InInterface(BTreeSet::from([InterfaceName::parse("eth0")?])))
}

/// A segment that belongs to no connection: without `drop-invalid` the pod's kernel answers it with a reset, which
/// would end a connection whose late segment conntrack classified as invalid.
#[test]
fn a_segment_without_a_connection_is_dropped_and_not_answered() -> Result<(), Failure> {
    let vector = vector("drop-invalid")?;
    let to = "10.244.0.10:8080".parse()?;
    let topology = topology_with(&vector, Ok)?;
    let stray = Stray { from: "10.244.0.1:20000".parse()?, to };
    assert!(!topology.at(Location::Peer).run(|| stray.is_reset(NO_ANSWER_WITHIN))??, "with drop-invalid");
    let rest = without(&compile(&vector.policy), "drop-invalid")?;
    topology.at(Location::Pod).run(|| apply(&Nft, &rest))??;
    assert!(topology.at(Location::Peer).run(|| stray.is_reset(PATIENCE))??, "without drop-invalid");
    Ok(())
}

/// The upstream's answer is tracked in the zone of the agent's query, so that it belongs to that connection. As a new
/// connection a firewall in the pod would drop it.
#[test]
fn an_upstream_resolvers_answer_is_in_the_conntrack_zone_of_the_agents_query() -> Result<(), Failure> {
    for (name, rule, server) in [
        ("dns-all-dual", "zone-upstream-answers", "10.96.0.10:53"),
        ("dns-all-dual", "zone-upstream-answers", "[fd00:96::10]:53"),
        ("dns-servers-dual", "zone-upstream-answers-v4", "10.96.0.10:53"),
        ("dns-servers-dual", "zone-upstream-answers-v6", "[fd00:96::10]:53"),
    ] {
        let vector = vector(name)?;
        let query = Client {
            owner: Owner { uid: 1337, gid: 1337 },
            transport: Transport::Udp,
            to: server.parse()?,
            source: SourceOptions::default(),
        };
        for (there, answers_seen) in [(true, 1), (false, 0)] {
            let topology = topology_with(&vector, |rules| {
                let rules = if there { rules } else { without(&rules, rule)? };
                Ok(with(rules, ChainName::ManglePrerouting, answer_to_a_known_query()?))
            })?;
            let outcome = query.connect(topology.at(Location::Pod), PATIENCE)?;
            assert!(matches!(outcome, ConnectionOutcome::Replied(_)), "{name} {server}: {outcome}");
            assert_eq!(counted(&topology, "witness")?, answers_seen, "{rule} there: {there}, {server}");
        }
    }
    Ok(())
}

fn answer_to_a_known_query() -> Result<Rule, Failure> {
    let from_dns = Match::SourcePort(Is::In, PortSet::from_iter([53]));
    let known = Match::State(ConnectionState::EstablishedOrRelated);
    let matches = vec![arrives_by_eth0()?, Match::Protocol(Transport::Udp), from_dns, known];
    Ok(Rule { id: RuleId("witness"), matches, verdict: Verdict::Return })
}

fn counted(topology: &Topology, id: &str) -> Result<u64, Failure> {
    let inventory = topology.at(Location::Pod).run(|| Nft.inspect())??;
    let items = inventory.parts.iter().flat_map(|part| &part.items);
    Ok(items.filter(|item| item.id == id).filter_map(|item| item.packets).sum())
}

/// A policy may use as the proxy's mark the one that the proxy's connections to its own pod get. Those then count as
/// the proxy's connections to the application, and are not intercepted.
#[test]
fn a_proxys_mark_that_is_also_the_mark_of_its_connections_to_its_own_pod_is_not_intercepted()
-> Result<(), Failure> {
    let mut vector = vector("tproxy-default-dual")?;
    vector.policy.mode = Mode::Tproxy { mark: 1338, route_table: 133 };
    let call = Client {
        owner: Owner { uid: 0, gid: 1337 },
        transport: Transport::Tcp,
        to: "10.244.0.10:8080".parse()?,
        source: SourceOptions::default(),
    };
    for (there, answers) in [(true, "app:8080"), (false, "envoy:15006")] {
        let topology = topology_with(&vector, |rules| match there {
            true => Ok(rules),
            false => without(&rules, "proxy-keeps-source"),
        })?;
        match call.connect(topology.at(Location::Pod), PATIENCE)? {
            ConnectionOutcome::Replied(answer) => {
                assert_eq!(answer.by, answers, "proxy-keeps-source there: {there}");
            }
            outcome => panic!("proxy-keeps-source there: {there}: {outcome}"),
        }
    }
    Ok(())
}

// TPROXY while no proxy listens: intercepted connections must not reach the application. The kernel's xt_TPROXY and
// nft_tproxy differ here, so the tests cover both, and nft also without the rule that compensates for it.

/// Proxy ports: the first without a listener; on the second the proxy listens, but not transparently.
const PORTS_WITHOUT_PROXY: [u16; 2] = [15999, 15008];

fn policies() -> Result<Vec<RedirectPolicy>, Failure> {
    let vector = vectors::all()?.into_iter().find(|vector| vector.name == "tproxy-default-dual");
    let policy = vector.ok_or_else(|| Failure::new("no vector tproxy-default-dual"))?.policy;
    let only = Inbound::Only(PortSet::from_iter([4000, 8080]));
    let inbound = [policy.inbound.clone(), only];
    let each = inbound.iter().flat_map(|inbound| PORTS_WITHOUT_PROXY.map(|port| (inbound.clone(), port)));
    let policy = |(inbound, port)| {
        let inbound_port = Port::new(port).unwrap_or(policy.inbound_port);
        RedirectPolicy { inbound, inbound_port, ..policy.clone() }
    };
    Ok(each.map(policy).collect())
}

fn apply_in_topology(
    policy: &RedirectPolicy,
    backend: &dyn Backend,
    redirection: &Redirection,
) -> Result<Topology, Failure> {
    let topology = Topology::new(policy.mode, &[])?;
    topology.at(Location::Pod).run(|| redirection.apply(backend))??;
    Ok(topology)
}

fn call(topology: &Topology, from: Location, to: &str, patience: Duration) -> Result<String, Failure> {
    let owner = Owner { uid: if from == Location::Pod { 1000 } else { 0 }, gid: 0 };
    let call = Client { owner, transport: Transport::Tcp, to: to.parse()?, source: SourceOptions::default() };
    let outcome = call.connect(topology.at(from), patience)?.to_string();
    Ok(outcome.split(' ').next().unwrap_or_default().to_owned())
}

#[test]
fn tproxy_connections_without_a_listening_proxy_do_not_reach_the_application() -> Result<(), Failure> {
    let legacy = patient_iptables(Engine::Legacy)?;
    let by_nft = patient_iptables(Engine::NfTables)?;
    let backends: [&dyn Backend; 3] = [&Nft, &legacy, &by_nft];
    let each = policies()?.into_iter().flat_map(|policy| backends.map(|backend| (policy.clone(), backend)));
    let outcomes = in_parallel(each.collect(), |(policy, backend)| {
        let topology = apply_in_topology(&policy, backend, &Redirection::of(&policy))?;
        for to in ["10.244.0.10:8080", "[fd00:10::10]:8080"] {
            let outcome = call(&topology, Location::Peer, to, NO_ANSWER_WITHIN)?;
            assert_eq!(outcome, "timeout", "{} {to} {policy:?}", backend.name());
            // Connections inside the pod are not intercepted.
            assert_eq!(call(&topology, Location::Pod, to, PATIENCE)?, "app:8080", "{} {to}", backend.name());
        }
        // The proxy's own ports are not intercepted either, and answer as before.
        assert_eq!(call(&topology, Location::Peer, "10.244.0.10:15021", PATIENCE)?, "envoy:15021");
        Ok(())
    });
    outcomes.into_iter().collect()
}

/// The control, for each family: with nft's tproxy alone, connections bypass the missing proxy and reach the
/// application.
#[test]
fn without_the_rule_not_intercepted_nft_passes_such_connections_to_the_application() -> Result<(), Failure> {
    let rules = [
        ("not-intercepted-v4", "10.244.0.10:8080", "[fd00:10::10]:8080"),
        ("not-intercepted-v6", "[fd00:10::10]:8080", "10.244.0.10:8080"),
    ];
    let each = policies()?.into_iter().flat_map(|policy| rules.map(|rule| (policy.clone(), rule)));
    let outcomes = in_parallel(each.collect(), |(policy, (rule, open, shut))| {
        let whole = Redirection::of(&policy);
        let rules = whole.rules.without(rule).ok_or_else(|| Failure::new(rule))?;
        let topology = apply_in_topology(&policy, &Nft, &Redirection { rules, ..whole })?;
        assert_eq!(
            call(&topology, Location::Peer, open, PATIENCE)?,
            "app:8080",
            "without {rule}: {policy:?}"
        );
        assert_eq!(call(&topology, Location::Peer, shut, NO_ANSWER_WITHIN)?, "timeout", "without {rule}");
        Ok(())
    });
    outcomes.into_iter().collect()
}
