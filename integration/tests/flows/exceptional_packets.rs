//! Rules whose effect no ordinary connection shows: crafted packets or conntrack's entries show it. Each test runs with the
//! rule, and as a control without it.

use gybe_installer::testnet::client::{Client, SourceOptions};
use gybe_installer::testnet::outcome::ConnectionOutcome;
use gybe_integration::failure::Failure;
use gybe_integration::segment::Stray;
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Location, Vector};
use gybe_netfilter::apply::apply;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::compile::compile;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::policy::{InterfaceName, Mode, PortSet};
use gybe_netfilter::redirection::Redirection;
use gybe_netfilter::routes::Routes;
use gybe_netfilter::ruleset::{
    Chain, ChainName, ConnectionState, Is, Match, Protocol, Rule, RuleId, Ruleset, Verdict,
};
use gybe_netfilter::trace::{Owner, Transport};
use std::collections::BTreeSet;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
const NOBODY_WITHIN: Duration = Duration::from_secs(1);

fn vector(name: &str) -> Result<Vector, Failure> {
    let found = vectors::all()?.into_iter().find(|vector| vector.name == name);
    found.ok_or_else(|| Failure::new(format!("no vector {name}")))
}

/// Creates the recorded network with the policy's rules as changed by `change`.
fn world(
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

/// A segment that belongs to no connection: without `drop-invalid` the pod's kernel answers it with a reset, which would
/// end a connection whose late segment conntrack classified as invalid.
#[test]
fn a_segment_of_no_connection_is_dropped_before_it_is_answered() -> Result<(), Failure> {
    let vector = vector("drop-invalid")?;
    let to = "10.244.0.10:8080".parse()?;
    let world = world(&vector, Ok)?;
    let stray = Stray { from: "10.244.0.1:20000".parse()?, to };
    assert!(!world.at(Location::Peer).run(|| stray.is_reset(NOBODY_WITHIN))??, "with drop-invalid");
    let rest = without(&compile(&vector.policy), "drop-invalid")?;
    world.at(Location::Pod).run(|| apply(&Nft, &rest))??;
    assert!(world.at(Location::Peer).run(|| stray.is_reset(PATIENCE))??, "without drop-invalid");
    Ok(())
}

/// The upstream's answer is tracked in the zone of the agent's question, so that it is part of that
/// connection and not the beginning of another one: a firewall in the pod would turn it away.
#[test]
fn the_upstream_resolvers_answer_belongs_to_the_agents_question() -> Result<(), Failure> {
    for (name, rule, server) in [
        ("dns-all-dual", "zone-upstream-answers", "10.96.0.10:53"),
        ("dns-all-dual", "zone-upstream-answers", "[fd00:96::10]:53"),
        ("dns-servers-dual", "zone-upstream-answers-v4", "10.96.0.10:53"),
        ("dns-servers-dual", "zone-upstream-answers-v6", "[fd00:96::10]:53"),
    ] {
        let vector = vector(name)?;
        let question = Client {
            owner: Owner { uid: 1337, gid: 1337 },
            transport: Transport::Udp,
            to: server.parse()?,
            source: SourceOptions::default(),
        };
        for (there, answers_seen) in [(true, 1), (false, 0)] {
            let world = world(&vector, |rules| {
                let rules = if there { rules } else { without(&rules, rule)? };
                Ok(with(rules, ChainName::ManglePrerouting, answer_to_a_known_question()?))
            })?;
            let fate = question.connect(world.at(Location::Pod), PATIENCE)?;
            assert!(matches!(fate, ConnectionOutcome::Replied(_)), "{name} {server}: {fate}");
            assert_eq!(counted(&world, "witness")?, answers_seen, "{rule} there: {there}, {server}");
        }
    }
    Ok(())
}

fn answer_to_a_known_question() -> Result<Rule, Failure> {
    let from_dns = Match::SourcePort(Is::In, PortSet::from_iter([53]));
    let known = Match::State(ConnectionState::EstablishedOrRelated);
    let matches = vec![arrives_by_eth0()?, Match::Protocol(Protocol::Udp), from_dns, known];
    Ok(Rule { id: RuleId("witness"), matches, verdict: Verdict::Return })
}

fn counted(world: &Topology, id: &str) -> Result<u64, Failure> {
    let inventory = world.at(Location::Pod).run(|| Nft.inspect())??;
    let items = inventory.parts.iter().flat_map(|part| &part.items);
    Ok(items.filter(|item| item.id == id).filter_map(|item| item.packets).sum())
}

/// A policy may use as the proxy's mark the one that the proxy's connections to its own pod get. Those then count as the
/// proxy's connections to the application, and are not intercepted.
#[test]
fn the_proxys_mark_spares_also_where_it_is_the_mark_of_calls_to_the_own_pod() -> Result<(), Failure> {
    let mut vector = vector("tproxy-default-dual")?;
    vector.policy.mode = Mode::Tproxy { mark: 1338, route_table: 133 };
    let call = Client {
        owner: Owner { uid: 0, gid: 1337 },
        transport: Transport::Tcp,
        to: "10.244.0.10:8080".parse()?,
        source: SourceOptions::default(),
    };
    for (there, answers) in [(true, "app:8080"), (false, "envoy:15006")] {
        let world = world(&vector, |rules| match there {
            true => Ok(rules),
            false => without(&rules, "proxy-keeps-source"),
        })?;
        match call.connect(world.at(Location::Pod), PATIENCE)? {
            ConnectionOutcome::Replied(answer) => {
                assert_eq!(answer.by, answers, "proxy-keeps-source there: {there}");
            }
            fate => panic!("proxy-keeps-source there: {there}: {fate}"),
        }
    }
    Ok(())
}
