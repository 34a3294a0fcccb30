//! SIGKILL at each system call: with nft all rules are in force or none; with iptables the next apply repairs partial
//! rules.

use super::{BEFORE, TPROXY, add, sh};
use gybe_integration::invocation::{Invocation, State};
use gybe_integration::kill::{End, WAIT_THEN_RUN, kill_at_system_call};
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::redirection::{Redirection, remove};
use gybe_netfilter::iptables::{Iptables, Variant};
use gybe_netfilter::model::inventory::Inventory;
use gybe_netfilter::nft::Nft;
use gybe_test_support::TestDir;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// The iptables deadline, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// With iptables there are so many system calls that only every n-th is tested.
const STRIDE: usize = 9;

/// Kills the program at its n-th system call for every n in `steps`, each time after `prepare`, until it exits by
/// itself. Returns the number of its system calls, and how often it was killed.
fn at_every_call(
    invocation: &Invocation,
    steps: impl Iterator<Item = u64>,
    mut prepare: impl FnMut(),
    mut judge: impl FnMut(u64),
) -> (u64, u64) {
    let mut killed = 0;
    for at in steps {
        prepare();
        let run = kill_at_system_call(invocation.command(&WAIT_THEN_RUN), invocation.stdin(), at).unwrap();
        match run.end {
            End::Killed => {
                killed += 1;
                judge(at);
            }
            End::Exited { code, calls } => {
                assert_eq!(code, Some(0), "{run:?}");
                return (calls, killed);
            }
        }
    }
    unreachable!("a program of endless system calls")
}

fn inspect(invocation: &Invocation) -> Inventory {
    invocation.namespace.run(|| Nft.inspect()).unwrap().unwrap()
}

fn assert_all_rules_or_as_before(name: &str, invocation: &Invocation, before: Option<&Redirection>) {
    let run = |work: &(dyn Fn() + Sync)| invocation.namespace.run(work).unwrap();
    let prepare = || {
        run(&|| {
            remove(&Nft).unwrap();
            before.into_iter().for_each(|before| drop(before.apply(&Nft).unwrap()));
        });
    };
    let (mut as_before, mut complete) = (0, 0);
    let judge = |at| {
        let found = inspect(invocation);
        let is = |rules| Nft.desired(rules).unwrap().differences(&found).is_empty();
        if is(&invocation.redirection.rules) {
            complete += 1;
        } else {
            let unchanged = before.map_or(found.is_empty(), |before| is(&before.rules));
            assert!(unchanged, "{name}, killed at call {at}: {found:?}");
            as_before += 1;
        }
        // Addresses and routes may remain; they must not prevent the next apply.
        run(&|| drop(invocation.redirection.apply(&Nft).unwrap()));
        assert_eq!(invocation.state(&Nft).unwrap(), State::Whole, "{name}, repaired after call {at}");
    };
    let (calls, killed) = at_every_call(invocation, 1.., prepare, judge);
    println!(
        "{name}: {calls} system calls, killed at each of them: {as_before} as before, {complete} complete"
    );
    assert!(killed >= calls && killed == as_before + complete, "{name}");
    assert!(as_before > 0 && complete > 0, "{name}");
}

#[test]
fn f15_gybe_apply_killed_at_any_system_call_leaves_all_of_nfts_rules_or_none() {
    assert_all_rules_or_as_before("gybe apply", &Invocation::apply(TPROXY, "nft").unwrap(), None);
}

#[test]
fn f15_gybe_apply_killed_at_any_system_call_leaves_the_previous_rules_or_the_new_ones() {
    let before = Invocation::apply(BEFORE, "nft").unwrap().redirection;
    assert_all_rules_or_as_before(
        "gybe apply over others",
        &Invocation::apply(TPROXY, "nft").unwrap(),
        Some(&before),
    );
}

#[test]
fn f15_an_add_killed_at_any_system_call_leaves_all_of_nfts_rules_or_none() {
    let directory = TestDir::new("killed");
    assert_all_rules_or_as_before("gybe-cni ADD", &add(&directory), None);
}

/// Waits until no process runs in the namespace: the children of a killed program are killed shortly after it.
fn wait_until_no_process_is_in(invocation: &Invocation) {
    let inode = |path: std::path::PathBuf| std::fs::metadata(path).map(|file| file.ino()).ok();
    let here = inode(invocation.namespace.path());
    let deadline = Instant::now() + PATIENCE;
    let busy = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes.into_iter().any(|process| inode(process.path().join("ns/net")) == here)
    };
    while busy() {
        assert!(Instant::now() < deadline, "a program outlives its caller");
        std::thread::yield_now();
    }
}

#[test]
fn f15_after_gybe_apply_was_killed_with_iptables_the_next_one_repairs_the_rules() {
    for variant in [Variant::Legacy, Variant::Nft] {
        let backend = Iptables::find(variant).unwrap().with_deadline(PATIENCE);
        let invocation = Invocation::apply(TPROXY, variant.name()).unwrap();
        let before = Invocation::apply(BEFORE, variant.name()).unwrap().redirection;
        let mut turn = 0_usize;
        let prepare = || {
            // The namespace is alternately empty and has other rules.
            turn += 1;
            invocation.namespace.run(|| remove(&backend).unwrap()).unwrap();
            if turn.is_multiple_of(2) {
                invocation.namespace.run(|| before.apply(&backend).unwrap()).unwrap();
            }
        };
        let judge = |at| {
            wait_until_no_process_is_in(&invocation);
            invocation.namespace.run(|| invocation.redirection.apply(&backend).unwrap()).unwrap();
            assert_eq!(invocation.state(&backend).unwrap(), State::Whole, "{}, call {at}", backend.name());
        };
        let (calls, killed) = at_every_call(&invocation, (1..).step_by(STRIDE), prepare, judge);
        println!("gybe apply with {}: {calls} system calls, killed at {killed} of them", backend.name());
        // The number of system calls varies with the scheduling of parent and child.
        assert!(killed > 30, "{killed}");
        invocation.namespace.run(|| remove(&backend).unwrap()).unwrap();
        let left = invocation
            .namespace
            .run(|| sh("nft list ruleset; iptables-legacy-save; ip6tables-legacy-save"))
            .unwrap();
        assert!(!left.contains("ISTIO") && !left.contains("GYBE"), "{left}");
    }
}
