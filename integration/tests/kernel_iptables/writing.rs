//! Written rules read back equal, and other rules do not change.

use super::*;
use gybe_netfilter::apply::apply;
use gybe_netfilter::policy::{Destinations, Families, InterfaceName};

#[test]
fn every_policys_rules_read_back_as_wanted_and_leave_no_trace_when_removed() {
    for variant in VARIANTS {
        let backend = patient(variant);
        in_new_namespace(|| {
            for (name, rules) in every_ruleset() {
                apply(&backend, &rules).unwrap_or_else(|error| panic!("{name}: {error:?}"));
                assert_there(&backend, &rules);
                assert!(!backend.inspect().unwrap().is_empty(), "{name}");
                if rules.families == Families::V4Only {
                    assert!(names_nothing_of_ours(&tables(variant, "ip6tables-save")));
                }
                backend.remove().unwrap();
                assert!(backend.inspect().unwrap().is_empty(), "{name}");
                assert!(names_nothing_of_ours(&save(variant)), "{name}: {}", save(variant));
            }
        });
    }
}

/// A product of lists needs chains that jump to each other; `remove` deletes those too.
#[test]
fn lists_in_chains_of_their_own_read_back_and_leave_no_trace_when_removed() {
    let mut policy = vectors::all().unwrap().swap_remove(0).policy;
    policy.virtual_interfaces = (0..40).map(|n| InterfaceName::parse(&format!("vm{n}")).unwrap()).collect();
    let networks = (0..50).map(|n| format!("10.{n}.0.0/24").parse::<ipnet::IpNet>().unwrap());
    policy.outbound.included_to = Destinations::Only(networks.collect());
    let rules = compile(&policy);
    for variant in VARIANTS {
        let backend = patient(variant);
        in_new_namespace(|| {
            apply(&backend, &rules).unwrap();
            assert_there(&backend, &rules);
            let list = tables(variant, "iptables -t nat -S ISTIO_LIST_1");
            assert_eq!(list.matches("-j REDIRECT --to-ports 15001").count(), 50, "{list}");
            apply(&backend, &ruleset("inject-default-dual")).unwrap();
            assert_there(&backend, &ruleset("inject-default-dual"));
            apply(&backend, &rules).unwrap();
            backend.remove().unwrap();
            assert!(names_nothing_of_ours(&save(variant)), "{}", save(variant));
        });
    }
}

#[test]
fn one_policy_over_another_leaves_nothing_of_the_first() {
    for variant in VARIANTS {
        let backend = patient(variant);
        in_new_namespace(|| {
            for (name, rules) in every_ruleset() {
                apply(&backend, &rules).unwrap_or_else(|error| panic!("{name}: {error:?}"));
                assert_there(&backend, &rules);
            }
        });
    }
}

#[test]
fn f18_the_second_apply_of_the_same_rules_writes_nothing() {
    for variant in VARIANTS {
        let backend = patient(variant);
        in_new_namespace(|| {
            let rules = ruleset("dns-all-tproxy-dual");
            apply(&backend, &rules).unwrap();
            // Rules contain their counters, so writing a chain again resets them.
            tables(
                variant,
                "iptables -t nat -A ISTIO_OUTPUT -c 7 700 -m comment --comment witness -j RETURN",
            );
            let counted = || tables(variant, "iptables -t nat -S ISTIO_OUTPUT -v").contains("-c 7 700");
            assert!(counted());
            apply(&backend, &rules).unwrap();
            assert!(!counted(), "a rule that is not ours stayed in our chain");
            tables(variant, "iptables -t nat -Z");
            tables(
                variant,
                "iptables -t nat -R ISTIO_OUTPUT 1 -c 7 700 $(iptables -t nat -S ISTIO_OUTPUT 1 | cut -d' ' -f3-)",
            );
            assert!(counted());
            apply(&backend, &rules).unwrap();
            assert!(counted(), "equal rules were written again");
        });
    }
}

#[test]
fn f26_rules_of_others_stay_as_they_are_to_the_byte() {
    let theirs = [
        "iptables -t nat -N DOCKER",
        "iptables -t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER",
        "iptables -t nat -A OUTPUT -m comment --comment 'it is \"theirs\" -j ISTIO_OUTPUT' -j DOCKER",
        "iptables -t mangle -A PREROUTING -p icmp -j ACCEPT",
        "iptables -A INPUT -p tcp --dport 22 -j ACCEPT",
        "ip6tables -t nat -A OUTPUT -p tcp --dport 99 -j REDIRECT --to-ports 98",
    ];
    for variant in VARIANTS {
        let backend = patient(variant);
        in_new_namespace(|| {
            let first = ruleset("dns-all-tproxy-dual");
            for command in theirs {
                tables(variant, command);
            }
            // Creates all tables before the comparison; an empty table is no difference.
            apply(&backend, &first).unwrap();
            backend.remove().unwrap();
            let before = save(variant);
            apply(&backend, &first).unwrap();
            tables(variant, "iptables -t nat -A OUTPUT -p udp --dport 77 -j ACCEPT");
            apply(&backend, &ruleset("outbound-exclude-cidr")).unwrap();
            let order = tables(variant, "iptables -t nat -S OUTPUT");
            assert!(
                order.find("ISTIO_OUTPUT -").is_none() && order.find("-j ISTIO_OUTPUT\n") < order.find("77"),
                "{order}"
            );
            tables(variant, "iptables -t nat -D OUTPUT -p udp --dport 77 -j ACCEPT");
            backend.remove().unwrap();
            assert_eq!(save(variant), before);
        });
    }
}
