//! What a redirection does with its backend, whichever it is: held against the one that remembers. No
//! policy here needs an address or a route, so no kernel is asked anything.
#![allow(clippy::unwrap_used, reason = "a test that meets what it did not expect has nothing better to do")]

use gybe_netfilter::backend::{Backend, Memory};
use gybe_netfilter::policy::{Families, RedirectPolicy};
use gybe_netfilter::redirection::Redirection;

fn redirection(change: impl FnOnce(&mut RedirectPolicy)) -> Redirection {
    let mut policy = RedirectPolicy::injected(Families::V4Only);
    change(&mut policy);
    let redirection = Redirection::of(&policy);
    assert!(redirection.routes.is_empty());
    redirection
}

fn differences(wanted: &Redirection, backend: &Memory) -> Vec<String> {
    wanted.differences(backend).unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn what_was_applied_last_is_all_there_is() {
    let (first, second) =
        (redirection(|_| ()), redirection(|p| p.outbound.excluded_ports = (22..=22).into()));
    let backend = Memory::default();
    for wanted in [&first, &second, &second, &first] {
        wanted.apply(&backend).unwrap();
        assert_eq!(backend.rules().as_ref(), Some(&wanted.rules));
        assert_eq!(differences(wanted, &backend), [""; 0]);
    }
}

#[test]
fn what_differs_is_told_rule_by_rule() {
    let (held, wanted) = (redirection(|_| ()), redirection(|p| p.outbound.excluded_ports = (22..=22).into()));
    let backend = Memory::default();
    assert!(differences(&held, &backend).iter().any(|line| line == "chain nat-output is missing"));
    held.apply(&backend).unwrap();
    let told = differences(&wanted, &backend);
    assert!(told.iter().any(|line| line.contains("\"outbound-excluded-port\"")), "{told:?}");
    backend.remove().unwrap();
    assert_eq!(backend.rules(), None);
    assert!(!differences(&held, &backend).is_empty());
}
