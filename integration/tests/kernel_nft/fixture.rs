//! Hand-written rule sets with every match and every verdict, whether or not `compile` uses it today; programs that run
//! in the namespace of a test.

pub(crate) use gybe_integration::namespace::in_new_namespace;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::model::inventory::Inventory;
use gybe_netfilter::model::policy::{Families, InterfaceName, Port, PortSet, RedirectPolicy};
use gybe_netfilter::model::ruleset::{
    Chain, ChainName, ConnectionState, Family, Is, Match, Networks, Rule, RuleId, Ruleset, Transport, Verdict,
};
use gybe_netfilter::nft::Nft;
use std::collections::BTreeSet;
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
                ("mark", vec![Match::Mark(Is::In, 1337)]),
                ("mark-not", vec![Match::Mark(Is::NotIn, 0xdead_beef)]),
                ("ct-mark", vec![Match::ConnectionMark(1337)]),
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
