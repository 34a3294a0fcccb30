//! The rules of ambient policies without a kernel. What they do to real packets: integration/tests/flows/ambient.rs.

use crate::iptables_text::assert_same;
use crate::outcomes::{APP, arrives, in_a_pod, interface, leaves, port};
use crate::random::Random;
use gybe_netfilter::compile::{compile, compile_ambient, has_ambient_rules};
use gybe_netfilter::inspect::live::Outcome;
use gybe_netfilter::inspect::show::show;
use gybe_netfilter::model::inventory::{Inventory, Item, Part, PartKind};
use gybe_netfilter::model::packet::{Connection, ConnectionPhase, Owner, Packet};
use gybe_netfilter::model::policy::ambient::{AmbientDns, AmbientInbound, AmbientPolicy, ProbeAddresses};
use gybe_netfilter::model::policy::{Families, MaskedMark};
use gybe_netfilter::model::ruleset::Transport;

/// For review in a diff; other tests check the effect of the rules.
#[test]
fn istio_cnis_default_policy_is_shown_as_in_the_golden_file() {
    assert_eq!(show(&compile_ambient(&AmbientPolicy::default())), include_str!("ambient-default.nft"));
}

/// Every policy, with the names of the random packets' interfaces.
fn policies() -> Vec<AmbientPolicy> {
    let mut all = Vec::new();
    for inbound in [AmbientInbound::Captured, AmbientInbound::Bypassed] {
        for dns in [AmbientDns::Off, AmbientDns::Captured] {
            for machines in [&[][..], &["eth1"], &["eth0", "eth1"]] {
                for families in [Families::V4Only, Families::V4AndV6] {
                    let virtual_interfaces = machines.iter().map(|name| interface(name)).collect();
                    let probes = ProbeAddresses::default();
                    all.push(AmbientPolicy { inbound, dns, virtual_interfaces, probes, families });
                }
            }
        }
    }
    all
}

#[test]
fn iptables_text_has_the_same_outcomes_as_its_policy() {
    let mut random = Random::new(26);
    for policy in policies() {
        let packets: Vec<Packet> = (0..400)
            .map(|_| {
                let packet = random.packet();
                let connection = Connection { mark: random.one(&[0, 0x111, 0xf111]), ..packet.connection };
                Packet { connection, ..packet }.marked(random.one(&[0, 0x539, 0xf539, 0x111, 0x538]))
            })
            .collect();
        assert_same(&compile_ambient(&policy), &packets);
    }
}

#[test]
fn with_ipv6_off_no_rule_applies_to_an_ipv6_packet() {
    for policy in policies().into_iter().filter(|policy| policy.families == Families::V4Only) {
        let rules = in_a_pod(&compile_ambient(&policy));
        for transport in [Transport::Tcp, Transport::Udp] {
            for mark in [0, 0x539] {
                let packet = leaves("eth0", "fd00:10::10", "[fd01::3]:53", transport).marked(mark);
                assert_eq!(rules.trace(&packet).steps, [], "{packet:?}");
            }
        }
        assert_eq!(rules.trace(&arrives("[fd00:10::10]:8080".parse().unwrap())).steps, []);
    }
}

#[test]
fn every_inbound_port_but_the_tunnels_goes_to_ztunnel() {
    let rules = in_a_pod(&compile_ambient(&AmbientPolicy::default()));
    for host in ["10.244.0.10", "fd00:10::10"] {
        for number in 0..=u16::MAX {
            let to = (host.parse::<std::net::IpAddr>().unwrap(), number).into();
            let expected = match number {
                15008 => Outcome::Untouched,
                _ => Outcome::Redirected(port(15006)),
            };
            assert_eq!(rules.trace(&arrives(to)).outcome, expected, "{to}");
        }
    }
}

/// A mark has 32 bits, of which ztunnel's rules compare twelve.
#[test]
fn only_the_lower_bits_of_a_mark_decide() {
    let rules = in_a_pod(&compile_ambient(&AmbientPolicy::default()));
    let app = leaves("eth0", "10.244.0.10", "10.1.2.3:80", Transport::Tcp).owned_by(APP);
    let to_ztunnel = Outcome::Redirected(port(15001));
    for (mark, outcome, by) in [
        (0, to_ztunnel, Some("outbound-to-ztunnel-v4")),
        (0x538, to_ztunnel, Some("outbound-to-ztunnel-v4")),
        (0x539, Outcome::Untouched, None),
        (0x0001_0539, Outcome::Untouched, None),
        (0x1539, Outcome::Untouched, None),
        (0x111, Outcome::Untouched, Some("to-original-source")),
        (0xf111, Outcome::Untouched, Some("to-original-source")),
    ] {
        let trace = rules.trace(&app.clone().marked(mark));
        assert_eq!((trace.outcome, trace.rule()), (outcome, by), "{mark:#x}");
    }
}

/// ztunnel's connection to the application gets a mark that the application's packets take over.
#[test]
fn the_applications_packets_in_a_connection_of_ztunnel_take_the_mark_that_leads_back() {
    let rules = in_a_pod(&compile_ambient(&AmbientPolicy::default()));
    let answer = leaves("eth0", "10.244.0.10", "10.244.0.1:40000", Transport::Tcp);
    for (connection, mark) in [(0, 0), (0x111, 0x111), (0x00ab_c111, 0x00ab_c111), (0x112, 0)] {
        let connection = Connection { phase: ConnectionPhase::Established, mark: connection };
        let trace = rules.trace(&Packet { connection, ..answer.clone() });
        assert_eq!((trace.mark, trace.outcome), (mark, Outcome::Untouched), "{connection:?}");
    }
}

/// Also where most of the rules are gone.
#[test]
fn one_rule_shows_whether_rules_are_those_of_an_ambient_policy() {
    let inventory = |kind, id: &str| {
        let item = Item { id: id.to_owned(), form: Vec::new(), packets: None, bytes: None };
        Inventory::of(vec![Part { kind, name: "one".to_owned(), form: Vec::new(), items: vec![item] }])
    };
    for policy in policies() {
        for (_, rule) in compile_ambient(&policy).rules() {
            assert!(has_ambient_rules(&inventory(PartKind::Chain, rule.id.0)), "{}", rule.id);
            assert!(!has_ambient_rules(&inventory(PartKind::Set, rule.id.0)), "{}", rule.id);
        }
    }
    let mut random = Random::new(27);
    for _ in 0..500 {
        for (_, rule) in compile(&random.policy()).rules() {
            assert!(!has_ambient_rules(&inventory(PartKind::Chain, rule.id.0)), "{}", rule.id);
        }
    }
}

/// The answer to a client's address reaches ztunnel's socket by its mark alone.
#[test]
fn without_the_mark_of_answers_ztunnels_connection_with_the_clients_address_gets_none() {
    let whole = compile_ambient(&AmbientPolicy::default());
    for (from, to) in [("10.244.0.1", "10.244.0.10:8080"), ("fd00:10::1", "[fd00:10::10]:8080")] {
        let ztunnel = Owner { uid: 0, gid: 1337 };
        let packet = leaves("lo", from, to, Transport::Tcp).owned_by(ztunnel).marked(0x539);
        for (rules, outcome) in [
            (whole.clone(), Outcome::Untouched),
            (whole.without("answer-to-ztunnel").unwrap(), Outcome::RepliesLost),
            (whole.without("original-source").unwrap(), Outcome::RepliesLost),
        ] {
            let trace = in_a_pod(&rules).trace(&packet);
            assert_eq!((trace.first, trace.outcome), (Outcome::Untouched, outcome), "{packet:?}");
        }
    }
}

#[test]
fn a_masked_mark_has_no_bits_outside_of_its_mask() {
    let mark = MaskedMark::new(0x1539, 0xfff);
    assert_eq!((mark.value(), mark.mask(), mark.to_string().as_str()), (0x539, 0xfff, "0x539/0xfff"));
    assert_eq!(MaskedMark::from(1337).to_string(), "0x539");
    assert!(mark.is_in(0xf539) && !mark.is_in(0x538));
}

#[test]
fn a_probes_address_is_that_of_one_host() {
    let default = ProbeAddresses::default();
    for v4 in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
        assert!(default.with_v4(v4.parse().unwrap()).is_err(), "{v4}");
    }
    for v6 in ["::", "::1", "ff02::1"] {
        assert!(default.with_v6(v6.parse().unwrap()).is_err(), "{v6}");
    }
    let [v4, v6] = ["192.0.2.1", "fd16::1"];
    let both = default.with_v4(v4.parse().unwrap()).and_then(|it| it.with_v6(v6.parse().unwrap())).unwrap();
    assert_eq!([both.v4().to_string(), both.v6().to_string()], [v4, v6]);
}
