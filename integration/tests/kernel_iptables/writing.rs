//! Written rules read back equal, also in pods with `hostUsers: false`, and rules of other owners, recognized
//! redirections among them, do not change.

use super::*;
use gybe_netfilter::apply::{ApplyError, apply};
use gybe_netfilter::iptables::script;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::policy::{Destinations, Families, InterfaceName};
use gybe_netfilter::model::ruleset::Family;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::xt::legacy::table_names;
use nix::sched::{CloneFlags, setns};
use nix::unistd::{Uid, setfsuid};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::process::{Child, Command, Stdio};

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
        (Engine::Legacy, format!("iptables-nft-restore <<EOF\n{istio}EOF"), "ISTIO_OUTPUT in table nat"),
        (Engine::NfTables, format!("iptables-legacy-restore <<EOF\n{istio}EOF"), "ISTIO_OUTPUT in table nat"),
        (Engine::Legacy, "nft add table inet istio-proxy-nat".to_owned(), "istio-proxy-nat"),
        (Engine::NfTables, "nft add table inet istio-proxy-nat".to_owned(), "istio-proxy-nat"),
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

/// A network namespace that another user namespace owns, as a pod with `hostUsers: false` has.
struct UserPod {
    user_namespace: Child,
    network_namespace: Child,
}

/// Starts a program that prints a line when it is where it should be, and ends with its input.
fn waiting(program: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).args(["sh", "-c", "echo; read _"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

impl UserPod {
    /// In the order of container runtimes: the user namespace gets its ids before the network
    /// namespace is made, so that this belongs to its root.
    fn new() -> Self {
        let user_namespace = waiting("unshare", &["--user"]);
        for map in ["gid_map", "uid_map"] {
            let ids = "0 2000 1\n1337 1337 1\n";
            std::fs::write(format!("/proc/{}/{map}", user_namespace.id()), ids).unwrap();
        }
        let target = user_namespace.id().to_string();
        let network_namespace = waiting("nsenter", &["--user", "--target", &target, "unshare", "--net"]);
        Self { user_namespace, network_namespace }
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let netns = File::open(format!("/proc/{}/ns/net", self.network_namespace.id())).unwrap();
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            inside.join().unwrap()
        })
    }
}

impl Drop for UserPod {
    fn drop(&mut self) {
        for child in [&mut self.network_namespace, &mut self.user_namespace] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

#[test]
fn a_namespace_that_another_user_namespace_owns_is_redirected() {
    for variant in VARIANTS {
        let pod = UserPod::new();
        let backend = patient(variant);
        pod.run(|| {
            let rules = ruleset("inject-default-dual");
            let name = variant.iptables().trim_start_matches("iptables-");
            // The control: the very same text is refused from outside.
            let text = script(&rules, Family::V4).unwrap();
            let outside = sh(&format!(
                "iptables-{name}-restore --noflush <<'EOF' 2>/dev/null || echo refused\n{text}EOF"
            ));
            assert_eq!(outside.trim(), "refused");
            apply(&backend, &rules).unwrap();
            assert_in_force(&backend, &rules);
            assert!(save(variant).contains("--uid-owner 1337"));
            backend.remove().unwrap();
            assert!(has_nothing_of_gybe(&save(variant)));
        });
    }
}

/// The agent's container `repair` is root without CAP_DAC_OVERRIDE.
#[test]
fn the_list_of_legacy_tables_is_read_without_the_right_to_read_every_file() {
    UserPod::new().run(|| {
        sh("iptables-legacy -t raw -A OUTPUT -j NOTRACK");
        // A thread whose user for files is not root has no capability over files.
        setfsuid(Uid::from_raw(1));
        let read = || std::fs::read_to_string("/proc/thread-self/net/ip_tables_names");
        // The second time because `table_names` changes the thread's user for files, and must restore it.
        for _ in 0..2 {
            assert_eq!(read().unwrap_err().kind(), ErrorKind::PermissionDenied, "the control");
            assert_eq!(table_names(Family::V4).unwrap(), ["raw"]);
        }
    });
}

/// In a user namespace without root no program can write rules: exec drops the capabilities.
#[test]
fn a_user_namespace_without_root_is_refused_with_a_hint() {
    for variant in VARIANTS {
        let mut pod = waiting("unshare", &["--user", "--net"]);
        for map in ["gid_map", "uid_map"] {
            std::fs::write(format!("/proc/{}/{map}", pod.id()), "1337 1337 1\n").unwrap();
        }
        let netns = File::open(format!("/proc/{}/ns/net", pod.id())).unwrap();
        let backend = patient(variant);
        let refused = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
                apply(&backend, &ruleset("inject-default-v4")).unwrap_err()
            });
            inside.join().unwrap()
        });
        pod.kill().unwrap();
        pod.wait().unwrap();
        let (mut text, mut cause) = (refused.to_string(), std::error::Error::source(&refused));
        while let Some(error) = cause {
            text += &format!(": {error}");
            cause = error.source();
        }
        // In a user namespace of our own its files in /proc cannot be read, which is the reported error.
        if is_in_first_user_namespace() {
            assert!(text.contains("user namespace that owns this network namespace"), "{text}");
            assert!(refused.hint().is_some_and(|hint| hint.contains("\"nft\"")), "{text}");
        }
    }
}

/// Reports whether this process is in the first user namespace, which maps every id to itself.
fn is_in_first_user_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").unwrap().contains("4294967295")
}
