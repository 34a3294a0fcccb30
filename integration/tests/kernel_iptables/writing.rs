//! Written rules read back equal, and rules of other owners, recognized redirections among them, do not change.

use super::*;
use gybe_netfilter::apply::{ApplyError, apply};
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::policy::{Destinations, Families, InterfaceName};
use gybe_netfilter::nft::Nft;

#[test]
fn every_policys_rules_read_back_equal_and_are_removed_completely() {
    for variant in VARIANTS {
        let backend = patient(variant);
        in_new_namespace(|| {
            for (name, rules) in every_ruleset() {
                apply(&backend, &rules).unwrap_or_else(|error| panic!("{name}: {error:?}"));
                assert_in_force(&backend, &rules);
                assert!(!backend.inspect().unwrap().is_empty(), "{name}");
                if rules.families == Families::V4Only {
                    assert!(has_nothing_of_gybe(&tables(variant, "ip6tables-save")));
                }
                backend.remove().unwrap();
                assert!(backend.inspect().unwrap().is_empty(), "{name}");
                assert!(has_nothing_of_gybe(&save(variant)), "{name}: {}", save(variant));
            }
        });
    }
}

/// A product of lists needs chains that jump to each other; `remove` deletes those too.
#[test]
fn lists_in_chains_of_their_own_read_back_equal_and_are_removed_completely() {
    let mut policy = vectors::all().unwrap().swap_remove(0).policy;
    policy.virtual_interfaces = (0..40).map(|n| InterfaceName::parse(&format!("vm{n}")).unwrap()).collect();
    let networks = (0..50).map(|n| format!("10.{n}.0.0/24").parse::<ipnet::IpNet>().unwrap());
    policy.outbound.included_to = Destinations::Only(networks.collect());
    let rules = compile(&policy);
    for variant in VARIANTS {
        let backend = patient(variant);
        in_new_namespace(|| {
            apply(&backend, &rules).unwrap();
            assert_in_force(&backend, &rules);
            let list = tables(variant, "iptables -t nat -S ISTIO_LIST_1");
            assert_eq!(list.matches("-j REDIRECT --to-ports 15001").count(), 50, "{list}");
            apply(&backend, &ruleset("inject-default-dual")).unwrap();
            assert_in_force(&backend, &ruleset("inject-default-dual"));
            apply(&backend, &rules).unwrap();
            backend.remove().unwrap();
            assert!(has_nothing_of_gybe(&save(variant)), "{}", save(variant));
        });
    }
}

#[test]
fn a_policy_applied_over_another_leaves_none_of_its_rules() {
    for variant in VARIANTS {
        let backend = patient(variant);
        in_new_namespace(|| {
            for (name, rules) in every_ruleset() {
                apply(&backend, &rules).unwrap_or_else(|error| panic!("{name}: {error:?}"));
                assert_in_force(&backend, &rules);
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
            assert!(!counted(), "another owner's rule stayed in Gybe's chain");
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
fn f26_rules_of_other_owners_stay_unchanged() {
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

#[test]
fn istios_chains_are_refused_and_not_changed() {
    for variant in VARIANTS {
        let backend = patient(variant);
        for program in ["iptables", "ip6tables"] {
            in_new_namespace(|| {
                tables(variant, &format!("{program} -t nat -N ISTIO_OUTPUT"));
                tables(variant, &format!("{program} -t nat -A OUTPUT -j ISTIO_OUTPUT"));
                tables(
                    variant,
                    &format!("{program} -t nat -A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 15001"),
                );
                let before = save(variant);
                let error = apply(&backend, &ruleset("inject-default-dual")).unwrap_err();
                assert!(error.to_string().contains("ISTIO_OUTPUT in table nat"), "{error}");
                assert!(error.hint().unwrap().contains("istio-cni"));
                backend.remove().unwrap();
                assert!(backend.inspect().unwrap().is_empty());
                assert_eq!(save(variant), before);
            });
        }
    }
}

#[test]
fn apply_removes_the_rules_of_another_backend() {
    let [legacy, nft] = VARIANTS.map(patient);
    let rules = ruleset("inject-default-dual");
    for (first, second) in
        [(&legacy as &dyn Backend, &nft as &dyn Backend), (&nft, &legacy), (&Nft, &legacy), (&Nft, &nft)]
    {
        in_new_namespace(|| {
            apply(first, &rules).unwrap();
            apply(second, &rules).unwrap();
            assert!(first.inspect().unwrap().is_empty(), "{} over {}", second.name(), first.name());
            assert!(second.desired(&rules).unwrap().differences(&second.inspect().unwrap()).is_empty());
            first.remove().unwrap();
            assert!(second.desired(&rules).unwrap().differences(&second.inspect().unwrap()).is_empty());
        });
    }
}

#[test]
fn istios_rules_of_another_backend_are_refused_and_not_changed() {
    let istio = "*nat\n:ISTIO_OUTPUT - [0:0]\n-A OUTPUT -j ISTIO_OUTPUT\nCOMMIT\n";
    for (backend, by, whose) in [
        (Variant::Legacy, format!("iptables-nft-restore <<EOF\n{istio}EOF"), "ISTIO_OUTPUT in table nat"),
        (Variant::Nft, format!("iptables-legacy-restore <<EOF\n{istio}EOF"), "ISTIO_OUTPUT in table nat"),
        (Variant::Legacy, "nft add table inet istio-proxy-nat".to_owned(), "istio-proxy-nat"),
        (Variant::Nft, "nft add table inet istio-proxy-nat".to_owned(), "istio-proxy-nat"),
    ] {
        in_new_namespace(|| {
            sh(&by);
            sh(
                "nft list table inet istio-proxy-nat >/dev/null 2>&1 && nft add chain inet istio-proxy-nat output || true",
            );
            let error = apply(&patient(backend), &ruleset("inject-default-dual")).unwrap_err();
            assert!(
                matches!(error, ApplyError::OtherMesh(_)) && error.to_string().contains(whose),
                "{error}"
            );
            assert!(has_nothing_of_gybe(&save(backend)));
        });
    }
}
