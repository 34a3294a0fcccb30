//! The outcome of packets by the compiled rules, walked without a kernel, for every port.

use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::live::{LiveRules, Outcome};
use gybe_netfilter::model::packet::{Direction, Owner, Packet};
use gybe_netfilter::model::policy::{
    CidrSet, Destinations, Dns, Families, Groups, Inbound, InterfaceName, InvalidPackets, Mode, Port,
    PortSet, RedirectPolicy,
};
use gybe_netfilter::model::ruleset::{ChainName, Ruleset, Transport, Verdict};
use std::collections::BTreeSet;
use std::net::SocketAddr;

pub(crate) const APP: Owner = Owner { uid: 1000, gid: 1000 };
const PROXY: Owner = Owner { uid: 1337, gid: 1337 };

pub(crate) fn port(number: u16) -> Port {
    Port::new(number).unwrap()
}

/// The injector's default policy for both families.
fn policy() -> RedirectPolicy {
    RedirectPolicy::injected(Families::V4AndV6)
}

fn nets(text: &str) -> CidrSet {
    text.split(',').map(|net| net.parse::<ipnet::IpNet>().unwrap()).collect()
}

pub(crate) fn interface(name: &str) -> InterfaceName {
    InterfaceName::parse(name).unwrap()
}

pub(crate) fn leaves(by: &str, from: &str, to: &str, protocol: Transport) -> Packet {
    let source = SocketAddr::new(from.parse().unwrap(), 40000);
    Packet::first(Direction::Leaves { by: interface(by) }, protocol, source, to.parse().unwrap())
}

fn out(to: &str, owner: Owner) -> Packet {
    let from = if to.starts_with('[') { "fd00:10::10" } else { "10.244.0.10" };
    leaves("eth0", from, to, Transport::Tcp).owned_by(owner)
}

fn inside(to: &str, owner: Owner) -> Packet {
    let from = if to.starts_with('[') { "fd00:10::10" } else { "10.244.0.10" };
    leaves("lo", from, to, Transport::Tcp).owned_by(owner)
}

pub(crate) fn arrives(to: SocketAddr) -> Packet {
    let from: SocketAddr =
        if to.is_ipv4() { "10.244.0.1:40000" } else { "[fd00:10::1]:40000" }.parse().unwrap();
    Packet::first(Direction::Arrives { by: interface("eth0") }, Transport::Tcp, from, to)
}

/// The rules in a pod with this one interface.
pub(crate) fn in_a_pod(rules: &Ruleset) -> LiveRules {
    let addresses = ["10.244.0.10", "fd00:10::10"].map(|address| address.parse().unwrap());
    LiveRules::of_ruleset(rules).unwrap().with_interface("eth0", &addresses)
}

fn outcome(rules: &LiveRules, packet: &Packet) -> Outcome {
    rules.trace(packet).outcome
}

#[test]
fn every_inbound_port_is_either_untouched_or_redirected() {
    let rules = in_a_pod(&compile(&policy()));
    for host in ["10.244.0.10", "fd00:10::10"] {
        for number in 0..=u16::MAX {
            let is_exempt = matches!(number, 15008 | 15020 | 15021 | 15090);
            let expected = if is_exempt { Outcome::Untouched } else { Outcome::Redirected(port(15006)) };
            let target = SocketAddr::new(host.parse().unwrap(), number);
            assert_eq!(outcome(&rules, &arrives(target)), expected, "{target}");
        }
    }
}

#[test]
fn every_outbound_port_is_either_excluded_or_redirected() {
    let mut p = policy();
    p.outbound.excluded_ports = PortSet::from(8000..=8100);
    let rules = in_a_pod(&compile(&p));
    for number in 0..=u16::MAX {
        let expected = if (8000..=8100).contains(&number) {
            Outcome::Untouched
        } else {
            Outcome::Redirected(port(15001))
        };
        assert_eq!(outcome(&rules, &out(&format!("10.1.2.3:{number}"), APP)), expected, "port {number}");
    }
}

#[test]
fn connections_of_the_proxy_are_redirected_only_to_its_own_pod() {
    let rules = in_a_pod(&compile(&policy()));
    for (packet, expected, by) in [
        (out("10.1.2.3:80", PROXY), Outcome::Untouched, Some("proxy-uid")),
        (out("10.1.2.3:80", Owner { uid: 2000, gid: 1337 }), Outcome::Untouched, Some("proxy-gid")),
        (inside("10.244.0.10:8080", PROXY), Outcome::Redirected(port(15006)), Some("proxy-to-own-pod-v4")),
        (inside("[fd00:10::10]:8080", PROXY), Outcome::Redirected(port(15006)), Some("proxy-to-own-pod-v6")),
        (inside("10.244.0.10:15008", PROXY), Outcome::Untouched, Some("over-loopback")),
        (inside("127.0.0.1:8080", PROXY), Outcome::Untouched, Some("over-loopback")),
        (inside("10.244.0.10:8080", Owner { uid: 0, gid: 1337 }), Outcome::Untouched, Some("over-loopback")),
        (inside("10.244.0.10:8080", APP), Outcome::Untouched, Some("over-loopback")),
    ] {
        let trace = rules.trace(&packet);
        assert_eq!((trace.outcome, trace.rule()), (expected, by), "{packet:?}");
    }
}

#[test]
fn f40_with_ipv6_off_no_rule_applies_to_an_ipv6_packet() {
    let mut all = policy();
    all.families = Families::V4Only;
    all.dns = Dns::All;
    all.invalid = InvalidPackets::Drop;
    all.virtual_interfaces = BTreeSet::from([interface("eth1")]);
    all.excluded_interfaces = BTreeSet::from([interface("net1")]);
    for mode in [Mode::Redirect, Mode::Tproxy { mark: 1337, route_table: 133 }] {
        let rules = in_a_pod(&compile(&RedirectPolicy { mode, ..all.clone() }));
        for packet in [
            out("[fd01::3]:80", APP),
            inside("[fd00:10::10]:53", APP),
            arrives("[fd00:10::10]:8080".parse().unwrap()),
        ] {
            assert_eq!(rules.trace(&packet).steps, [], "{packet:?}");
        }
    }
}

#[test]
fn an_excluded_network_precedes_an_included_port_which_precedes_included_networks() {
    let mut p = policy();
    p.outbound.included_to = Destinations::Only(nets("20.0.0.0/8"));
    p.outbound.included_ports = [9000].into_iter().collect();
    p.outbound.excluded_to = nets("10.1.0.0/16,20.1.0.0/16");
    let rules = in_a_pod(&compile(&p));
    for (target, expected) in [
        ("10.1.2.3:9000", Outcome::Untouched),
        ("10.2.2.3:9000", Outcome::Redirected(port(15001))),
        ("10.2.2.3:80", Outcome::Untouched),
        ("20.2.2.3:80", Outcome::Redirected(port(15001))),
        ("20.1.2.3:80", Outcome::Untouched),
    ] {
        assert_eq!(outcome(&rules, &out(target, APP)), expected, "{target}");
    }
}

#[test]
fn with_dns_capture_queries_go_to_the_agent_and_the_agents_own_queries_leave() {
    let mut p = policy();
    p.dns = Dns::All;
    let rules = in_a_pod(&compile(&p));
    for server in ["10.96.0.10:53", "[fd00:96::10]:53"] {
        let from = if server.starts_with('[') { "fd00:10::10" } else { "10.244.0.10" };
        let query = |owner| leaves("eth0", from, server, Transport::Udp).owned_by(owner);
        let app = rules.trace(&query(APP));
        assert_eq!((app.outcome, app.zone), (Outcome::Redirected(port(15053)), Some(2)), "{server}");
        let agent = rules.trace(&query(PROXY));
        assert_eq!((agent.outcome, agent.zone), (Outcome::Untouched, Some(1)), "{server}");
    }
    assert_eq!(outcome(&rules, &inside("127.0.0.53:53", APP)), Outcome::Redirected(port(15053)));
    assert_eq!(outcome(&rules, &inside("127.0.0.1:8080", APP)), Outcome::Untouched);
}

#[test]
fn tproxy_intercepts_what_arrives_and_what_the_proxy_sends_to_its_own_pod() {
    let mut p = policy();
    p.mode = Mode::Tproxy { mark: 1337, route_table: 133 };
    let rules = in_a_pod(&compile(&p));
    let arriving = rules.trace(&arrives("10.244.0.10:8080".parse().unwrap()));
    assert_eq!((arriving.outcome, arriving.mark), (Outcome::Intercepted(port(15006)), 1337));
    assert_eq!(outcome(&rules, &arrives("10.244.0.10:15020".parse().unwrap())), Outcome::Untouched);
    let root_proxy = Owner { uid: 0, gid: 1337 };
    assert_eq!(outcome(&rules, &inside("10.244.0.10:8080", root_proxy)), Outcome::Intercepted(port(15006)));
    assert_eq!(outcome(&rules, &inside("10.244.0.10:8080", root_proxy).marked(1337)), Outcome::Untouched);
    assert_eq!(outcome(&rules, &inside("10.244.0.10:8080", APP)), Outcome::Untouched);
}

#[test]
fn the_length_of_a_list_does_not_change_the_number_of_rules() {
    let few = compile(&RedirectPolicy { inbound: Inbound::AllBut([80].into_iter().collect()), ..policy() });
    let many =
        compile(&RedirectPolicy { inbound: Inbound::AllBut((0..30000).step_by(2).collect()), ..policy() });
    assert_eq!(few.rules().count(), many.rules().count());
    assert_eq!(compile(&policy()).rules().count(), 11, "the injector's default, both families");
}

#[test]
fn rule_ids_are_unique_and_no_chain_is_empty() {
    let mut p = policy();
    p.dns = Dns::Servers(nets("10.96.0.10/32,fd00:96::10/128"));
    p.outbound.included_to = Destinations::Only(nets("127.0.0.0/8,10.0.0.0/8,fd00::/8"));
    p.outbound.groups = Groups::Only(BTreeSet::from([202, 4401]));
    for mode in [Mode::Redirect, Mode::Tproxy { mark: 1337, route_table: 133 }] {
        let rules = compile(&RedirectPolicy { mode, ..p.clone() });
        let ids: Vec<_> = rules.rules().map(|(_, rule)| rule.id).collect();
        let unique: BTreeSet<_> = ids.iter().collect();
        assert_eq!(ids.len(), unique.len(), "{ids:?}");
        assert!(rules.chains.iter().all(|chain| !chain.rules.is_empty()));
    }
}

#[test]
fn no_rule_continues_in_a_missing_chain() {
    for groups in [Groups::Only(BTreeSet::from([202])), Groups::AllBut(BTreeSet::from([202]))] {
        for dns in [Dns::Off, Dns::All] {
            let mut p = RedirectPolicy { dns, ..policy() };
            p.outbound.groups = groups.clone();
            p.outbound.included_to = Destinations::Only(CidrSet::default());
            let rules = compile(&p);
            for (chain, rule) in rules.rules() {
                if let Verdict::Goto(to) = rule.verdict {
                    assert!(rules.chain(to).is_some(), "{} in {chain} leads to {to}", rule.id);
                }
            }
        }
    }
}

#[test]
fn without_removes_one_rule_and_keeps_the_others() {
    let rules = compile(&policy());
    let rest = rules.without("proxy-uid").unwrap();
    assert_eq!(rest.rules().count(), rules.rules().count() - 1);
    assert_eq!(
        outcome(&in_a_pod(&rest), &out("10.1.2.3:80", Owner { uid: 1337, gid: 0 })),
        Outcome::Redirected(port(15001))
    );
    assert!(rest.chain(ChainName::NatOutput).is_some());
    assert!(rules.without("no-such-rule").is_none());
}
