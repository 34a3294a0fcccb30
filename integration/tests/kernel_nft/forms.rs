//! Hand-written rule sets with every match and every verdict, whether or not `compile` uses it today, and sets of
//! thousands of elements: the kernel accepts each and lists it byte for byte as written.

pub(crate) use gybe_integration::namespace::in_new_namespace;
use gybe_netfilter::apply::apply;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::show::show;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::inventory::Inventory;
use gybe_netfilter::model::policy::{Families, InterfaceName, MaskedMark, Port, PortSet, RedirectPolicy};
use gybe_netfilter::model::ruleset::{
    Chain, ChainName, ConnectionState, Family, Is, Match, Networks, Rule, RuleId, Ruleset, Transport, Verdict,
};
use gybe_netfilter::nft::Nft;
use gybe_test_support::TestDir;
use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;

pub(crate) fn port(port: u16) -> Port {
    Port::new(port).unwrap()
}

pub(crate) fn ports(list: impl IntoIterator<Item = u16>) -> PortSet {
    list.into_iter().collect()
}

pub(crate) fn names(list: &[&str]) -> BTreeSet<InterfaceName> {
    list.iter().map(|name| InterfaceName::parse(name).unwrap()).collect()
}

pub(crate) fn v4(list: &[&str]) -> Networks {
    Networks::V4(list.iter().map(|net| net.parse().unwrap()).collect())
}

pub(crate) fn v6(list: &[&str]) -> Networks {
    Networks::V6(list.iter().map(|net| net.parse().unwrap()).collect())
}

pub(crate) fn rule(id: &'static str, matches: Vec<Match>, verdict: Verdict) -> Rule {
    Rule { id: RuleId(id), matches, verdict }
}

pub(crate) fn ruleset(chains: Vec<(ChainName, Vec<Rule>)>) -> Ruleset {
    let chains = chains.into_iter().map(|(name, rules)| Chain { name, rules }).collect();
    Ruleset { families: Families::V4AndV6, chains }
}

/// Returns a small redirect: a jump to another chain, a list, both families.
pub(crate) fn redirect() -> Ruleset {
    use ChainName::{NatCapture, NatOutput, NatPrerouting};
    let tcp = || Match::Protocol(Transport::Tcp);
    ruleset(vec![
        (
            NatPrerouting,
            vec![
                rule(
                    "inbound-excluded-ports",
                    vec![tcp(), Match::DestinationPort(Is::In, ports([15020, 15021, 15090]))],
                    Verdict::Return,
                ),
                rule("inbound", vec![tcp()], Verdict::Redirect(port(15006))),
            ],
        ),
        (
            NatOutput,
            vec![
                rule("proxy-uid", vec![Match::OwnerUid([1337].into())], Verdict::Return),
                rule("to-loopback", vec![Match::Destination(Is::In, v4(&["127.0.0.1/32"]))], Verdict::Return),
                rule("rest", vec![], Verdict::Goto(NatCapture)),
            ],
        ),
        (NatCapture, vec![rule("outbound", vec![tcp()], Verdict::Redirect(port(15001)))]),
    ])
}

/// Returns one rule for every match, in chains in which the kernel allows it.
pub(crate) fn every_match() -> Ruleset {
    use ChainName::{MangleOutput, ManglePrerouting, NatOutput, RawPrerouting};
    let tcp = || Match::Protocol(Transport::Tcp);
    let udp = || Match::Protocol(Transport::Udp);
    let some = || ports([22, 80, 443, 8000, 8001, 65535]);
    let rules = |list: Vec<(&'static str, Vec<Match>)>| {
        list.into_iter().map(|(id, matches)| rule(id, matches, Verdict::Return)).collect()
    };
    ruleset(vec![
        (RawPrerouting, rules(vec![("no-match", vec![]), ("udp", vec![udp()])])),
        (
            ManglePrerouting,
            rules(vec![
                ("family-4", vec![Match::Family(Family::V4)]),
                ("family-6", vec![Match::Family(Family::V6)]),
                ("in-one", vec![Match::InInterface(names(&["eth0"]))]),
                ("in-many", vec![Match::InInterface(names(&["eth0", "net1", "a23456789012345"]))]),
                ("established", vec![Match::State(ConnectionState::EstablishedOrRelated)]),
                ("invalid", vec![Match::State(ConnectionState::Invalid)]),
                ("mark", vec![Match::Mark(Is::In, 1337.into())]),
                ("mark-not", vec![Match::Mark(Is::NotIn, 0xdead_beef.into())]),
                ("mark-bits", vec![Match::Mark(Is::In, MaskedMark::new(0x539, 0xfff))]),
                ("mark-bits-not", vec![Match::Mark(Is::NotIn, MaskedMark::new(0x539, 0xfff))]),
                ("ct-mark", vec![Match::ConnectionMark(1337.into())]),
                ("ct-mark-bits", vec![Match::ConnectionMark(MaskedMark::new(0x111, 0xfff))]),
                ("from-one", vec![Match::Source(Is::In, v4(&["127.0.0.6/32"]))]),
                ("from-many", vec![Match::Source(Is::NotIn, v4(&["10.0.0.0/8", "192.168.0.0/16"]))]),
                ("from-one-6", vec![Match::Source(Is::In, v6(&["::6/128"]))]),
                ("from-many-6", vec![Match::Source(Is::NotIn, v6(&["fd00::/8", "ff00::/8"]))]),
                (
                    "family-and-address",
                    vec![Match::Family(Family::V4), Match::Source(Is::In, v4(&["10.0.0.0/8"]))],
                ),
            ]),
        ),
        (
            MangleOutput,
            rules(vec![
                ("to-prefix-9", vec![Match::Destination(Is::In, v4(&["10.0.0.0/9"]))]),
                ("to-prefix-24-not", vec![Match::Destination(Is::NotIn, v4(&["10.1.2.0/24"]))]),
                ("to-anywhere", vec![Match::Destination(Is::In, v4(&["0.0.0.0/0"]))]),
                ("to-touching", vec![Match::Destination(Is::In, v4(&["10.0.0.0/8", "11.0.0.0/16"]))]),
                ("to-top", vec![Match::Destination(Is::In, v4(&["1.0.0.0/8", "255.0.0.0/8"]))]),
                ("to-6-prefix-7", vec![Match::Destination(Is::NotIn, v6(&["fc00::/7"]))]),
                ("to-6-prefix-64", vec![Match::Destination(Is::In, v6(&["fd01::/64"]))]),
                ("to-6-all", vec![Match::Destination(Is::In, v6(&["::/0"]))]),
                ("to-6-many", vec![Match::Destination(Is::In, v6(&["::1/128", "8000::/1"]))]),
            ]),
        ),
        (
            NatOutput,
            rules(vec![
                ("out-one", vec![Match::OutInterface(names(&["lo"]))]),
                ("out-many", vec![Match::OutInterface(names(&["lo", "eth0"]))]),
                ("port", vec![tcp(), Match::DestinationPort(Is::In, ports([80]))]),
                ("port-not", vec![tcp(), Match::DestinationPort(Is::NotIn, ports([15008]))]),
                ("range", vec![udp(), Match::SourcePort(Is::In, ports(8000..9000))]),
                ("range-not", vec![udp(), Match::SourcePort(Is::NotIn, ports(0..1024))]),
                ("ports", vec![tcp(), Match::DestinationPort(Is::In, some())]),
                ("ports-not", vec![tcp(), Match::DestinationPort(Is::NotIn, some())]),
                ("uid", vec![Match::OwnerUid([1337].into())]),
                ("uids", vec![Match::OwnerUid([0, 3, 1337, u32::MAX - 1].into())]),
                ("gid", vec![Match::OwnerGid([1337].into())]),
                ("gids", vec![Match::OwnerGid([2, 1337].into())]),
                (
                    "all-at-once",
                    vec![
                        Match::OutInterface(names(&["lo"])),
                        tcp(),
                        Match::Destination(Is::NotIn, v4(&["127.0.0.1/32"])),
                        Match::DestinationPort(Is::NotIn, ports([53, 15008])),
                        Match::OwnerUid([1, 2].into()),
                    ],
                ),
            ]),
        ),
    ])
}

/// Returns one rule for every verdict, in a chain in which the kernel allows it.
pub(crate) fn every_verdict() -> Ruleset {
    use ChainName::*;
    let tcp = || Match::Protocol(Transport::Tcp);
    let tproxy = Verdict::Tproxy { port: port(15006), mark: 1337 };
    ruleset(vec![
        (RawPrerouting, vec![rule("zone-in", vec![], Verdict::Zone(1))]),
        (RawOutput, vec![rule("zone-out", vec![], Verdict::Zone(65535))]),
        (
            ManglePrerouting,
            vec![
                rule("save", vec![], Verdict::SaveMark),
                rule("set-bits", vec![], Verdict::SetConnectionMark(MaskedMark::new(0x111, 0xfff))),
                rule("set-all-bits", vec![], Verdict::SetConnectionMark(0x539.into())),
                rule("divert", vec![tcp()], Verdict::Divert(1337)),
                rule("drop", vec![Match::State(ConnectionState::Invalid)], Verdict::Drop),
                rule("tproxy-4", vec![tcp(), Match::Destination(Is::NotIn, v4(&["127.0.0.1/32"]))], tproxy),
                rule("tproxy-6", vec![Match::Family(Family::V6), tcp()], tproxy),
                rule("tproxy-both", vec![tcp()], tproxy),
            ],
        ),
        (
            MangleOutput,
            vec![rule("restore", vec![], Verdict::RestoreMark), rule("mark", vec![], Verdict::SetMark(1338))],
        ),
        (NatPrerouting, vec![rule("redirect", vec![tcp()], Verdict::Redirect(port(15006)))]),
        (NatOutput, vec![rule("goto", vec![], Verdict::Goto(NatLoopback))]),
        (NatLoopback, vec![rule("return", vec![], Verdict::Return)]),
        (NatCapture, vec![]),
    ])
}

pub(crate) fn inspected() -> Inventory {
    Nft.inspect().unwrap()
}

/// Returns the differences between `rules` and the kernel's rules, as text.
pub(crate) fn differences(rules: &Ruleset) -> Vec<String> {
    Nft.desired(rules).unwrap().differences(&inspected()).iter().map(ToString::to_string).collect()
}

/// Returns the injector's default policy for both families.
pub(crate) fn policy() -> RedirectPolicy {
    RedirectPolicy::injected(Families::V4AndV6)
}

/// Runs a program in the namespace of this thread and returns what it printed.
#[expect(clippy::disallowed_methods, reason = "the referees of these tests are nft and ip themselves")]
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn nft(arguments: &[&str]) -> String {
    run("nft", arguments)
}

pub(crate) fn ip(arguments: &str) -> String {
    run("ip", &arguments.split(' ').collect::<Vec<_>>())
}

/// Drops every capability of the calling thread; other threads keep theirs.
#[expect(unsafe_code, reason = "no crate here wraps capset(2), and libc's setuid(2) changes all threads")]
pub(crate) fn without_privilege() {
    // `struct __user_cap_header_struct`: version 3, pid 0 (the calling thread); then two empty data structures.
    let (header, no_capabilities) = ([0x2008_0522_u32, 0], [0_u32; 6]);
    // SAFETY: both pointers are to arrays of the size that this version of the call reads.
    let result = unsafe { nix::libc::syscall(nix::libc::SYS_capset, &header, &no_capabilities) };
    assert_eq!(result, 0, "capset");
}

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
fn many_v4(count: u32) -> Ruleset {
    let nets =
        (0..count).map(|n| ipnet::Ipv4Net::new(Ipv4Addr::from_bits(0x0a00_0000 + n * 512), 24).unwrap());
    with(vec![Match::Destination(Is::In, Networks::V4(nets.collect()))])
}

fn many_v6(count: u128) -> Ruleset {
    let nets =
        (0..count).map(|n| ipnet::Ipv6Net::new(Ipv6Addr::from_bits((0xfd << 120) + (n << 65)), 64).unwrap());
    with(vec![Match::Destination(Is::NotIn, Networks::V6(nets.collect()))])
}

#[test]
fn a03_sets_of_a_thousand_elements_load_and_read_back() {
    let ports = Match::DestinationPort(Is::In, (0..1000).map(|n| n * 3).collect());
    let uids = Match::OwnerUid((0..1000).collect());
    for rules in
        [many_v4(1000), many_v6(1000), with(vec![Match::Protocol(Transport::Udp), ports]), with(vec![uids])]
    {
        in_new_namespace(|| {
            apply(&Nft, &rules).unwrap();
            assert_eq!(differences(&rules), [""; 0]);
        });
    }
}

#[test]
fn a03_sets_of_45_000_networks_load_and_read_back() {
    for rules in [many_v4(45_000), many_v6(45_000)] {
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
