//! Kernel errors at netlink sockets, injected by strace: the program recovers or reports a clear error, and it reports
//! success only if the rules are in force.

use super::{BEFORE, Scratch, TPROXY, add};
use gybe_integration::invocation::{Invocation, State};
use gybe_integration::programs::Run;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::redirection::remove;

/// A fault: a system call fails the n-th time that a thread makes it, or from then on.
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

/// The last two are an empty message, and one shorter than its header.
const RECEIVING: [&str; 6] =
    ["error=ENOBUFS", "error=EINTR", "error=EAGAIN", "error=ENOMEM", "retval=0", "retval=12"];

const OPENING: [&str; 4] = ["error=EPERM", "error=EPROTONOSUPPORT", "error=EMFILE", "error=EAFNOSUPPORT"];

/// No thread makes any of these calls more often.
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
        // timeout(1) kills a program that retries forever; its exit code 124 fails the test.
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

    /// Reports whether the call fails every further time too, so that the program can never read its rules back.
    fn stays(&self) -> bool {
        self.when.ends_with('+')
    }
}

/// Runs the invocation with each fault; returns how often it reported success, and how often an error.
fn what_is_claimed_is_true(
    invocation: &Invocation,
    prepare: &(dyn Fn() + Sync),
    is_told: fn(&Run) -> bool,
) -> (usize, usize) {
    let (mut done, mut failed) = (0, 0);
    for fault in faults() {
        invocation.namespace.run(prepare).unwrap();
        let run = fault.run(invocation);
        let (state, name) = (invocation.state(&Nft).unwrap(), fault.name());
        match run.code {
            Some(0) => {
                assert_eq!(state, State::Whole, "{name}: claimed, {run:?}");
                done += 1;
            }
            Some(code @ 1..=2) => {
                assert!(is_told(&run), "{name}: {code} {run:?}");
                // Complete rules may be reported as an error only if the program could not read them back, or could not
                // list the earlier policy's routes, which it removes last.
                let unseen = fault.stays() && fault.call != "sendmsg" || run.err.contains("routing");
                assert!(state != State::Whole || unseen, "{name}: {run:?}");
                failed += 1;
            }
            _ => panic!("{name}: {run:?}"),
        }
        // The remains of a failed run do not prevent the next one.
        assert_eq!(invocation.run(&[]).unwrap().code, Some(0), "after {name}");
        assert_eq!(invocation.state(&Nft).unwrap(), State::Whole, "after {name}");
    }
    (done, failed)
}

/// Reports whether `gybe` failed with a line that names the operation and its cause.
fn gybe_tells(run: &Run) -> bool {
    let line = run.err.lines().next().unwrap_or_default();
    run.code == Some(2) && run.out.is_empty() && line.starts_with("gybe: ") && line.matches(": ").count() >= 2
}

/// Reports whether the plugin failed with a complete CNI error on stdout.
fn plugin_tells(run: &Run) -> bool {
    let error: serde_json::Value = serde_json::from_str(&run.out).unwrap_or_default();
    run.code == Some(1)
        && error["code"].as_u64() > Some(0)
        && error["msg"].as_str().is_some_and(|msg| !msg.is_empty())
}

#[test]
fn f25_gybe_apply_claims_exactly_what_is_true_whatever_the_kernel_answers() {
    let invocation = Invocation::apply(TPROXY, "nft").unwrap();
    let (done, failed) = what_is_claimed_is_true(&invocation, &|| remove(&Nft).unwrap(), gybe_tells);
    println!("gybe apply: {done} faults recovered from, {failed} reported");
    assert!(done > 0 && failed > 0);
}

#[test]
fn f25_gybe_apply_over_other_rules_claims_exactly_what_is_true_whatever_the_kernel_answers() {
    let invocation = Invocation::apply(TPROXY, "nft").unwrap();
    let before = Invocation::apply(BEFORE, "nft").unwrap().redirection;
    let (done, failed) =
        what_is_claimed_is_true(&invocation, &|| drop(before.apply(&Nft).unwrap()), gybe_tells);
    println!("gybe apply over others: {done} faults recovered from, {failed} reported");
    assert!(done > 0 && failed > 0);
}

#[test]
fn f25_an_add_claims_exactly_what_is_true_whatever_the_kernel_answers() {
    let scratch = Scratch::new("injected");
    let (done, failed) = what_is_claimed_is_true(&add(&scratch), &|| remove(&Nft).unwrap(), plugin_tells);
    println!("gybe-cni ADD: {done} faults recovered from, {failed} reported");
    assert!(done > 0 && failed > 0);
}
