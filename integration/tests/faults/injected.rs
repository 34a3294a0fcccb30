//! Kernel errors at our sockets, injected by strace, and SIGKILL at each system call: the program retries or
//! reports a clear error, and reports success exactly when the rules are in force; with nft all rules are in force
//! or none, with iptables the next apply repairs partial rules.

use super::{BEFORE, TPROXY, add, sh};
use gybe_integration::invocation::{Invocation, State};
use gybe_integration::kill::{End, WAIT_THEN_RUN, kill_at_system_call};
use gybe_integration::programs::{Run, patient_iptables};
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::redirection::{Redirection, remove};
use gybe_netfilter::model::inventory::Inventory;
use gybe_netfilter::model::ruleset::Engine;
use gybe_netfilter::nft::Nft;
use gybe_test_support::TestDir;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// A system call that fails: the n-th call of a thread, or every call from the n-th on.
struct Fault {
    call: &'static str,
    outcome: &'static str,
    when: String,
}

const SENDING: [&str; 7] = [
    "error=ENOBUFS",
    "error=EINTR",
    "error=ENOMEM",
    "error=EPERM",
    "error=EOPNOTSUPP",
    "error=EMSGSIZE",
    "error=ECONNREFUSED",
];

/// The last two: an empty reply, and one shorter than its header.
const RECEIVING: [&str; 6] =
    ["error=ENOBUFS", "error=EINTR", "error=EAGAIN", "error=ENOMEM", "retval=0", "retval=12"];

const OPENING: [&str; 4] = ["error=EPERM", "error=EPROTONOSUPPORT", "error=EMFILE", "error=EAFNOSUPPORT"];

/// No thread makes more of any of these calls.
const TIMES: usize = 6;

fn faults() -> Vec<Fault> {
    let calls = [("socket", &OPENING[..]), ("sendmsg", &SENDING[..]), ("recvfrom", &RECEIVING[..])];
    let each =
        calls.into_iter().flat_map(|(call, outcomes)| outcomes.iter().map(move |outcome| (call, *outcome)));
    each.flat_map(|(call, outcome)| {
        let once = (1..=TIMES).map(|n| n.to_string());
        once.chain(["1+".to_owned(), "2+".to_owned()]).map(move |when| Fault { call, outcome, when })
    })
    .collect()
}

impl Fault {
    fn run(&self, invocation: &Invocation) -> Run {
        let Self { call, outcome, when } = self;
        let inject = format!("inject={call}:{outcome}:when={when}");
        // A program that tries for ever is killed: exit code 124 and no message.
        let guard = [
            "timeout",
            "60",
            "strace",
            "-f",
            "--seccomp-bpf",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "trace=socket,sendmsg,recvfrom",
            "-e",
            &inject,
        ];
        invocation.run(&guard).unwrap()
    }

    fn name(&self) -> String {
        format!("{} {} when={}", self.call, self.outcome, self.when)
    }

    /// Reports whether every later call fails too.
    fn stays(&self) -> bool {
        self.when.ends_with('+')
    }
}

/// Runs the invocation with each fault and returns how often it succeeded and how often it failed.
fn assert_reports_are_true(
    invocation: &Invocation,
    prepare: &(dyn Fn() + Sync),
    is_reported: fn(&Run) -> bool,
) -> (usize, usize) {
    let (mut done, mut failed) = (0, 0);
    for fault in faults() {
        invocation.namespace.run(prepare).unwrap();
        let run = fault.run(invocation);
        let (state, name) = (invocation.state(&Nft).unwrap(), fault.name());
        match run.code {
            Some(0) => {
                assert_eq!(state, State::Whole, "{name}: success reported, {run:?}");
                done += 1;
            }
            Some(code @ 1..=2) => {
                assert!(is_reported(&run), "{name}: {code} {run:?}");
                // The rules may be complete after a failure in two cases: the program could not read them back
                // either, or its last step failed, which lists the routing entries of earlier policies.
                let is_unread = fault.stays() && fault.call != "sendmsg";
                let is_routing = ["rtnetlink", "routing"].iter().any(|word| run.err.contains(word));
                assert!(state != State::Whole || is_unread || is_routing, "{name}: {run:?}");
                failed += 1;
            }
            _ => panic!("{name}: {run:?}"),
        }
        // What a failed run leaves does not prevent the next run.
        assert_eq!(invocation.run(&[]).unwrap().code, Some(0), "after {name}");
        assert_eq!(invocation.state(&Nft).unwrap(), State::Whole, "after {name}");
    }
    (done, failed)
}

/// Reports whether stderr has a line with what failed and why.
fn gybe_reports(run: &Run) -> bool {
    let line = run.err.lines().next().unwrap_or_default();
    run.code == Some(2) && run.out.is_empty() && line.starts_with("gybe: ") && line.matches(": ").count() >= 2
}

/// Reports whether stdout is a complete CNI error.
fn plugin_reports(run: &Run) -> bool {
    let error: serde_json::Value = serde_json::from_str(&run.out).unwrap_or_default();
    run.code == Some(1)
        && error["code"].as_u64() > Some(0)
        && error["msg"].as_str().is_some_and(|msg| !msg.is_empty())
}

#[test]
fn f25_gybe_apply_reports_success_exactly_when_the_rules_are_in_force() {
    let invocation = Invocation::apply(TPROXY, "nft").unwrap();
    let (done, failed) = assert_reports_are_true(&invocation, &|| remove(&Nft).unwrap(), gybe_reports);
    println!("gybe apply: {done} faults without effect, {failed} reported");
    assert!(done > 0 && failed > 0);
}

#[test]
fn f25_gybe_apply_over_other_rules_reports_success_exactly_when_the_rules_are_in_force() {
    let invocation = Invocation::apply(TPROXY, "nft").unwrap();
    let before = Invocation::apply(BEFORE, "nft").unwrap().redirection;
    let (done, failed) =
        assert_reports_are_true(&invocation, &|| drop(before.apply(&Nft).unwrap()), gybe_reports);
    println!("gybe apply over others: {done} faults without effect, {failed} reported");
    assert!(done > 0 && failed > 0);
}

#[test]
fn f25_an_add_reports_success_exactly_when_the_rules_are_in_force() {
    let directory = TestDir::new("injected");
    let (done, failed) = assert_reports_are_true(&add(&directory), &|| remove(&Nft).unwrap(), plugin_reports);
    println!("gybe-cni ADD: {done} faults without effect, {failed} reported");
    assert!(done > 0 && failed > 0);
}

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
    for variant in [Engine::Legacy, Engine::NfTables] {
        let backend = patient_iptables(variant).unwrap();
        let invocation = Invocation::apply(TPROXY, variant.iptables()).unwrap();
        let before = Invocation::apply(BEFORE, variant.iptables()).unwrap().redirection;
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
