//! Sets of thousands of elements: written in one transaction and read back.

use crate::namespace::{in_new_namespace, nft};
use crate::rules::{differences, rule, ruleset};
use gybe_netfilter::apply::apply;
use gybe_netfilter::hint::Hint;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::ruleset::{ChainName, Is, Match, Networks, Protocol, Ruleset, Verdict};
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};

fn with(matches: Vec<Match>) -> Ruleset {
    ruleset(vec![(ChainName::NatOutput, vec![rule("long", matches, Verdict::Return)])])
}

/// Returns a rule set that matches `count` networks of which no two are adjacent.
fn v4(count: u32) -> Ruleset {
    let nets =
        (0..count).map(|n| ipnet::Ipv4Net::new(Ipv4Addr::from_bits(0x0a00_0000 + n * 512), 24).unwrap());
    with(vec![Match::Destination(Is::In, Networks::V4(nets.collect()))])
}

fn v6(count: u128) -> Ruleset {
    let nets =
        (0..count).map(|n| ipnet::Ipv6Net::new(Ipv6Addr::from_bits((0xfd << 120) + (n << 65)), 64).unwrap());
    with(vec![Match::Destination(Is::NotIn, Networks::V6(nets.collect()))])
}

#[test]
fn a03_sets_of_a_thousand_elements_load_and_read_back() {
    let ports = Match::DestinationPort(Is::In, (0..1000).map(|n| n * 3).collect());
    let uids = Match::OwnerUid((0..1000).collect());
    for rules in [v4(1000), v6(1000), with(vec![Match::Protocol(Protocol::Udp), ports]), with(vec![uids])] {
        in_new_namespace(|| {
            apply(&Nft, &rules).unwrap();
            assert_eq!(differences(&rules), [""; 0]);
        });
    }
}

#[test]
fn a03_sets_of_45_000_networks_load_and_read_back() {
    for rules in [v4(45_000), v6(45_000)] {
        in_new_namespace(|| {
            if let Err(error) = apply(&Nft, &rules) {
                // Without CAP_NET_ADMIN in the initial user namespace, net.core.wmem_max limits a message's size.
                assert!(error.hint().is_some_and(|hint| hint.contains("wmem_max")), "{error:?}");
                assert_ne!(
                    fs::read_to_string("/proc/self/uid_map").unwrap().split_whitespace().last(),
                    Some("4294967295")
                );
                return;
            }
            let found = differences(&rules);
            assert!(found.is_empty(), "{} differences, {:?} ...", found.len(), found.first());
            nft(&["delete", "rule", "inet", "gybe", "nat-output", "handle", "3"]);
            assert_eq!(differences(&rules).len(), 1);
        });
    }
}

#[test]
fn every_other_port_loads_and_reads_back() {
    let ports = Match::DestinationPort(Is::In, (0..=u16::MAX).step_by(2).collect());
    let rules = with(vec![Match::Protocol(Protocol::Tcp), ports]);
    in_new_namespace(|| {
        apply(&Nft, &rules).unwrap();
        assert!(differences(&rules).is_empty());
    });
}
