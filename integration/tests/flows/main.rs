//! Connections in the recorded network: their outcome under every policy and by every backend. Controls of the
//! network itself: namespaces are new and removed afterwards, sockets have the requested owner, and without rules
//! every recorded connection has its recorded outcome.

#![cfg(test)]

mod ambient;
mod exceptional_packets;
mod network_policies;
mod recorded;

use gybe_demo::testnet::client::{Client, SourceOptions};
use gybe_demo::testnet::listener::{ListenAddress, Listeners, ListeningPort, ServerName};
use gybe_demo::testnet::namespace::{LinkEnd, Namespace, join};
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Rules, Until, differences};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Location};
use gybe_netfilter::apply::apply;
use gybe_netfilter::kernel::netns::{Netns, addresses};
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::{Families, InterfaceName, Mode, Port};
use gybe_netfilter::model::ruleset::{Chain, ChainName, Match, Rule, RuleId, Ruleset, Transport, Verdict};
use gybe_netfilter::nft::Nft;
use gybe_test_support::{PATIENCE, wait_until};
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, thread};

#[test]
fn without_rules_every_flow_has_its_recorded_outcome() -> Result<(), Failure> {
    let all: Vec<_> = vectors::all()?.into_iter().flat_map(|vector| vector.flows).collect();
    let mut flows: Vec<vectors::Flow> = Vec::new();
    for flow in all {
        if !flows.iter().any(|other| other.id == flow.id) {
            flows.push(flow);
        }
    }
    // Without rules all policies share this one control; only the proxy's user differs.
    for mode in [Mode::Redirect, Mode::Tproxy { mark: 1337, route_table: 133 }] {
        let topology = Topology::new(mode, &flows)?;
        let found = differences(&topology, &flows, Rules::Absent, Until::End)?;
        assert!(found.is_empty(), "{mode:?}: {} flows: {found:#?}", found.len());
    }
    Ok(())
}

#[test]
fn a_namespace_is_new_and_can_be_opened_by_its_path() -> Result<(), Failure> {
    let own = Netns::of_this_thread()?;
    let (one, other) = (Namespace::new()?, Namespace::new()?);
    let opened = Netns::open(&one.path())?;
    assert!(!opened.is_same_as(&own));
    assert!(!opened.is_same_as(&Netns::open(&other.path())?));
    assert!(one.run(Netns::of_this_thread)??.is_same_as(&opened));
    assert!(Netns::of_this_thread()?.is_same_as(&own), "the test's own thread stays in its namespace");
    let found = one.run(addresses)??;
    assert!(found.iter().all(|address| address.index == 1), "{found:?}");
    assert!(!found.is_empty(), "lo is up and has its addresses");
    Ok(())
}

#[test]
fn a_namespaces_links_are_removed_with_it() -> Result<(), Failure> {
    let (kept, dropped) = (Namespace::new()?, Namespace::new()?);
    let name = InterfaceName::parse("eth0")?;
    let end = |namespace, address: &str| -> Result<LinkEnd<'_>, Failure> {
        Ok(LinkEnd { namespace, name: name.clone(), addresses: vec![address.parse()?] })
    };
    join(&end(&kept, "10.9.0.1/24")?, &end(&dropped, "10.9.0.2/24")?)?;
    let has_link =
        || -> Result<bool, Failure> { Ok(kept.run(addresses)??.iter().any(|address| address.index != 1)) };
    assert!(has_link()?);
    drop(dropped);
    // The kernel takes it down a moment later, and the other end of its link with it.
    wait_until("the link's end", || !has_link().unwrap());
    Ok(())
}

/// As on a kernel with `ipv6.disable_ipv6=1`.
#[test]
fn listeners_start_in_a_namespace_without_ipv6_addresses() -> Result<(), Failure> {
    let namespace = Arc::new(Namespace::new()?);
    namespace.run(|| fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"))??;
    let root = Owner { uid: 0, gid: 0 };
    let port = ListeningPort { transport: Transport::Tcp, port: 15053, address: ListenAddress::Loopback };
    let _listening = Listeners::start(&namespace, root, ServerName::Name("dns"), vec![port])?;
    let to = SocketAddr::from(([127, 0, 0, 1], 15053));
    let client = Client { owner: root, transport: Transport::Tcp, to, source: SourceOptions::default() };
    let outcome = client.connect(&namespace, PATIENCE)?;
    assert!(matches!(&outcome, ConnectionOutcome::Replied(reply) if reply.by == "dns"), "{outcome}");
    Ok(())
}

/// A program that another test starts has a copy of every socket until execve(2) closes it.
#[test]
fn a_client_waits_for_a_source_port_of_which_another_process_still_has_a_copy() -> Result<(), Failure> {
    let namespace = Arc::new(Namespace::new()?);
    let root = Owner { uid: 0, gid: 0 };
    let port = ListeningPort { transport: Transport::Udp, port: 53, address: ListenAddress::Loopback };
    let _listening = Listeners::start(&namespace, root, ServerName::Name("dns"), vec![port])?;
    let copy = namespace.run(|| UdpSocket::bind("0.0.0.0:40000"))??;
    let to = SocketAddr::from(([127, 0, 0, 1], 53));
    let source = SourceOptions { port: Some(40000), ..SourceOptions::default() };
    let client = Client { owner: root, transport: Transport::Udp, to, source };
    let at_once = client.connect(&namespace, Duration::ZERO)?;
    assert_eq!(at_once, ConnectionOutcome::Failed(Errno::EADDRINUSE));
    let outcome = thread::scope(|scope| {
        let connecting = scope.spawn(|| client.connect(&namespace, PATIENCE));
        thread::sleep(Duration::from_millis(50));
        drop(copy);
        connecting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    assert!(matches!(&outcome, ConnectionOutcome::Replied(reply) if reply.by == "dns"), "{outcome}");
    Ok(())
}

/// `meta skuid` and `meta skgid` match the socket's owner, which is the user of the thread that created it: two threads
/// of one process can be two users at the same time.
#[test]
fn a_sockets_owner_is_the_user_and_group_of_its_thread() -> Result<(), Failure> {
    let topology = Topology::new(Mode::Redirect, &[])?;
    let listener = |number| Port::new(number).ok_or_else(|| Failure::new("port 0"));
    let redirect = |id, owner, port| Rule {
        id: RuleId(id),
        matches: vec![Match::Protocol(Transport::Tcp), owner],
        verdict: Verdict::Redirect(port),
    };
    let rules = vec![
        redirect("user", Match::OwnerUid(BTreeSet::from([1000])), listener(15001)?),
        redirect("group", Match::OwnerGid(BTreeSet::from([4401])), listener(15006)?),
    ];
    let chains = vec![Chain { name: ChainName::NatOutput, rules }];
    let rules = Ruleset { families: Families::V4AndV6, chains };
    topology.at(Location::Pod).run(|| apply(&Nft, &rules))??;
    let to: SocketAddr = "10.244.0.10:8080".parse()?;
    let answers = |uid, gid, by: &'static str| {
        let call = Client {
            owner: Owner { uid, gid },
            transport: Transport::Tcp,
            to,
            source: SourceOptions::default(),
        };
        let topology = &topology;
        move || -> Result<(), Failure> {
            for _ in 0..20 {
                let outcome = call.connect(topology.at(Location::Pod), PATIENCE)?;
                assert_eq!(outcome.to_string().split(' ').next(), Some(by), "uid {uid} gid {gid}");
            }
            Ok(())
        }
    };
    thread::scope(|scope| {
        let threads = [
            scope.spawn(answers(1000, 1000, "envoy:15001")),
            scope.spawn(answers(2000, 4401, "envoy:15006")),
            scope.spawn(answers(2000, 1000, "app:8080")),
            scope.spawn(answers(0, 0, "app:8080")),
        ];
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

#[test]
fn a_refused_connection_differs_from_an_unanswered_one() -> Result<(), Failure> {
    let topology = Topology::new(Mode::Redirect, &[])?;
    let call = |to: &str| -> Result<String, Failure> {
        let owner = Owner { uid: 1000, gid: 1000 };
        let call =
            Client { owner, transport: Transport::Tcp, to: to.parse()?, source: SourceOptions::default() };
        Ok(call.connect(topology.at(Location::Pod), Duration::from_millis(200))?.to_string())
    };
    assert_eq!(call("127.0.0.1:1")?, "refused");
    // An unused address on the pod's own network: ARP gets no answer.
    assert_eq!(call("192.168.77.77:80")?, "timeout");
    assert_eq!(call("[ff02::1]:80")?, "ERR [Errno 101] Network is unreachable");
    Ok(())
}
