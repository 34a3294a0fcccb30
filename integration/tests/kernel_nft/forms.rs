//! The kernel accepts every match and every verdict, and lists each byte for byte as written.

use crate::namespace::{in_new_namespace, nft};
use crate::rules::{differences, every_match, every_verdict, policy};
use gybe_netfilter::apply::apply;
use gybe_netfilter::compile::compile;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::show::show;

/// Loads a script with `nft -f`.
fn load(script: &str) {
    let name = format!("gybe-script-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, script).unwrap();
    nft(&["-f", path.to_str().unwrap()]);
    std::fs::remove_file(path).unwrap();
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
fn nft_lists_every_rule_so_that_it_can_be_loaded_again() {
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
fn nft_prints_values_as_people_write_them() {
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
fn the_text_that_is_shown_loads_as_the_rules_that_are_written() {
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
