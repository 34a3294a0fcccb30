//! The iptables backend against real kernels' tables: both variants, in namespaces made for it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]
#![allow(clippy::disallowed_methods, reason = "what the backend wrote is judged by the programs themselves")]

use gybe_installer::demo::namespace::Namespace;
use gybe_integration::vectors;
use gybe_netfilter::backend::{Backend, BackendError, Inventory};
use gybe_netfilter::compile::compile;
use gybe_netfilter::iptables::{Iptables, IptablesError, Variant, script};
use gybe_netfilter::nft::Nft;
use gybe_netfilter::policy::Families;
use gybe_netfilter::ruleset::{Family, Ruleset};
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const VARIANTS: [Variant; 2] = [Variant::Legacy, Variant::Nft];

/// The backend with time for a busy machine: how long it may take is asked only where that is the question.
fn patient(variant: Variant) -> Iptables {
    Iptables::find(variant).unwrap().with_deadline(Duration::from_secs(120))
}

fn in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    Namespace::new().unwrap().run(work).unwrap()
}

/// Runs a shell command in the namespace of this thread and gives what it printed.
fn sh(command: &str) -> String {
    let mut sh = Command::new("sh");
    // The lock that all of them would share is not everybody's to open.
    let output = sh.args(["-c", command]).env("XTABLES_LOCKFILE", "/proc/self/ns/net").output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What the variant's own programs show, less dates and counters.
fn save(variant: Variant) -> String {
    tables(variant, "(iptables-save; ip6tables-save) | sed -e 's/^#.*//' -e 's/ \\[[0-9:]*\\]$//'")
}

/// A shell command with the variant's programs for `iptables`, `ip6tables-save` and so on.
fn tables(variant: Variant, command: &str) -> String {
    let name = variant.name().trim_start_matches("iptables-");
    sh(&command
        .replace("tables ", &format!("tables-{name} "))
        .replace("tables-save", &format!("tables-{name}-save")))
}

fn every_ruleset() -> Vec<(String, Ruleset)> {
    vectors::all().unwrap().into_iter().map(|vector| (vector.name, compile(&vector.policy))).collect()
}

fn ruleset(name: &str) -> Ruleset {
    every_ruleset().into_iter().find(|(other, _)| other == name).unwrap().1
}

fn there(backend: &Iptables, rules: &Ruleset) -> Inventory {
    let found = backend.inspect().unwrap();
    let differences: Vec<String> =
        backend.wanted(rules).differences(&found).iter().map(ToString::to_string).collect();
    assert!(differences.is_empty(), "{}: {differences:#?}\n{}", backend.name(), save(backend.variant()));
    found
}

fn refusal(backend: &Iptables, rules: &Ruleset) -> IptablesError {
    match backend.apply(rules) {
        Err(BackendError::Iptables(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn names_nothing_of_ours(text: &str) -> bool {
    !text.contains("ISTIO_") && !text.contains("GYBE")
}

#[test]
fn every_policys_rules_read_back_as_wanted_and_leave_no_trace_when_removed() {
    for variant in VARIANTS {
        let backend = patient(variant);
        in_new_namespace(|| {
            for (name, rules) in every_ruleset() {
                backend.apply(&rules).unwrap_or_else(|error| panic!("{name}: {error:?}"));
                assert!(!there(&backend, &rules).is_empty(), "{name}");
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

#[test]
fn one_policy_over_another_leaves_nothing_of_the_first() {
    for variant in VARIANTS {
        let backend = patient(variant);
        in_new_namespace(|| {
            for (name, rules) in every_ruleset() {
                backend.apply(&rules).unwrap_or_else(|error| panic!("{name}: {error:?}"));
                there(&backend, &rules);
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
            backend.apply(&rules).unwrap();
            // Counters live in the rules: whoever writes a chain again sets them to zero.
            tables(
                variant,
                "iptables -t nat -A ISTIO_OUTPUT -c 7 700 -m comment --comment witness -j RETURN",
            );
            let counted = || tables(variant, "iptables -t nat -S ISTIO_OUTPUT -v").contains("-c 7 700");
            assert!(counted());
            backend.apply(&rules).unwrap();
            assert!(!counted(), "a rule that is not ours stayed in our chain");
            tables(variant, "iptables -t nat -Z");
            tables(
                variant,
                "iptables -t nat -R ISTIO_OUTPUT 1 -c 7 700 $(iptables -t nat -S ISTIO_OUTPUT 1 | cut -d' ' -f3-)",
            );
            assert!(counted());
            backend.apply(&rules).unwrap();
            assert!(counted(), "equal rules were written again");
        });
    }
}

#[test]
fn rules_of_others_stay_as_they_are_to_the_byte() {
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
            // All tables exist before the comparison begins: a table that is there and empty is no rule.
            backend.apply(&first).unwrap();
            backend.remove().unwrap();
            let before = save(variant);
            backend.apply(&first).unwrap();
            tables(variant, "iptables -t nat -A OUTPUT -p udp --dport 77 -j ACCEPT");
            backend.apply(&ruleset("outbound-exclude-cidr")).unwrap();
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
fn chains_of_istio_are_refused_and_left_alone() {
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
                let error = backend.apply(&ruleset("inject-default-dual")).unwrap_err();
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
fn nobody_is_redirected_by_two_backends_at_a_time() {
    let [legacy, nft] = VARIANTS.map(patient);
    let rules = ruleset("inject-default-dual");
    for (first, second) in
        [(&legacy as &dyn Backend, &nft as &dyn Backend), (&nft, &legacy), (&Nft, &legacy), (&Nft, &nft)]
    {
        in_new_namespace(|| {
            first.apply(&rules).unwrap();
            let (all, error) = (sh("nft list ruleset"), second.apply(&rules).unwrap_err());
            assert!(error.to_string().contains(&format!("the backend {} ", first.name())), "{error}");
            assert_eq!(sh("nft list ruleset"), all);
            second.remove().unwrap();
            assert!(second.inspect().unwrap().is_empty());
            assert!(first.wanted(&rules).differences(&first.inspect().unwrap()).is_empty());
            first.remove().unwrap();
            second.apply(&rules).unwrap();
        });
    }
}

#[test]
fn what_istio_wrote_by_other_means_is_refused_and_left_alone() {
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
            let error = refusal(&patient(backend), &ruleset("inject-default-dual"));
            assert!(error.to_string().contains(whose), "{error}");
            assert!(names_nothing_of_ours(&save(backend)));
        });
    }
}

/// The states that a run killed between two tables can leave: each table of each family as it was
/// (nothing, or another policy's) or as it should be.
#[test]
fn f15_whatever_a_killed_apply_left_the_next_one_repairs() {
    let (old, new) = (ruleset("outbound-exclude-cidr"), ruleset("dns-all-tproxy-dual"));
    let part = |rules: &Ruleset, family, table: &str| -> String {
        let text = script(rules, family);
        let found = text.split_inclusive("COMMIT\n").find(|part| part.starts_with(&format!("*{table}\n")));
        found.unwrap_or_default().to_owned()
    };
    for variant in VARIANTS {
        let backend = patient(variant);
        let name = variant.name().trim_start_matches("iptables-");
        for state in 0..32_u32 {
            in_new_namespace(|| {
                let places =
                    [("ip", Family::V4), ("ip6", Family::V6)].into_iter().flat_map(|(program, family)| {
                        ["raw", "mangle", "nat"].map(|table| (program, family, table))
                    });
                for (bit, (program, family, table)) in places.enumerate() {
                    let written = state >> (bit % 5) & 1 == 1;
                    let text = part(if written { &new } else { &old }, family, table);
                    if written || state % 2 == 0 {
                        sh(&format!("{program}tables-{name}-restore --noflush <<'EOF'\n{text}EOF"));
                    }
                }
                backend.apply(&new).unwrap_or_else(|error| panic!("state {state:b}: {error:?}"));
                there(&backend, &new);
                backend.remove().unwrap();
                assert!(names_nothing_of_ours(&save(variant)));
            });
        }
    }
}

/// Programs of a variant in a directory of their own, one of them replaced by a shell script.
struct Programs(PathBuf);

impl Programs {
    fn with(variant: Variant, replaced: &str, script: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = std::env::temp_dir().join(format!("gybe-programs-{}-{number}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let name = variant.name().trim_start_matches("iptables-");
        for program in ["iptables", "ip6tables"] {
            for verb in ["save", "restore"] {
                let program = format!("{program}-{name}-{verb}");
                symlink(format!("/usr/sbin/{program}"), place.join(program)).unwrap();
            }
        }
        let path = place.join(replaced);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        Self(place)
    }

    fn backend(&self, variant: Variant) -> Iptables {
        Iptables::find_in(variant, std::slice::from_ref(&self.0))
            .unwrap()
            .with_deadline(Duration::from_secs(120))
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn f16_when_ipv6_is_refused_halfway_both_families_are_as_they_were() {
    for variant in VARIANTS {
        let name = variant.name().trim_start_matches("iptables-");
        // Commits the first table and refuses the rest, once.
        let refuse_once = format!(
            "[ -e $0.refused ] && exec /usr/sbin/ip6tables-{name}-restore \"$@\"\n\
             touch $0.refused; sed /COMMIT/q | /usr/sbin/ip6tables-{name}-restore \"$@\"; echo no more >&2; exit 1"
        );
        let programs = Programs::with(variant, &format!("ip6tables-{name}-restore"), &refuse_once);
        in_new_namespace(|| {
            let (first, second) = (ruleset("dns-all-tproxy-dual"), ruleset("inject-default-dual"));
            let backend = patient(variant);
            backend.apply(&first).unwrap();
            let before = save(variant);
            let error = refusal(&programs.backend(variant), &second);
            assert!(matches!(&error, IptablesError::PutBack { family: Family::V6, .. }), "{error:?}");
            assert!(std::error::Error::source(&error).unwrap().to_string().contains("no more"));
            assert_eq!(save(variant), before);
            there(&backend, &first);
        });
    }
}

#[test]
fn a_failure_that_cannot_be_undone_names_both_failures_and_the_next_apply_repairs_it() {
    for variant in VARIANTS {
        let name = variant.name().trim_start_matches("iptables-");
        let refuse =
            format!("sed /COMMIT/q | /usr/sbin/iptables-{name}-restore \"$@\"; echo no more >&2; exit 1");
        let programs = Programs::with(variant, &format!("iptables-{name}-restore"), &refuse);
        in_new_namespace(|| {
            let rules = ruleset("dns-all-tproxy-dual");
            let backend = patient(variant);
            backend.apply(&ruleset("inject-default-dual")).unwrap();
            let error = refusal(&programs.backend(variant), &rules);
            assert!(matches!(&error, IptablesError::HalfWritten { family: Family::V4, .. }), "{error:?}");
            assert!(error.to_string().contains("no more") && error.hint().unwrap().contains("apply again"));
            backend.apply(&rules).unwrap();
            there(&backend, &rules);
        });
    }
}

#[test]
fn a_program_that_does_not_end_is_killed_and_named() {
    for variant in VARIANTS {
        let name = variant.name().trim_start_matches("iptables-");
        let programs = Programs::with(variant, &format!("iptables-{name}-restore"), "exec sleep 60");
        in_new_namespace(|| {
            let backend = programs.backend(variant).with_deadline(Duration::from_millis(300));
            let start = Instant::now();
            let error = refusal(&backend, &ruleset("inject-default-dual"));
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains("iptables") && cause.contains("killed"), "{cause}");
            assert!(start.elapsed() < Duration::from_secs(5));
        });
    }
}

#[test]
fn f22_a_lock_that_somebody_holds_is_waited_for_no_longer_than_the_deadline() {
    in_new_namespace(|| {
        let held = File::open("/proc/thread-self/ns/net").unwrap();
        held.lock().unwrap();
        let backend = patient(Variant::Legacy).with_deadline(Duration::from_millis(1900));
        let start = Instant::now();
        let error = backend.apply(&ruleset("inject-default-dual")).unwrap_err();
        assert!(error.hint().unwrap().contains("xtables lock"), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(5));
        drop(held);
        backend.apply(&ruleset("inject-default-dual")).unwrap();
        // Another namespace's lock is another lock.
        let held = File::open("/proc/thread-self/ns/net").unwrap();
        held.lock().unwrap();
        in_new_namespace(|| backend.apply(&ruleset("inject-default-dual")).unwrap());
    });
}

#[test]
fn programs_see_no_users_and_the_host_still_does() {
    let look = "cat /etc/passwd /etc/group /etc/nsswitch.conf | wc -c >&2; exit 1";
    let programs = Programs::with(Variant::Nft, "iptables-nft-restore", look);
    in_new_namespace(|| {
        let error = refusal(&programs.backend(Variant::Nft), &ruleset("inject-default-dual"));
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.ends_with(": 0"), "{cause}");
        assert!(std::fs::metadata("/etc/passwd").unwrap().len() > 0);
    });
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
fn a_namespace_of_another_user_namespace_is_redirected_from_inside_it() {
    for variant in VARIANTS {
        let pod = UserPod::new();
        let backend = patient(variant);
        pod.run(|| {
            let rules = ruleset("inject-default-dual");
            let name = variant.name().trim_start_matches("iptables-");
            // The control: the very same text is refused from outside.
            let text = script(&rules, Family::V4);
            let outside = sh(&format!(
                "iptables-{name}-restore --noflush <<'EOF' 2>/dev/null || echo refused\n{text}EOF"
            ));
            assert_eq!(outside.trim(), "refused");
            backend.apply(&rules).unwrap();
            there(&backend, &rules);
            assert!(save(variant).contains("--uid-owner 1337"));
            backend.remove().unwrap();
            assert!(names_nothing_of_ours(&save(variant)));
        });
    }
}
