use super::*;
use crate::inspect::live::rules::constructed::{APP, PROXY, namespace, ours};
use crate::inspect::walk::Listeners;
use crate::kernel::routes::RoutingEntry;
use RedirectionState::{ByOthers, NotMeshed, NotRedirected, Redirected, Unknown};

type Sentences<'s> = &'s [&'s str];

fn sentences(all: &[&str]) -> Vec<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

#[test]
fn one_missed_connection_outweighs_what_is_unknown_and_one_unknown_outcome_the_rest() {
    let extra = Deviation::OtherBackend(BackendKind::IptablesNft);
    let cases: [(Sentences<'_>, Sentences<'_>, &[Deviation], RedirectionState, Sentences<'_>); 5] = [
        (&[], &[], &[], Redirected, &[]),
        (&["missed"], &[], &[], NotRedirected, &["missed"]),
        (&["missed"], &["maybe"], &[], NotRedirected, &["missed", "maybe"]),
        (&[], &["maybe"], &[], Unknown, &["maybe"]),
        (&[], &[], std::slice::from_ref(&extra), Redirected, &[]),
    ];
    for (not_redirected, unknown, differences, state, reasons) in cases {
        let compared = Comparison {
            not_redirected: sentences(not_redirected),
            unknown: sentences(unknown),
            notes: sentences(&["a note"]),
        };
        let found = verdict(compared, differences);
        assert_eq!((found.state, &found.reasons), (state, &sentences(reasons)));
        assert_eq!((found.differences.len(), &found.notes), (differences.len(), &sentences(&["a note"])));
        assert_eq!(found.holds(), state == Redirected && differences.is_empty());
    }
}

#[test]
fn a_route_of_ours_that_is_missing_loses_connections() {
    let route = Deviation::Route(RoutingEntry::PassthroughAddress);
    let found = verdict(Comparison::default(), &[route]);
    let reason = "our own routes are not those of the policy";
    assert_eq!((found.state, found.reasons), (NotRedirected, sentences(&[reason])));
    assert!(!verdict(Comparison::default(), &[]).reasons.contains(&reason.to_owned()));
}

#[test]
fn a_verdict_holds_when_nothing_is_missed_or_changed() {
    for (state, name, holds) in [
        (Redirected, "redirected", true),
        (NotMeshed, "not-meshed", true),
        (NotRedirected, "not-redirected", false),
        (ByOthers, "by-others", false),
        (Unknown, "unknown", false),
    ] {
        let mut found = NamespaceVerdict::because(state, NO_RULES);
        assert_eq!((found.holds(), state.name(), &found.reasons), (holds, name, &sentences(&[NO_RULES])));
        found.differences.push("a rule is missing".to_owned());
        assert!(!found.holds());
    }
}

#[test]
fn chains_of_ours_that_no_policy_has_are_named() {
    let live = |chains| {
        LiveRules::of(namespace(chains), Listeners { proxy: PROXY, proxy_mark: 0, application: APP })
    };
    let nft = [BackendKind::Nft];
    let complete = live(vec![ours()]);
    assert_eq!(broken(&nft, &complete), sentences(&[]));
    assert_eq!(broken(&nft, &live(vec![])), sentences(&["table inet gybe is dormant"]));
    assert_eq!(broken(&[BackendKind::IptablesNft], &live(vec![])), sentences(&[]));
    let mut not_read = live(vec![]);
    not_read.rules.opaque.push("more than are evaluated".to_owned());
    assert_eq!(broken(&nft, &not_read), sentences(&[]), "what was not read is not missing");
    let mut empty = ours();
    empty.rules.clear();
    assert_eq!(broken(&nft, &live(vec![empty])), sentences(&["chain base of table inet gybe has no rule"]));
    let mut unreached = ours();
    unreached.base = None;
    let says = sentences(&["no rule leads to chain base of table inet gybe"]);
    assert_eq!(broken(&nft, &live(vec![unreached])), says);
}
