//! iptables programs that fail, hang, wait or run at the same time: the lock serializes them, the namespace does
//! not change, and the error names the cause. The next apply repairs the partial rules of a killed one.

use super::*;
use gybe_netfilter::apply::apply;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::iptables::script;
use gybe_netfilter::kernel::netns::Netns;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::inventory::PreviousRules;
use gybe_netfilter::model::ruleset::Family;
use gybe_netfilter::nft::Nft;
use gybe_test_support::{TestDir, with_slowdown};
use std::fs::File;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::thread;
use std::time::Instant;

/// Programs of a variant in a directory of their own, one of them replaced by a shell script.
struct Programs(TestDir);

impl Programs {
    fn with(variant: Engine, replaced: &str, script: &str) -> Self {
        let directory = TestDir::new("programs");
        let name = variant.iptables().trim_start_matches("iptables-");
        for program in ["iptables", "ip6tables"] {
            for verb in ["save", "restore"] {
                let program = format!("{program}-{name}-{verb}");
                symlink(format!("/usr/sbin/{program}"), directory.join(program)).unwrap();
            }
        }
        std::fs::remove_file(directory.join(replaced)).unwrap();
        let path = directory.write(replaced, format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        Self(directory)
    }

    fn backend(&self, variant: Engine) -> Iptables {
        Iptables::find_in(variant, &[self.0.path().to_owned()])
            .unwrap()
            .with_deadline(Duration::from_secs(120))
    }
}

#[test]
fn f16_when_ipv6_is_refused_both_families_are_restored() {
    for variant in VARIANTS {
        let name = variant.iptables().trim_start_matches("iptables-");
        // Commits the first table and refuses the rest, once.
        let refuse_once = format!(
            "[ -e $0.refused ] && exec /usr/sbin/ip6tables-{name}-restore \"$@\"\n\
             touch $0.refused; sed /COMMIT/q | /usr/sbin/ip6tables-{name}-restore \"$@\"; echo no more >&2; exit 1"
        );
        let programs = Programs::with(variant, &format!("ip6tables-{name}-restore"), &refuse_once);
        in_new_namespace(|| {
            let (first, second) = (ruleset("dns-all-tproxy-dual"), ruleset("inject-default-dual"));
            let backend = patient(variant);
            apply(&backend, &first).unwrap();
            let before = save(variant);
            let error = refusal(&programs.backend(variant), &second);
            assert!(matches!(&error, IptablesError::PutBack { family: Family::V6, .. }), "{error:?}");
            assert!(std::error::Error::source(&error).unwrap().to_string().contains("no more"));
            assert_eq!(save(variant), before);
            assert_in_force(&backend, &first);
        });
    }
}

#[test]
fn a_failure_that_cannot_be_undone_names_both_failures_and_the_next_apply_repairs_it() {
    for variant in VARIANTS {
        let name = variant.iptables().trim_start_matches("iptables-");
        let refuse =
            format!("sed /COMMIT/q | /usr/sbin/iptables-{name}-restore \"$@\"; echo no more >&2; exit 1");
        let programs = Programs::with(variant, &format!("iptables-{name}-restore"), &refuse);
        in_new_namespace(|| {
            let rules = ruleset("dns-all-tproxy-dual");
            let backend = patient(variant);
            apply(&backend, &ruleset("inject-default-dual")).unwrap();
            let error = refusal(&programs.backend(variant), &rules);
            assert!(matches!(&error, IptablesError::HalfWritten { family: Family::V4, .. }), "{error:?}");
            assert!(error.to_string().contains("no more") && error.hint().unwrap().contains("apply again"));
            apply(&backend, &rules).unwrap();
            assert_in_force(&backend, &rules);
        });
    }
}

#[test]
fn a10_a_program_that_does_not_end_is_killed_and_named() {
    for variant in VARIANTS {
        let name = variant.iptables().trim_start_matches("iptables-");
        let programs = Programs::with(variant, &format!("iptables-{name}-restore"), "exec sleep 60");
        in_new_namespace(|| {
            let backend = programs.backend(variant).with_deadline(Duration::from_millis(300));
            let rules = ruleset("inject-default-dual");
            let ((error, took), slowdown) = with_slowdown(|| {
                let start = Instant::now();
                (refusal(&backend, &rules), start.elapsed())
            });
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains("iptables") && cause.contains("killed"), "{cause}");
            assert!(took < Duration::from_secs(5).mul_f64(slowdown), "{took:?}, slowdown {slowdown:.2}");
        });
    }
}

#[test]
fn programs_run_without_the_hosts_user_database() {
    let look = "cat /etc/passwd /etc/group /etc/nsswitch.conf | wc -c >&2; exit 1";
    let programs = Programs::with(Engine::NfTables, "iptables-nft-restore", look);
    in_new_namespace(|| {
        let error = refusal(&programs.backend(Engine::NfTables), &ruleset("inject-default-dual"));
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.ends_with(": 0"), "{cause}");
        assert!(std::fs::metadata("/etc/passwd").unwrap().len() > 0);
    });
}

#[test]
fn f24_f40_missing_ipv6_programs_are_an_error_before_anything_is_written() {
    for variant in VARIANTS {
        let name = variant.iptables().trim_start_matches("iptables-");
        let programs = Programs::with(variant, &format!("ip6tables-{name}-restore"), "");
        std::fs::remove_file(programs.0.join(format!("ip6tables-{name}-restore"))).unwrap();
        in_new_namespace(|| {
            let backend = programs.backend(variant);
            let error = refusal(&backend, &ruleset("inject-default-dual"));
            assert!(matches!(&error, IptablesError::ProgramMissing { family: Family::V6, .. }), "{error:?}");
            assert!(has_nothing_of_gybe(&save(variant)));
            apply(&backend, &ruleset("inject-default-v4")).unwrap();
        });
    }
}

#[test]
fn the_multi_call_programs_work_under_their_own_names() {
    for (variant, multi) in
        [(Engine::Legacy, "xtables-legacy-multi"), (Engine::NfTables, "xtables-nft-multi")]
    {
        let programs = Programs(TestDir::new(multi));
        symlink(format!("/usr/sbin/{multi}"), programs.0.join(multi)).unwrap();
        in_new_namespace(|| {
            let rules = ruleset("dns-all-tproxy-dual");
            apply(&programs.backend(variant), &rules).unwrap();
            assert_in_force(&programs.backend(variant), &rules);
            assert_in_force(&patient(variant), &rules);
        });
    }
}

/// iptables-nft 1.8.7 does this if /etc/protocols is missing.
#[test]
fn output_with_protocols_as_numbers_is_read() {
    let print = "/usr/sbin/iptables-nft-save \"$@\" | sed -e 's/ -p tcp / -p 6 /' -e 's/ -p udp / -p 17 /'";
    let programs = Programs::with(Engine::NfTables, "iptables-nft-save", print);
    let (backend, rules) = (programs.backend(Engine::NfTables), ruleset("dns-all-tproxy-dual"));
    in_new_namespace(|| {
        assert_eq!(apply(&backend, &rules).unwrap().previous, PreviousRules::None);
        assert_in_force(&backend, &rules);
        assert_eq!(apply(&backend, &rules).unwrap().previous, PreviousRules::Same);
        backend.remove().unwrap();
        assert!(has_nothing_of_gybe(&save(Engine::NfTables)));
    });
}

/// Each table of each family, in the order they are committed.
const COMMITS: [(&str, Family, &str); 6] = [
    ("ip", Family::V4, "raw"),
    ("ip", Family::V4, "mangle"),
    ("ip", Family::V4, "nat"),
    ("ip6", Family::V6, "raw"),
    ("ip6", Family::V6, "mangle"),
    ("ip6", Family::V6, "nat"),
];

/// Writes the part of the rules that one commit contains.
fn commit(variant: Engine, rules: &Ruleset, (program, family, table): (&str, Family, &str)) {
    let text = script(rules, family).unwrap();
    let part = text.split_inclusive("COMMIT\n").find(|part| part.starts_with(&format!("*{table}\n")));
    if let Some(part) = part {
        tables(variant, &format!("{program}tables-restore --noflush <<'EOF'\n{part}EOF"));
    }
}

/// A killed apply has made its first commits; one that is killed while it restores has undone the first of them. The
/// other tables are as before: empty, or with another policy's rules.
#[test]
fn f15_the_next_apply_repairs_the_partial_rules_of_a_killed_one() {
    let (other, rules) = (ruleset("outbound-exclude-cidr"), ruleset("dns-all-tproxy-dual"));
    for variant in VARIANTS {
        let backend = patient(variant);
        for (before, cut) in [None, Some(&other)].into_iter().flat_map(|b| (0..=6).map(move |cut| (b, cut))) {
            for undone in [false, true] {
                in_new_namespace(|| {
                    for (position, one) in COMMITS.into_iter().enumerate() {
                        match before {
                            _ if (position < cut) != undone => commit(variant, &rules, one),
                            Some(before) => commit(variant, before, one),
                            None => {}
                        }
                    }
                    apply(&backend, &rules).unwrap_or_else(|error| panic!("cut at {cut}: {error:?}"));
                    assert_in_force(&backend, &rules);
                    backend.remove().unwrap();
                    assert!(has_nothing_of_gybe(&save(variant)));
                });
            }
        }
    }
}

/// Without the lock most concurrent pairs write their jumps twice, so this many rounds practically always show it.
const ROUNDS: usize = 8;

/// Runs all the closures concurrently in this thread's network namespace and returns their results in order.
fn at_once<T: Send>(works: Vec<Box<dyn FnOnce() -> T + Send + '_>>) -> Vec<T> {
    let namespace = Netns::of_this_thread().unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> =
            works.into_iter().map(|work| scope.spawn(|| namespace.run(work).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn f18_concurrent_adds_for_one_namespace_succeed_and_one_rule_set_is_in_force() {
    let rules = ["inject-default-dual", "dns-all-tproxy-dual"].map(ruleset);
    for variant in VARIANTS {
        let backend = patient(variant);
        for round in 0..ROUNDS {
            in_new_namespace(|| {
                let apply = |which: usize| {
                    let (backend, rules) = (&backend, &rules[which % 2]);
                    Box::new(move || apply(backend, rules).map(drop)) as Box<dyn FnOnce() -> _ + Send>
                };
                // Even rounds: the same rules four times; odd rounds: two rule sets, twice each.
                let outcomes = at_once((0..4).map(|call| apply(call * (round % 2))).collect());
                assert!(outcomes.iter().all(Result::is_ok), "{}, {round}: {outcomes:?}", backend.name());
                let found = backend.inspect().unwrap();
                let whole = |rules: &Ruleset| backend.desired(rules).unwrap().differences(&found).is_empty();
                assert!(rules.iter().any(whole), "{}, {round}: {}", backend.name(), save(variant));
            });
        }
    }
}

/// Each variant removes the other's rules once its own are in force; without the lock none might remain.
#[test]
fn f18_after_concurrent_adds_by_both_variants_one_rule_set_is_in_force() {
    let rules = ruleset("inject-default-dual");
    let backends = VARIANTS.map(patient);
    for round in 0..ROUNDS {
        in_new_namespace(|| {
            let apply = |backend: &'_ Iptables| {
                let (backend, rules) = (backend.clone(), &rules);
                Box::new(move || apply(&backend, rules).map(drop)) as Box<dyn FnOnce() -> _ + Send>
            };
            let outcomes = at_once(backends.iter().map(apply).collect());
            assert!(outcomes.iter().all(Result::is_ok), "{round}: {outcomes:?}");
            let ours = Presence::look().unwrap().ours;
            let [one] = ours.as_slice() else { panic!("{round}: {ours:?}") };
            let there = backends.iter().find(|backend| backend.name() == one.name()).unwrap();
            assert_in_force(there, &rules);
        });
    }
}

/// The nft backend takes no lock. If an iptables program and nftables write rules for one pod concurrently, both sets
/// may remain, which CHECK reports; it must not happen that none remains.
#[test]
fn f18_after_concurrent_adds_by_nftables_and_iptables_a_rule_set_is_in_force() {
    let rules = ruleset("inject-default-dual");
    for variant in VARIANTS {
        let program = patient(variant);
        for round in 0..ROUNDS {
            in_new_namespace(|| {
                apply(&program, &rules).unwrap();
                let (program, rules) = (&program, &rules);
                let outcomes = at_once(vec![
                    Box::new(move || apply(program, rules).map(drop)),
                    Box::new(move || apply(&Nft, rules).map(drop)),
                ]);
                assert!(outcomes.iter().all(Result::is_ok), "{round}: {outcomes:?}");
                let there = |backend: &dyn Backend| {
                    backend.desired(rules).unwrap().differences(&backend.inspect().unwrap()).is_empty()
                };
                assert!(there(program) || there(&Nft), "{}, {round}: none", program.name());
            });
        }
    }
}

#[test]
fn f18_f22_apply_waits_for_a_held_lock_until_the_deadline() {
    for variant in VARIANTS {
        in_new_namespace(|| {
            let held = File::open("/proc/thread-self/ns/net").unwrap();
            held.lock().unwrap();
            let rules = ruleset("inject-default-dual");
            let late = refusal(&patient(variant).with_deadline(Duration::from_millis(50)), &rules);
            assert!(matches!(&late, IptablesError::Busy { .. }), "{late:?}");
            assert!(late.to_string().contains("50ms") && late.hint().unwrap().contains("lslocks"), "{late}");
            // Each network namespace has its own lock.
            in_new_namespace(|| apply(&patient(variant), &rules).unwrap());
            drop(held);
            assert!(has_nothing_of_gybe(&save(variant)));
            apply(&patient(variant), &rules).unwrap();
        });
    }
}
