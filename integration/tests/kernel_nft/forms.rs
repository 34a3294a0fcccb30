//! The kernel accepts every match and every verdict, and sets of thousands of elements, and lists each byte for byte as
//! written.

use crate::fixture::{differences, every_match, every_verdict, in_new_namespace, nft, policy, rule, ruleset};
use gybe_netfilter::apply::apply;
use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::show::show;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::ruleset::{ChainName, Is, Match, Networks, Ruleset, Transport, Verdict};
use gybe_netfilter::nft::Nft;
use gybe_test_support::TestDir;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Loads a script with `nft -f`.
fn load(script: &str) {
    let directory = TestDir::new("script");
    nft(&["-f", directory.write("script.nft", script).to_str().unwrap()]);
}

#[test]
fn every_match_loads_and_reads_back_byte_for_byte() {
    in_new_namespace(|| {
        apply(&Nft, &every_match()).unwrap();
        assert_eq!(differences(&every_match()), [""; 0], "{}", nft(&["list", "ruleset"]));
    });
}

#[test]
fn every_verdict_loads_and_reads_back_byte_for_byte() {
    in_new_namespace(|| {
        apply(&Nft, &every_verdict()).unwrap();
        assert_eq!(differences(&every_verdict()), [""; 0], "{}", nft(&["list", "ruleset"]));
    });
}

#[test]
fn the_listing_of_nft_can_be_loaded_again() {
    for rules in [every_match(), every_verdict()] {
        in_new_namespace(|| {
            apply(&Nft, &rules).unwrap();
            let listed = nft(&["list", "ruleset"]);
            in_new_namespace(|| {
                load(&listed);
                assert_eq!(nft(&["list", "ruleset"]), listed);
            });
        });
    }
}

#[test]
fn nft_shows_every_rules_id_as_its_comment() {
    in_new_namespace(|| {
        apply(&Nft, &every_match()).unwrap();
        let listed = nft(&["list", "table", "inet", "gybe"]);
        for (_, rule) in every_match().rules() {
            let comment = format!("comment \"{}\"", rule.id);
            assert_eq!(listed.matches(&comment).count(), 1, "{comment} in {listed}");
        }
    });
}

/// nft would print other numbers if a data type or a byte order were wrong.
#[test]
fn nft_prints_values_in_their_usual_notation() {
    in_new_namespace(|| {
        apply(&Nft, &every_match()).unwrap();
        let listed = nft(&["-n", "list", "table", "inet", "gybe"]);
        for line in [
            "elements = { 0, 3, 1337, 4294967294 }",
            "elements = { 2, 1337 }",
            "\"a23456789012345\"",
            "elements = { 22, 80, 443, 8000-8001,",
            "elements = { 10.0.0.0-11.0.255.255 }",
            "elements = { 1.0.0.0/8, 255.0.0.0/8 }",
            "tcp dport != 15008 counter",
            "udp sport 8000-8999 counter",
            "udp sport != 0-1023 counter",
            "ip daddr 10.0.0.0/9 counter",
            "ip daddr != 10.1.2.0/24 counter",
            "ip6 daddr != fc00::/7 counter",
            "ip6 daddr fd01::/64 counter",
            "meta skuid 1337 counter",
            "ct state 0x2,0x4 counter",
            "iifname \"eth0\" counter",
        ] {
            assert!(listed.contains(line), "{line} in {listed}");
        }
    });
}

#[test]
fn the_text_of_show_loads_as_the_rules_that_apply_writes() {
    for rules in [every_match(), compile(&policy())] {
        let written = in_new_namespace(|| {
            apply(&Nft, &rules).unwrap();
            nft(&["list", "ruleset"])
        });
        in_new_namespace(|| {
            load(&show(&rules));
            assert_eq!(differences(&rules), [""; 0], "as bytes");
            assert_eq!(nft(&["list", "ruleset"]), written);
        });
    }
}

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
    for rules in [v4(1000), v6(1000), with(vec![Match::Protocol(Transport::Udp), ports]), with(vec![uids])] {
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
    let rules = with(vec![Match::Protocol(Transport::Tcp), ports]);
    in_new_namespace(|| {
        apply(&Nft, &rules).unwrap();
        assert!(differences(&rules).is_empty());
    });
}
