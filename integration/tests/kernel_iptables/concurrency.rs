//! Concurrent calls in one network namespace: the lock serializes them.

use super::*;
use gybe_netfilter::apply::apply;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::kernel::netns::Netns;
use gybe_netfilter::model::Hint;
use gybe_netfilter::nft::Nft;
use std::fs::File;
use std::thread;

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
