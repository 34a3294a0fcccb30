//! Any policy applied over any other, by any backend, leaves exactly the second policy's rules, addresses, routing
//! rules and routes, as nft, iptables-save and ip list them.

use super::{in_new_namespace, patient, sh};
use gybe_integration::namespace::unshare_mounts;
use gybe_integration::plugin_call::PluginDir;
use gybe_integration::vectors;
use gybe_netfilter::apply::backend::{BackendError, BackendKind};
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{Deviation, Redirection, remove_all};
use gybe_netfilter::apply::{ApplyError, apply};
use gybe_netfilter::kernel::routes::Rtnetlink;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::inventory::PreviousRules;
use gybe_netfilter::model::policy::{Families, RedirectPolicy};
use gybe_test_support::install;
use nix::mount::{MsFlags, mount};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Twelve policies that differ in families, mode, zones, lists and routes.
const POLICIES: [&str; 12] = [
    "inject-default-v4",
    "tproxy-default-dual",
    "outbound-exclude-cidr",
    "dns-all-dual",
    "exclude-if-tproxy",
    "uid-gid-lists",
    "dns-all-tproxy-dual",
    "outbound-include-cidr",
    "inject-default-dual",
    "drop-invalid",
    "dns-servers-dual",
    "owner-include",
];

fn redirections() -> BTreeMap<String, Redirection> {
    let all = vectors::all().unwrap().into_iter();
    all.map(|vector| (vector.name, Redirection::of(&vector.policy))).collect()
}

/// Returns the rules, routes and addresses of every owner, without counters, without tables that iptables left empty,
/// and without the routes that the kernel adds some time after an address. Each line has its table, and the tables are
/// sorted, because iptables-legacy lists them in the order of their creation.
fn everything() -> String {
    let of = |program: &str| {
        format!(
            "{program}-save 2>/dev/null | sed 's/ \\[[0-9:]*\\]$//' \
             | awk '/^[*]/ {{ table = $1 }} /^-A|^:.* -/ {{ print \"{program}\" table, $0 }}' | sort -s -k1,1;"
        )
    };
    let rules = ["iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"].map(of).concat();
    let table = "nft -s list table inet gybe 2>/dev/null || true";
    let routing = "{ ip -4 rule; ip -6 rule; ip -4 route show table all; ip -6 route show table all; \
                   ip -6 addr show dev lo; } | grep -v 'proto kernel' || true";
    sh(&format!("{table}\n{rules}\n{routing}"))
}

/// Returns the first line in which two listings differ.
fn first_difference(found: &str, desired: &str) -> String {
    let (mut found, mut desired) = (found.lines(), desired.lines());
    loop {
        match (found.next(), desired.next()) {
            (None, None) => return "none".to_owned(),
            (left, right) if left != right => return format!("found {left:?}, desired {right:?}"),
            _ => {}
        }
    }
}

fn alone(redirection: &Redirection, kind: BackendKind) -> String {
    in_new_namespace(|| {
        redirection.apply(&*patient(kind)).unwrap();
        everything()
    })
}

/// Applies the policies one after the other in one namespace; asserts after each step that exactly that one is in
/// force.
fn walk(steps: &[(&str, BackendKind)]) {
    let redirections = redirections();
    let mut desired = BTreeMap::new();
    in_new_namespace(|| {
        let mut last = "nothing".to_owned();
        for (name, kind) in steps {
            let redirection = &redirections[*name];
            let desired = desired.entry((*name, *kind)).or_insert_with(|| alone(redirection, *kind));
            let applied = redirection.apply(&*patient(*kind));
            applied.unwrap_or_else(|error| panic!("{name} by {kind} over {last}: {error:?}"));
            let found = everything();
            let difference = first_difference(&found, desired);
            assert!(found == *desired, "{name} by {kind} over {last}: {difference}");
            last = format!("{name} by {kind}");
        }
    });
}

/// Returns a sequence of the numbers below `count` in which every ordered pair occurs in succession exactly once.
fn every_pair(count: usize) -> Vec<usize> {
    let mut left: Vec<Vec<usize>> = (0..count).map(|_| (0..count).rev().collect()).collect();
    let (mut path, mut walk) = (vec![0], Vec::new());
    while let Some(&here) = path.last() {
        match left[here].pop() {
            Some(next) => path.push(next),
            None => walk.extend(path.pop()),
        }
    }
    walk.reverse();
    walk
}

#[test]
fn f18_each_policy_applied_over_each_other_leaves_exactly_its_own_rules() {
    let pairs = every_pair(POLICIES.len());
    assert_eq!(pairs.len(), 12 * 12 + 1);
    // An order in which each backend follows each, itself included.
    let backends = every_pair(3);
    let kinds = backends.iter().take(9).cycle().map(|kind| BackendKind::ALL[*kind]);
    let steps: Vec<_> = pairs.iter().map(|policy| POLICIES[*policy]).zip(kinds).collect();
    walk(&steps);
}

#[test]
fn every_backend_over_every_other_with_the_policies_that_differ_most() {
    let policies = ["inject-default-v4", "dns-all-tproxy-dual", "uid-gid-lists"];
    let states: Vec<_> =
        BackendKind::ALL.iter().flat_map(|kind| policies.map(|name| (name, *kind))).collect();
    let steps: Vec<_> = every_pair(states.len()).into_iter().map(|state| states[state]).collect();
    walk(&steps);
}

#[test]
fn f26_objects_of_other_owners_stay_unchanged_while_policies_and_backends_change() {
    let redirections = redirections();
    in_new_namespace(|| {
        sh("nft add table inet theirs; nft add chain inet theirs out '{ type nat hook output priority -100; }'
            nft add rule inet theirs out tcp dport 9 counter redirect to :10
            iptables-nft -t nat -N DOCKER; iptables-nft -t nat -A OUTPUT -p udp --dport 9 -j DOCKER
            iptables-legacy -t mangle -A OUTPUT -p icmp -j ACCEPT
            ip rule add fwmark 7 lookup 133; ip route add local 198.51.100.0/24 dev lo table 133
            ip -6 addr add ::7/128 dev lo nodad; ip addr add 203.0.113.1/32 dev lo");
        let theirs = || {
            let programs = "nft list table inet theirs; ip addr show dev lo | grep -v valid_lft";
            (sh(programs), everything())
        };
        // iptables creates tables on the first write and leaves them, empty.
        for kind in BackendKind::ALL {
            redirections["dns-all-tproxy-dual"].apply(&*patient(kind)).unwrap();
        }
        remove_all().unwrap();
        let before = theirs();
        assert!(before.1.contains("DOCKER") && before.1.contains("lookup 133"), "{before:?}");
        for (name, kind) in [
            ("dns-all-tproxy-dual", BackendKind::Nft),
            ("inject-default-v4", BackendKind::IptablesNft),
            ("tproxy-default-dual", BackendKind::IptablesLegacy),
            ("dns-all-dual", BackendKind::Nft),
        ] {
            let applied = redirections[name].apply(&*patient(kind)).unwrap();
            let other_nat: Vec<String> = applied.other_nat.iter().map(ToString::to_string).collect();
            assert!(
                other_nat.contains(&"nftables chain inet theirs out (priority -100)".to_owned()),
                "{other_nat:?}"
            );
            assert!(sh("nft list table inet theirs") == before.0.split_inclusive("}\n}\n").next().unwrap());
        }
        remove_all().unwrap();
        assert_eq!(theirs(), before);
        assert!(Presence::look().unwrap().ours.is_empty());
    });
}

#[test]
fn extra_objects_are_differences_and_the_next_apply_removes_them() {
    let redirections = redirections();
    let (tproxy, plain) = (&redirections["tproxy-default-dual"], &redirections["inject-default-v4"]);
    let nft = patient(BackendKind::Nft);
    in_new_namespace(|| {
        tproxy.apply(&*nft).unwrap();
        // The state after a crash during apply.
        apply(&*nft, &plain.rules).unwrap();
        sh("iptables-legacy -t nat -N GYBE; iptables-legacy -t nat -N ISTIO_OUTPUT");
        let sentences: Vec<String> = plain
            .differences(&*nft, &Presence::look().unwrap())
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        let desired = [
            "rules written by backend iptables-legacy should not be there",
            "IPv4 rule fwmark 0x539 lookup 133 should not be there",
            "IPv6 rule fwmark 0x539 lookup 133 should not be there",
            "IPv4 route local default dev lo table 133 should not be there",
            "IPv6 route local default dev lo table 133 should not be there",
            "address ::6/128 on lo should not be there",
        ];
        assert_eq!(sentences, desired);
        assert_eq!(plain.apply(&*nft).unwrap().previous, PreviousRules::Different);
        assert_eq!(plain.differences(&*nft, &Presence::look().unwrap()).unwrap(), []);
        assert_eq!(plain.apply(&*nft).unwrap().previous, PreviousRules::Same);
    });
}

#[test]
fn remove_also_deletes_a_table_without_chains() {
    in_new_namespace(|| {
        sh("nft add table inet gybe");
        remove_all().unwrap();
        assert_eq!(sh("nft list ruleset"), "");
        remove_all().unwrap();
    });
}

#[test]
fn an_add_looks_for_stale_routes_only_where_rules_of_ours_were() {
    let redirections = redirections();
    let (tproxy, plain) = (&redirections["tproxy-default-dual"], &redirections["inject-default-v4"]);
    let nft = patient(BackendKind::Nft);
    in_new_namespace(|| {
        let mut routing = Rtnetlink::open().unwrap();
        assert_eq!(tproxy.apply_over(&mut routing, &*nft).unwrap().previous, PreviousRules::None);
        assert_eq!(plain.apply_over(&mut routing, &*nft).unwrap().previous, PreviousRules::Different);
        assert_eq!(plain.differences(&*nft, &Presence::look().unwrap()).unwrap(), []);
        // The control: if the backend finds no earlier rules, apply leaves stale routes, which `verify` reports.
        tproxy.apply_over(&mut routing, &*nft).unwrap();
        nft.remove().unwrap();
        plain.routes.apply(&mut routing).unwrap();
        apply(&*nft, &plain.rules).unwrap();
        let stray = |deviation: &Deviation| matches!(deviation, Deviation::ExtraRoute(_));
        assert_eq!(
            plain
                .differences(&*nft, &Presence::look().unwrap())
                .unwrap()
                .iter()
                .filter(|one| stray(one))
                .count(),
            5
        );
    });
}

#[test]
fn f18_a_foreign_mesh_is_refused_by_every_backend_before_anything_is_written() {
    let redirections = redirections();
    for (by, whose) in [
        ("iptables-nft -t nat -N ISTIO_OUTPUT", "ISTIO_OUTPUT in table nat"),
        ("ip6tables-nft -t nat -N ISTIO_OUTPUT", "ISTIO_OUTPUT in table nat (IPv6)"),
        ("iptables-legacy -t nat -N ISTIO_REDIRECT", "ISTIO_REDIRECT in table nat"),
        ("nft add table inet istio-proxy-nat; nft add chain inet istio-proxy-nat output", "istio-proxy-nat"),
    ] {
        in_new_namespace(|| {
            sh(by);
            let before = sh("nft list ruleset; iptables-legacy-save | grep -v '^#' || true");
            for kind in BackendKind::ALL {
                let error = apply(&*patient(kind), &redirections["inject-default-v4"].rules).unwrap_err();
                assert!(error.to_string().contains(whose), "{kind}: {error}");
                assert!(error.hint().unwrap().contains("istio-cni"), "{error:?}");
                remove_all().unwrap();
            }
            assert_eq!(sh("nft list ruleset; iptables-legacy-save | grep -v '^#' || true"), before, "{by}");
        });
    }
}

#[test]
fn another_backends_rules_are_removed_only_after_the_new_ones_are_in_force() {
    let redirections = redirections();
    let (first, second) = (&redirections["inject-default-dual"], &redirections["dns-all-dual"]);
    in_new_namespace(|| {
        first.apply(&*patient(BackendKind::IptablesNft)).unwrap();
        let before = everything();
        let mut wrong = second.rules.clone();
        wrong.chains.retain(|chain| chain.name.as_str() != "nat-capture");
        let error = apply(&*patient(BackendKind::Nft), &wrong).unwrap_err();
        assert!(
            matches!(error, ApplyError::Backend(BackendError::Nft(_))) && error.source().is_some(),
            "{error:?}"
        );
        assert_eq!(everything(), before);
        let applied = second.apply(&*patient(BackendKind::Nft)).unwrap();
        assert_eq!((applied.previous, applied.other_nat), (PreviousRules::Different, vec![]));
        assert_eq!(everything(), alone(second, BackendKind::Nft));
    });
}

#[test]
fn the_policy_applied_last_is_the_only_one_and_each_rule_that_differs_is_named() {
    let first = Redirection::of(&RedirectPolicy::injected(Families::V4Only));
    let mut policy = RedirectPolicy::injected(Families::V4Only);
    policy.outbound.excluded_ports = (22..=22).into();
    let second = Redirection::of(&policy);
    let nft = patient(BackendKind::Nft);
    let differences = |desired: &Redirection| -> Vec<String> {
        let all = desired.differences(&*nft, &Presence::look().unwrap()).unwrap();
        all.iter().map(ToString::to_string).collect()
    };
    in_new_namespace(|| {
        assert!(differences(&first).contains(&"chain nat-output is missing".to_owned()));
        for desired in [&first, &second, &second, &first] {
            desired.apply(&*nft).unwrap();
            assert_eq!(differences(desired), [""; 0]);
        }
        let all = differences(&second);
        assert!(all.iter().any(|line| line.contains("\"outbound-excluded-port\"")), "{all:?}");
        nft.remove().unwrap();
        assert!(nft.inspect().unwrap().is_empty() && !differences(&first).is_empty());
    });
}

const PROGRAMS: &str = "/usr/sbin/xtables-nft-multi";

/// Makes every iptables-nft program that this thread runs delete Gybe's table first, as a concurrent call may.
fn delete_the_table_with_every_program(directory: &Path) {
    let [script, real, wrapper] = ["script", "real", "wrapper"].map(|name| directory.join(name));
    install(Path::new(PROGRAMS), &real);
    let text = format!(
        "#!/bin/bash\n/usr/sbin/nft delete table inet gybe 2>/dev/null\nexec -a \"${{0##*/}}\" {} \"$@\"\n",
        real.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    install(&script, &wrapper);
    unshare_mounts().unwrap();
    mount(Some(&wrapper), PROGRAMS, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

#[test]
fn a_table_that_is_deleted_while_an_earlier_backends_rules_are_removed_is_written_again() {
    let all = vectors::all().unwrap();
    let vector = all.into_iter().find(|vector| vector.name == "inject-default-v4").unwrap();
    let redirection = Redirection::of(&vector.policy);
    let directory = PluginDir::new("concurrent-removal");
    in_new_namespace(|| {
        redirection.apply(&*patient(BackendKind::IptablesNft)).unwrap();
        delete_the_table_with_every_program(directory.path());
        redirection.apply(&*patient(BackendKind::Nft)).unwrap();
        assert!(sh("nft list tables").contains("table inet gybe"));
        assert!(!sh("nft list ruleset").contains("ISTIO_OUTPUT"), "the earlier rules remain");
    });
}
