//! Routes, routing rules and the address `::6` are added, listed and removed without any other change.

use crate::forms::{in_new_namespace, ip, policy, without_privilege};
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{self, Redirection};
use gybe_netfilter::kernel::routes::{self, Routes, RoutesError, Rtnetlink, addresses};
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::policy::{Families, Mode};
use gybe_netfilter::nft::Nft;

const TPROXY: Mode = Mode::Tproxy { mark: 1337, route_table: 133 };

/// Returns all routing rules, routes and addresses without the kernel's own routes, which it adds some time after an
/// address.
fn everything() -> String {
    let parts =
        ["-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all", "-6 addr show dev lo"];
    let lines: String = parts.map(ip).concat();
    lines.lines().filter(|line| !line.contains("proto kernel")).map(|line| format!("{line}\n")).collect()
}

fn routing() -> Rtnetlink {
    Rtnetlink::open().unwrap()
}

#[test]
fn repeated_applies_add_tproxys_rules_routes_and_address_once() {
    in_new_namespace(|| {
        let mut policy = policy();
        policy.mode = TPROXY;
        let (desired, mut routing) = (Routes::of(&policy), routing());
        assert_eq!(desired.missing(&mut routing).unwrap().len(), 5);
        desired.apply(&mut routing).unwrap();
        let once = everything();
        for family in ["-4", "-6"] {
            let rules = ip(&format!("{family} rule"));
            assert_eq!(rules.matches("from all fwmark 0x539 lookup 133").count(), 1, "{rules}");
            let routes = ip(&format!("{family} route show table 133"));
            assert!(routes.starts_with("local default dev lo proto 71"), "{routes}");
        }
        assert!(ip("-6 addr show dev lo").contains("inet6 ::6/128 scope global"), "{once}");
        desired.apply(&mut routing).unwrap();
        assert_eq!(everything(), once);
        assert_eq!(desired.missing(&mut routing).unwrap(), []);
    });
}

#[test]
fn gybes_routing_rule_precedes_every_rule_except_the_one_for_local_addresses() {
    let mut policy = policy();
    policy.mode = TPROXY;
    let desired = Routes::of(&policy);
    for (own, priority) in [
        ("from 192.0.2.7 lookup 100", 32764),
        ("from 192.0.2.7 lookup 100 priority 1", 0),
        ("from 192.0.2.7 lookup 100 priority 32765", 32764),
        ("from 192.0.2.7 lookup 100 priority 40000", 32765),
        ("from all lookup local priority 100", 32765),
    ] {
        in_new_namespace(|| {
            for family in ["", "-6 "] {
                ip(&format!(
                    "{family}rule add {}",
                    if family.is_empty() { own.into() } else { own.replace("192.0.2.7", "fd00::7") }
                ));
            }
            desired.apply(&mut routing()).unwrap();
            desired.apply(&mut routing()).unwrap();
            assert_eq!(
                (desired.missing(&mut routing()).unwrap(), desired.extra(&mut routing()).unwrap()),
                (vec![], vec![])
            );
            for family in ["-4", "-6"] {
                let rules = ip(&format!("{family} rule"));
                assert_eq!(rules.matches("lookup 133").count(), 1, "{rules}");
                assert!(
                    rules.contains(&format!("{priority}:\tfrom all fwmark 0x539 lookup 133")),
                    "{own}: {rules}"
                );
            }
        });
    }
}

/// The routing rule's priority may come from an earlier version, or from rules that the pod added before it.
#[test]
fn a_routing_rule_of_gybe_behind_another_counts_as_missing_and_is_moved() {
    in_new_namespace(|| {
        let mut policy = policy();
        policy.mode = TPROXY;
        let (redirection, desired) = (Redirection::of(&policy), Routes::of(&policy));
        redirection.apply(&Nft).unwrap();
        ip("rule add from 192.0.2.7 lookup 100");
        let missing: Vec<String> =
            desired.missing(&mut routing()).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(missing, ["IPv4 rule fwmark 0x539 lookup 133"]);
        redirection.apply(&Nft).unwrap();
        assert_eq!(redirection.differences(&Nft, &Presence::look().unwrap()).unwrap(), []);
        let rules = ip("rule");
        assert_eq!(rules.matches("lookup 133").count(), 1, "{rules}");
        assert!(rules.find("lookup 133") < rules.find("lookup 100"), "{rules}");
    });
}

#[test]
fn a_routing_rule_with_further_conditions_does_not_count_as_gybes() {
    for theirs in [
        "from 192.0.2.7 fwmark 0x539 lookup 133 priority 10",
        "to 192.0.2.7 fwmark 0x539 lookup 133 priority 10",
        "not fwmark 0x539 lookup 133 priority 10",
        "fwmark 0x539 iif lo lookup 133 priority 10",
        "fwmark 0x539 ipproto udp lookup 133 priority 10",
        "fwmark 0x539 uidrange 7-7 lookup 133 priority 10",
        "fwmark 0x539 lookup 133 suppress_prefixlength 0 priority 10",
        "fwmark 0x539/0xfff lookup 133 priority 10",
    ] {
        in_new_namespace(|| {
            ip(&format!("rule add {theirs}"));
            let mut policy = policy();
            (policy.mode, policy.families) = (TPROXY, Families::V4Only);
            Routes::of(&policy).apply(&mut routing()).unwrap();
            let rules = ip("rule");
            assert!(rules.contains("9:\tfrom all fwmark 0x539 lookup 133 proto 71\n"), "{theirs}: {rules}");
            routes::remove(&mut routing()).unwrap();
            assert!(ip("rule").contains("10:\t"), "{theirs}");
        });
    }
}

#[test]
fn concurrent_calls_add_one_rule() {
    for _ in 0..20 {
        in_new_namespace(|| {
            ip("rule add from 192.0.2.7 lookup 100");
            let mut policy = policy();
            policy.mode = TPROXY;
            let desired = Routes::of(&policy);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| desired.apply(&mut routing()).unwrap());
                }
            });
            assert_eq!(ip("rule").matches("lookup 133").count(), 1);
        });
    }
}

#[test]
fn without_a_free_priority_before_a_pods_rule_apply_fails() {
    in_new_namespace(|| {
        ip("rule add from 192.0.2.7 lookup 100 priority 0");
        let mut policy = policy();
        policy.mode = TPROXY;
        let error = Routes::of(&policy).apply(&mut routing()).unwrap_err();
        assert!(matches!(error, RoutesError::NoPriority { .. }), "{error:?}");
        assert!(error.hint().unwrap().contains("priority"));
    });
}

#[test]
fn remove_deletes_only_gybes_objects() {
    in_new_namespace(|| {
        ip("rule add fwmark 0x539 lookup 134");
        ip("-6 rule add fwmark 7 lookup 133");
        ip("route add local 192.0.2.0/24 dev lo table 133");
        ip("-6 addr add ::7/128 dev lo nodad");
        let before = everything();
        let mut policy = policy();
        policy.mode = TPROXY;
        Routes::of(&policy).apply(&mut routing()).unwrap();
        assert_ne!(everything(), before);
        routes::remove(&mut routing()).unwrap();
        assert_eq!(everything(), before);
        routes::remove(&mut routing()).unwrap();
        assert_eq!(everything(), before);
    });
}

#[test]
fn equal_objects_of_another_owner_are_used_and_stay() {
    in_new_namespace(|| {
        ip("rule add fwmark 0x539 lookup 133");
        ip("route add local default dev lo table 133");
        ip("-6 addr add ::6/128 dev lo nodad");
        let mut policy = policy();
        policy.mode = TPROXY;
        let desired = Routes::of(&policy);
        desired.apply(&mut routing()).unwrap();
        assert_eq!(desired.missing(&mut routing()).unwrap(), []);
        routes::remove(&mut routing()).unwrap();
        assert!(ip("rule").contains("fwmark 0x539") && ip("-6 addr show dev lo").contains("::6/128"));
        assert!(ip("-6 route show table all").lines().all(|line| !line.contains("table 133")));
    });
}

#[test]
fn a_route_with_the_same_key_is_an_error() {
    in_new_namespace(|| {
        ip("route add blackhole default table 133");
        let mut policy = policy();
        (policy.mode, policy.families) = (TPROXY, Families::V4Only);
        let error = Routes::of(&policy).apply(&mut routing()).unwrap_err();
        assert!(matches!(error, RoutesError::Occupied { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "cannot add IPv4 route local default dev lo table 133: another one with the same key exists"
        );
    });
}

#[test]
fn f40_disabled_ipv6_is_named_in_the_error() {
    for interface in ["all", "lo"] {
        in_new_namespace(|| {
            let switch = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
            std::fs::write(switch, "1").unwrap();
            let error = Routes::of(&policy()).apply(&mut routing()).unwrap_err();
            assert_eq!(
                error.to_string(),
                "cannot add address ::6/128 on lo: IPv6 is disabled in this network namespace"
            );
            let hint = error.hint().unwrap();
            assert!(
                hint.starts_with(&format!("net.ipv6.conf.{interface}.disable_ipv6 is 1 in the pod")),
                "{hint}"
            );
        });
    }
}

#[test]
fn without_privilege_the_hint_names_the_capability() {
    in_new_namespace(|| {
        without_privilege();
        let error = Routes::of(&policy()).apply(&mut routing()).unwrap_err();
        assert!(error.hint().unwrap().contains("CAP_NET_ADMIN"), "{error:?}");
    });
}

#[test]
fn a_redirection_is_rules_and_routes_and_its_differences_name_both() {
    in_new_namespace(|| {
        let mut policy = policy();
        policy.mode = TPROXY;
        let redirection = Redirection::of(&policy);
        redirection.apply(&Nft).unwrap();
        assert_eq!(redirection.differences(&Nft, &Presence::look().unwrap()).unwrap(), []);
        ip("-6 addr del ::6/128 dev lo");
        ip("rule del fwmark 0x539 lookup 133");
        crate::forms::nft(&["delete chain inet gybe mangle-output"]);
        let found: Vec<_> = redirection
            .differences(&Nft, &Presence::look().unwrap())
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        let sentences = [
            "chain mangle-output is missing",
            "address ::6/128 on lo is missing",
            "IPv4 rule fwmark 0x539 lookup 133 is missing, or another rule precedes it",
        ];
        assert_eq!(found, sentences);
        redirection.apply_over(&mut routing(), &Nft).unwrap();
        assert_eq!(redirection.differences(&Nft, &Presence::look().unwrap()).unwrap(), []);
        redirection::remove(&Nft).unwrap();
        assert!(Nft.inspect().unwrap().is_empty());
        assert_eq!(redirection.routes.missing(&mut routing()).unwrap().len(), 5);
    });
}

#[test]
fn routes_of_an_earlier_policy_are_a_difference_and_are_removed() {
    in_new_namespace(|| {
        let mut earlier = policy();
        (earlier.mode, earlier.families) = (TPROXY, Families::V4Only);
        Redirection::of(&earlier).apply_over(&mut routing(), &Nft).unwrap();
        let mut policy = earlier.clone();
        policy.mode = Mode::Redirect;
        let redirection = Redirection::of(&policy);
        let differences = || redirection.differences(&Nft, &Presence::look().unwrap()).unwrap();
        let found: Vec<String> = differences().iter().map(ToString::to_string).collect();
        for stray in ["IPv4 rule fwmark 0x539 lookup 133", "IPv4 route local default dev lo table 133"] {
            assert!(found.contains(&format!("{stray} should not be there")), "{found:#?}");
        }
        redirection.apply_over(&mut routing(), &Nft).unwrap();
        assert_eq!(differences(), []);
        redirection::remove_all().unwrap();
        assert!(Nft.inspect().unwrap().is_empty());
    });
}

#[test]
fn addresses_come_in_the_kernels_order_with_their_interfaces_index() {
    in_new_namespace(|| {
        ip("link add eth0 index 40 type bridge");
        ip("link add six index 41 type bridge");
        ip("addr add 10.1.2.3/24 dev eth0 label eth0:1");
        ip("addr add fd00::3/64 dev eth0 nodad");
        ip("addr add fd01::3/64 dev six nodad");
        ip("link set eth0 up");
        let found = addresses().unwrap();
        let short: Vec<_> = found.iter().map(|a| format!("{} {}/{}", a.index, a.ip, a.prefix)).collect();
        let of_order = ["1 127.0.0.1/8", "40 10.1.2.3/24", "1 ::1/128", "40 fd00::3/64"];
        assert_eq!(short[..4], of_order);
        assert!(short.contains(&"41 fd01::3/64".to_owned()), "{short:?}");
        assert!(short.iter().any(|address| address.starts_with("40 fe80:")), "{short:?}");
    });
}

#[test]
fn a_removal_that_the_kernel_refuses_is_an_error() {
    in_new_namespace(|| {
        let mut policy = policy();
        (policy.mode, policy.families) = (TPROXY, Families::V4AndV6);
        Routes::of(&policy).apply(&mut routing()).unwrap();
        without_privilege();
        let refused = routes::remove(&mut routing()).unwrap_err();
        assert!(
            matches!(refused, RoutesError::Remove { source: nix::errno::Errno::EPERM, .. }),
            "{refused:?}"
        );
    });
}
