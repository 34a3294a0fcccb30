//! Kernel errors at our sockets, injected by strace: the program retries, or reports a clear error, and it reports
//! success exactly when the rules are in force.

use super::{BEFORE, TPROXY, add};
use gybe_integration::invocation::{Invocation, State};
use gybe_integration::programs::Run;
use gybe_netfilter::apply::redirection::remove;
use gybe_netfilter::nft::Nft;
use gybe_test_support::TestDir;

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
