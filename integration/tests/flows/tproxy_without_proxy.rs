//! TPROXY while no proxy listens: intercepted connections do not reach the application. The kernel's xt_TPROXY and
//! nft_tproxy differ here, so the test covers both, and nft also without the rule that compensates for it.

use gybe_installer::testnet::client::{Client, SourceOptions};
use gybe_integration::failure::Failure;
use gybe_integration::parallel::in_parallel;
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Location};
use gybe_netfilter::backend::Backend;
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::nft::Nft;
use gybe_netfilter::policy::{Inbound, Port, PortSet, RedirectPolicy};
use gybe_netfilter::redirection::Redirection;
use gybe_netfilter::trace::{Owner, Transport};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
const NOBODY_WITHIN: Duration = Duration::from_secs(1);

/// Proxy ports: the first without a listener; on the second the proxy listens, but not transparently.
const UNHEARD: [u16; 2] = [15999, 15008];

fn policies() -> Result<Vec<RedirectPolicy>, Failure> {
    let vector = vectors::all()?.into_iter().find(|vector| vector.name == "tproxy-default-dual");
    let policy = vector.ok_or_else(|| Failure::new("no vector tproxy-default-dual"))?.policy;
    let only = Inbound::Only(PortSet::from_iter([4000, 8080]));
    let inbound = [policy.inbound.clone(), only];
    let each = inbound.iter().flat_map(|inbound| UNHEARD.map(|port| (inbound.clone(), port)));
    let policy = |(inbound, port)| {
        let inbound_port = Port::new(port).unwrap_or(policy.inbound_port);
        RedirectPolicy { inbound, inbound_port, ..policy.clone() }
    };
    Ok(each.map(policy).collect())
}

fn world(
    policy: &RedirectPolicy,
    backend: &dyn Backend,
    redirection: &Redirection,
) -> Result<Topology, Failure> {
    let world = Topology::new(policy.mode, &[])?;
    world.at(Location::Pod).run(|| redirection.apply(backend))??;
    Ok(world)
}

fn call(world: &Topology, from: Location, to: &str, patience: Duration) -> Result<String, Failure> {
    let owner = Owner { uid: if from == Location::Pod { 1000 } else { 0 }, gid: 0 };
    let call = Client { owner, transport: Transport::Tcp, to: to.parse()?, source: SourceOptions::default() };
    let fate = call.connect(world.at(from), patience)?.to_string();
    Ok(fate.split(' ').next().unwrap_or_default().to_owned())
}

#[test]
fn what_nobody_intercepts_does_not_reach_the_application() -> Result<(), Failure> {
    let legacy = Iptables::find(Variant::Legacy)?.with_deadline(Duration::from_secs(120));
    let by_nft = Iptables::find(Variant::Nft)?.with_deadline(Duration::from_secs(120));
    let backends: [&dyn Backend; 3] = [&Nft, &legacy, &by_nft];
    let each = policies()?.into_iter().flat_map(|policy| backends.map(|backend| (policy.clone(), backend)));
    let outcomes = in_parallel(each.collect(), |(policy, backend)| {
        let world = world(&policy, backend, &Redirection::of(&policy))?;
        for to in ["10.244.0.10:8080", "[fd00:10::10]:8080"] {
            let fate = call(&world, Location::Peer, to, NOBODY_WITHIN)?;
            assert_eq!(fate, "timeout", "{} {to} {policy:?}", backend.name());
            // Connections inside the pod are not intercepted.
            assert_eq!(call(&world, Location::Pod, to, PATIENCE)?, "app:8080", "{} {to}", backend.name());
        }
        // The proxy's own ports are not intercepted either, and answer as before.
        assert_eq!(call(&world, Location::Peer, "10.244.0.10:15021", PATIENCE)?, "envoy:15021");
        Ok(())
    });
    outcomes.into_iter().collect()
}

/// The control, for each family: with nft's tproxy alone, connections bypass the missing proxy and reach the application.
#[test]
fn without_the_rule_for_it_nft_lets_it_through() -> Result<(), Failure> {
    let rules = [
        ("not-intercepted-v4", "10.244.0.10:8080", "[fd00:10::10]:8080"),
        ("not-intercepted-v6", "[fd00:10::10]:8080", "10.244.0.10:8080"),
    ];
    let each = policies()?.into_iter().flat_map(|policy| rules.map(|rule| (policy.clone(), rule)));
    let outcomes = in_parallel(each.collect(), |(policy, (rule, open, shut))| {
        let whole = Redirection::of(&policy);
        let rules = whole.rules.without(rule).ok_or_else(|| Failure::new(rule))?;
        let world = world(&policy, &Nft, &Redirection { rules, ..whole })?;
        assert_eq!(call(&world, Location::Peer, open, PATIENCE)?, "app:8080", "without {rule}: {policy:?}");
        assert_eq!(call(&world, Location::Peer, shut, NOBODY_WITHIN)?, "timeout", "without {rule}");
        Ok(())
    });
    outcomes.into_iter().collect()
}
