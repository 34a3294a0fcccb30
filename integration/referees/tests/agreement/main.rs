//! Compares the rules of Gybe's encoder with those of the reference encoders, each in its own namespace.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed expectation ends the test"
)]

mod listing;
#[cfg(feature = "rustables")]
mod with_rustables;

use gybe_integration::namespace::in_new_namespace;
use gybe_integration::vectors;
use gybe_netfilter::apply::apply;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::compile::{compile, compile_ambient};
use gybe_netfilter::model::inventory::PreviousRules;
use gybe_netfilter::model::policy::{
    AmbientPolicy, CidrSet, Destinations, Dns, Inbound, InterfaceName, Owners, Port, PortRange, PortSet,
    RedirectPolicy,
};
use gybe_netfilter::model::ruleset::{ChainName, Rule, RuleId, Ruleset, Verdict};
use gybe_netfilter::nft::Nft;
use gybe_referees::backend::Libnftnl;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use listing::Listing;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The rules of a namespace as the three readers return them.
struct ObservedRules {
    listing: Listing,
    nft: String,
}

impl ObservedRules {
    fn observe() -> Self {
        Self { listing: Listing::observe(), nft: listing::nft_list() }
    }
}

fn written_by_gybe(rules: &Ruleset) -> ObservedRules {
    in_new_namespace(|| {
        apply(&Nft, rules).unwrap();
        ObservedRules::observe()
    })
}

fn written_by_nftnl(rules: &Ruleset) -> ObservedRules {
    in_new_namespace(|| {
        apply(&Libnftnl, rules).unwrap();
        ObservedRules::observe()
    })
}

fn all_cases() -> Vec<Case> {
    vectors().into_iter().chain(edges()).collect()
}

/// Checks every case, then panics with the differences of all of them.
fn for_each(cases: &[Case], difference: impl Fn(&Case) -> Option<String>) {
    let mut report = String::new();
    for case in cases {
        if let Some(difference) = difference(case) {
            let _ = writeln!(report, "{}: {difference}", case.name);
        }
    }
    assert!(report.is_empty(), "{report}");
}

fn report_of(differences: &BTreeMap<String, String>) -> Option<String> {
    (!differences.is_empty())
        .then(|| differences.iter().map(|(name, what)| format!("{name}: {what}\n")).collect())
}

#[test]
fn nftnl_and_gybe_write_the_same_bytes() {
    for_each(&all_cases(), |case| {
        let reference = written_by_nftnl(&case.rules);
        report_of(&written_by_gybe(&case.rules).listing.differences(&reference.listing))
    });
}

#[test]
fn nft_lists_the_rules_of_gybe_and_nftnl_equally() {
    for_each(&all_cases(), |case| {
        let [gybe, reference] = [written_by_gybe(&case.rules).nft, written_by_nftnl(&case.rules).nft];
        (gybe != reference).then(|| format!("gybe:\n{gybe}\nnftnl:\n{reference}"))
    });
}

#[test]
fn libnftnl_reads_the_rules_and_sets_of_gybe_like_its_own() {
    for_each(&all_cases(), |case| {
        let [gybe, reference] = [written_by_gybe(&case.rules), written_by_nftnl(&case.rules)];
        let [left, right] =
            [gybe.listing.texts(), reference.listing.texts()].map(Iterator::collect::<Vec<_>>);
        let rules = left.iter().filter(|(name, _)| name.starts_with("rule ")).count();
        (left != right || rules != case.rules.rules().count()).then(|| format!("{left:#?}\nand\n{right:#?}"))
    });
}

#[test]
fn gybe_reads_the_rules_of_nftnl_like_its_own() {
    for_each(&all_cases(), |case| {
        let found = in_new_namespace(|| {
            apply(&Libnftnl, &case.rules).unwrap();
            Nft.inspect().unwrap()
        });
        let differences = Nft.desired(&case.rules).unwrap().differences(&found);
        (!differences.is_empty()).then(|| format!("{differences:?}"))
    });
}

/// Writes one policy twice, then another, then one that the kernel refuses, and removes the rules twice.
fn reports_what_it_replaced_and_what_was_refused(backend: &dyn Backend, [first, second]: [&Ruleset; 2]) {
    in_new_namespace(|| {
        let previous = |rules| apply(backend, rules).unwrap().previous;
        assert_eq!(previous(first), PreviousRules::None);
        assert_eq!(previous(first), PreviousRules::Same);
        assert_eq!(previous(second), PreviousRules::Different);
        let before = Nft.inspect().unwrap();
        let mut refused = second.clone();
        refused.chains.retain(|chain| chain.name != ChainName::ManglePrerouting);
        let last = refused.chains.last_mut().unwrap();
        let verdict = Verdict::Goto(ChainName::ManglePrerouting);
        last.rules.push(Rule { id: RuleId("dangling"), matches: Vec::new(), verdict });
        let chain = last.name;
        let error = apply(backend, &refused).unwrap_err().to_string();
        assert_eq!(error, format!("nftables refused rule \"dangling\" in chain {chain}"));
        assert_eq!(Nft.inspect().unwrap(), before, "a refused transaction changes nothing");
        for _ in 0..2 {
            backend.remove().unwrap();
            assert!(Nft.inspect().unwrap().is_empty());
        }
    });
}

#[test]
fn nftnl_reports_what_it_replaced_and_what_was_refused() {
    let rules = |name: &str| vectors().into_iter().find(|case| case.name == name).unwrap().rules;
    let both = [rules("inject-default-dual"), rules("dns-all-dual")];
    reports_what_it_replaced_and_what_was_refused(&Libnftnl, both.each_ref());
}

/// Control of the tests above: the compared values differ when a rule is missing.
#[test]
fn every_reader_detects_a_missing_rule() {
    for case in vectors() {
        let (_, last) = case.rules.rules().last().unwrap();
        let fewer = case.rules.without(last.id.0).unwrap();
        let [whole, fewer] = [written_by_gybe(&case.rules), written_by_nftnl(&fewer)];
        assert!(!whole.listing.differences(&fewer.listing).is_empty(), "{}", case.name);
        assert_ne!(whole.nft, fewer.nft, "{}", case.name);
        assert!(whole.listing.texts().ne(fewer.listing.texts()), "{}", case.name);
    }
}

/// Control of the tests above: the compared values differ when two rules are swapped.
#[test]
fn swapped_rules_are_detected() {
    for mut case in vectors() {
        let right = written_by_gybe(&case.rules);
        let chain = case.rules.chains.iter_mut().find(|chain| chain.rules.len() > 1).unwrap();
        chain.rules.swap(0, 1);
        let wrong = written_by_nftnl(&case.rules);
        assert!(!right.listing.differences(&wrong.listing).is_empty(), "{}", case.name);
    }
}

/// A rule set and the policy's name.
pub(crate) struct Case {
    pub name: String,
    pub rules: Ruleset,
}

/// Returns the policies of the flow vectors.
pub(crate) fn vectors() -> Vec<Case> {
    let all = vectors::all().unwrap();
    all.into_iter().map(|vector| Case { rules: compile(&vector.policy), name: vector.name }).collect()
}

/// Returns edge cases of every type of list, and lists that do not fit into one message.
pub(crate) fn edges() -> Vec<Case> {
    let default =
        vectors::all().unwrap().into_iter().find(|vector| vector.name == "inject-default-dual").unwrap();
    let with = |name: &str, change: &dyn Fn(&mut RedirectPolicy)| {
        let mut policy = default.policy.clone();
        change(&mut policy);
        Case { name: name.to_owned(), rules: compile(&policy) }
    };
    let excluding =
        |name: &str, networks: &str| with(name, &|policy| policy.outbound.excluded_to = nets(networks));
    vec![
        with("a-range-of-ports", &|p| p.inbound = Inbound::Only(ports("8000-8100"))),
        with("all-ports", &|p| p.inbound = Inbound::Only(ports("0-65535"))),
        with("first-and-last-port", &|p| p.inbound = Inbound::Only(ports("0,22,80-90,65535"))),
        with("odd-ports", &|p| p.inbound = Inbound::AllBut((1..=65535).step_by(2).collect())),
        excluding("prefixes-no-byte-wide", "10.0.0.0/9,fd00::/13"),
        excluding("a-byte-wide", "10.0.0.0/8,fd00::/8"),
        excluding("single-addresses", "10.1.2.3/32,fd00::1/128"),
        excluding("everything", "0.0.0.0/0,::/0"),
        excluding("first-and-last-address", "0.0.0.0/32,255.255.255.255/32,::/128,ffff::/16"),
        // The hairpin rule matches ports other than 53 and the tunnel's, here one excluded range.
        with("all-but-a-range-of-ports", &|p| {
            p.dns = Dns::All;
            p.tunnel_port = Port::new(54).unwrap();
        }),
        // With loopback among the networks, the hairpin rule has a list of ports and one of uids.
        with("two-lists-of-one-rule", &|p| {
            p.dns = Dns::All;
            p.proxy_uids = Owners::new(1337, [0, u32::MAX]);
            p.outbound.included_to = Destinations::Only(nets("127.0.0.0/8,10.0.0.0/8"));
        }),
        with("interfaces", &|p| {
            let named =
                |names: &[&str]| names.iter().map(|name| InterfaceName::parse(name).unwrap()).collect();
            p.excluded_interfaces = named(&["net1", "a-name-of-15-by"]);
            p.virtual_interfaces = named(&["eth1", "eth2"]);
        }),
        with("thousands-of-networks", &|p| p.outbound.included_to = Destinations::Only(many_networks())),
        Case { name: "ambient".to_owned(), rules: compile_ambient(&AmbientPolicy::default()) },
    ]
}

fn nets(text: &str) -> CidrSet {
    text.split(',').map(|net| net.parse::<IpNet>().unwrap()).collect()
}

fn ports(text: &str) -> PortSet {
    text.split(',').map(|range| range.parse::<PortRange>().unwrap()).collect()
}

/// Two thousand networks of each family that do not touch: more than one message of elements and more than mnl's
/// 128 KiB, and less than a user namespace may send.
fn many_networks() -> CidrSet {
    let v4 = (0..2000_u32).map(|n| IpNet::V4(Ipv4Net::new((0x0a00_0000 + (n << 9)).into(), 24).unwrap()));
    let v6 = (0..2000_u128)
        .map(|n| IpNet::V6(Ipv6Net::new(((0xfd00_u128 << 112) + (n << 65)).into(), 64).unwrap()));
    v4.chain(v6).collect()
}
