use super::*;
use crate::inspect::live::rules::constructed::{
    APP, PROXY, aged, chain, namespace, ours, owned_by, redirect_tcp, rule,
};
use crate::inspect::live::rules::expr::{Code, Expr, LoadSource};
use crate::inspect::live::rules::{ChainKind, LiveChain, LiveRule};
use crate::inspect::walk::Listeners;
use crate::kernel::uapi::{NFT_CMP_EQ, NFT_META_MARK, NFT_PAYLOAD_TRANSPORT_HEADER};
use crate::model::policy::{Families, Port, PortRange};
use crate::model::ruleset::{Chain, ChainName, Hook, Is, Match, Rule, RuleId, Ruleset, Transport, Verdict};
use std::collections::BTreeSet;

/// What [`ours`] has: every TCP connection but the proxy's goes to 15001.
fn desired() -> LiveRules {
    let rule = |id, matches, verdict| Rule { id: RuleId(id), matches, verdict };
    let rules = vec![
        rule("proxy", vec![Match::OwnerUid(BTreeSet::from([PROXY.uid]))], Verdict::Return),
        rule("rest", vec![Match::Protocol(Transport::Tcp)], Verdict::Redirect(Port::new(15001).unwrap())),
    ];
    of_chain(ChainName::NatOutput, rules)
}

fn of_chain(name: ChainName, rules: Vec<Rule>) -> LiveRules {
    let rules = Ruleset { families: Families::V4AndV6, chains: vec![Chain { name, rules }] };
    live(Vec::new()).replaced_by(&rules).unwrap()
}

fn live(chains: Vec<LiveChain>) -> LiveRules {
    LiveRules::of(namespace(chains), Listeners { proxy: PROXY, proxy_mark: 0, application: APP })
}

fn our_own(mut chain: LiveChain) -> LiveChain {
    chain.rules.iter_mut().for_each(|rule| rule.is_ours = true);
    chain
}

fn named(text: &str, rule: LiveRule) -> LiveRule {
    LiveRule { text: text.to_owned(), ..rule }
}

fn to_port(port: u16, then: Expr) -> LiveRule {
    let source = LoadSource::Payload { base: NFT_PAYLOAD_TRANSPORT_HEADER, offset: 2, length: 2 };
    let compare = Expr::Compare { op: NFT_CMP_EQ, at: 0, value: port.to_be_bytes().to_vec() };
    named(&format!("dport {port}"), rule(vec![Expr::Load { source, to: 0 }, compare, then]))
}

fn theirs(priority: i32, rules: Vec<LiveRule>) -> LiveChain {
    chain("other", ChainKind::Filter, (Hook::Output, priority), rules)
}

fn compared(chains: Vec<LiveChain>, which: Compared) -> Comparison {
    compare(&desired(), &live(chains), which)
}

const DROP: Expr = Expr::Verdict(Code::Drop);

/// Parts of the sentences of each kind, in order.
type Sentences<'s> = &'s [&'s str];

fn assert_found(found: &Comparison, [not_redirected, unknown, notes]: [Sentences<'_>; 3]) {
    for (sentences, parts) in
        [(&found.not_redirected, not_redirected), (&found.unknown, unknown), (&found.notes, notes)]
    {
        let is_same = sentences.len() == parts.len();
        let has = |(sentence, part): (&String, &&str)| sentence.contains(*part);
        assert!(is_same && sentences.iter().zip(parts).all(has), "{parts:?} should be in {found:#?}");
    }
}

#[test]
fn each_kind_of_difference_is_a_sentence_about_the_rule_that_decides() {
    const HARMLESS: &str = "a rule of another owner changes no redirected connection: hook output priority";
    let at = |priority, rules| vec![our_own(ours()), theirs(priority, rules)];
    let drop = |port| vec![to_port(port, DROP)];
    let mark = |mark: u32| {
        let load = Expr::Load { source: LoadSource::Meta(NFT_META_MARK), to: 0 };
        let compare = Expr::Compare { op: NFT_CMP_EQ, at: 0, value: mark.to_ne_bytes().to_vec() };
        named("marked", rule(vec![load, compare, DROP]))
    };
    let cases: [(Vec<LiveChain>, Compared, [Sentences<'_>; 3]); 12] = [
        (vec![our_own(ours())], Compared::Redirected, [&[], &[], &[]]),
        (
            vec![],
            Compared::Redirected,
            [
                &[
                    "TCP from user 1000 group 1000 to 198.51.100.1:9999 keeps its destination instead of port 15001 of the \
                   proxy: no rule decides",
                ],
                &[],
                &[],
            ],
        ),
        (
            at(-150, drop(443)),
            Compared::Redirected,
            [
                &[
                    "TCP from user 1000 group 1000 to 198.51.100.1:443 is dropped instead of port 15001 of the proxy: hook \
                   output priority -150, inet other base: dport 443",
                ],
                &[],
                &[],
            ],
        ),
        // The proxy's own connections are left alone.
        (
            at(-150, vec![named("proxy's", owned_by(1337, DROP))]),
            Compared::Redirected,
            [&["gets no answer"], &[], &[]],
        ),
        (
            at(-150, vec![named("another's", rule(vec![Expr::Untrack]))]),
            Compared::Redirected,
            [&[], &[], &[HARMLESS]],
        ),
        (
            at(-150, vec![mark(5)]),
            Compared::Redirected,
            [&["with mark 0x5 to 198.51.100.1:9999 is dropped"], &[], &[]],
        ),
        (
            at(-150, vec![to_port(443, Expr::Unknown("dup".to_owned()))]),
            Compared::Redirected,
            [
                &[],
                &["to 198.51.100.1:443 goes to a destination that is not known instead of port 15001"],
                &[],
            ],
        ),
        // Connections with the same outcome by the same rule are one sentence.
        (at(-150, vec![named("all", rule(vec![DROP]))]), Compared::Redirected, [&["all"], &[], &[]]),
        (
            at(-150, vec![named("counts", rule(vec![Expr::Nothing("log".to_owned())]))]),
            Compared::Redirected,
            [&[], &[], &[]],
        ),
        (
            vec![aged(our_own(ours()), 5, false), {
                let redirects = vec![redirect_tcp(9)];
                aged(chain("other", ChainKind::Nat, (Hook::Output, -100), redirects), 2, false)
            }],
            Compared::Redirected,
            [
                &[],
                &[
                    "the kernel does not report which comes first: hook output priority -100, inet gybe base or hook output \
                   priority -100, inet other base",
                ],
                &[HARMLESS],
            ],
        ),
        // Of all connections, those of the proxy and UDP count too; lost replies do not.
        (
            at(-150, vec![named("proxy's", owned_by(1337, DROP))]),
            Compared::All,
            [
                &[
                    "from user 1337 group 1000 to 198.51.100.1:9999 is dropped instead of keeping its destination",
                ],
                &[],
                &[],
            ],
        ),
        (
            at(-310, vec![named("replies", owned_by(1337, Expr::Untrack))]),
            Compared::All,
            [&[], &[], &[HARMLESS]],
        ),
    ];
    for (chains, which, expected) in cases {
        assert_found(&compared(chains, which), expected);
    }
}

#[test]
fn what_was_not_evaluated_is_unknown_and_the_rest_is_compared() {
    let mut opaque = live(vec![our_own(ours()), theirs(-150, vec![to_port(443, DROP)])]);
    opaque.rules.opaque.push("a flow table".to_owned());
    let found = compare(&desired(), &opaque, Compared::Redirected);
    assert_found(&found, [&["443 is dropped"], &["a flow table"], &[]]);
    // A comparison of bits that were inverted cannot be listed.
    let inverted = rule(vec![
        Expr::Load { source: LoadSource::Meta(NFT_META_MARK), to: 0 },
        Expr::Bitwise { from: 0, to: 0, mask: vec![0xff; 4], xor: vec![1; 4] },
        Expr::Compare { op: NFT_CMP_EQ, at: 0, value: vec![7; 4] },
        DROP,
    ]);
    let chains = vec![our_own(ours()), theirs(-150, vec![named("inverted", inverted)])];
    let found = compared(chains, Compared::Redirected);
    assert_found(&found, [&[], &["comparison not evaluated: hook output priority -150"], &["inverted"]]);
}

#[test]
fn too_much_to_compare_is_unknown() {
    let chains = || vec![our_own(ours())];
    let found =
        compare_within(&Budget::of(0), MOST_FINDINGS, &desired(), &live(chains()), Compared::Redirected);
    assert_found(&found, [&[], &["not evaluated within 50000000 steps"], &[]]);
    let ports = (0..600).map(|port| to_port(2 * port + 1, DROP)).collect();
    let owners = (0..600).map(|uid| owned_by(2 * uid, DROP)).collect();
    let many = [chains(), vec![theirs(-150, ports), theirs(-140, owners)]].concat();
    let found = compared(many, Compared::Redirected);
    let notes: Vec<&str> =
        [&["dport 1", "dport 3", "dport 5", "dport 7", "dport 9", "1195 more"][..]].concat();
    assert_found(&found, [&[], &["more than 300000 kinds of connections"], &notes]);
}

#[test]
fn at_most_ten_sentences_are_reported_and_the_other_rules_are_notes() {
    let ports = (1..=30).map(|port| to_port(2 * port, DROP)).collect();
    let found = compared(vec![our_own(ours()), theirs(-150, ports)], Compared::Redirected);
    assert_eq!(
        (found.not_redirected.len(), found.unknown.len(), found.notes.len()),
        (10, 0, 6),
        "{found:#?}"
    );
    assert!(found.notes.last().is_some_and(|note| note.ends_with("15 more")), "{found:#?}");
}

fn alone(live: &LiveRules) -> Comparison {
    compare(&live.ours_alone(), live, Compared::OursAlone)
}

/// Without a policy the rules are compared with what Gybe's alone would do.
#[test]
fn without_a_policy_rules_of_ours_that_redirect_nothing_are_reported() {
    let redirecting = live(vec![our_own(ours()), theirs(-150, vec![to_port(443, DROP)])]);
    assert_found(&alone(&redirecting), [&["443 is dropped"], &[], &[]]);
    let returns = vec![named("returns", rule(vec![Expr::Verdict(Code::Return)]))];
    let mut ineffective = live(vec![our_own(theirs(-150, returns))]);
    assert_found(&alone(&ineffective), [&["our rules redirect no connection"], &[], &[]]);
    ineffective.rules.opaque.push("a flow table".to_owned());
    assert_found(&alone(&ineffective), [&[], &["a flow table"], &[]]);
    assert_found(&compared(vec![], Compared::All), [&["keeps its destination"], &[], &[]]);
    let dropped =
        live(vec![our_own(theirs(-150, vec![to_port(443, DROP)])), theirs(-140, vec![redirect_tcp(9)])]);
    assert_found(&alone(&dropped), [&["our rules redirect no connection"], &[], &["priority -140"]]);
}

/// Our own rules lose the replies too: other owners' rules are not the cause.
#[test]
fn replies_that_our_own_rules_lose_are_not_reported() {
    let untracks = our_own(theirs(-310, vec![owned_by(1337, Expr::Untrack)]));
    assert_found(&alone(&live(vec![our_own(ours()), untracks.clone()])), [&[], &[], &[]]);
    let lost: [Sentences<'_>; 3] = [&["gets no answer instead of port 15001 of the proxy"], &[], &[]];
    // The desired rules lose none.
    assert_found(&compared(vec![our_own(ours()), untracks.clone()], Compared::Redirected), lost);
    let mut others = untracks;
    others.rules.iter_mut().for_each(|rule| rule.is_ours = false);
    assert_found(&alone(&live(vec![our_own(ours()), others])), lost);
}

/// Routing delivers an intercepted packet by its mark.
#[test]
fn an_intercepted_connection_with_another_mark_is_not_redirected() {
    const MARK: u32 = 1337;
    let port = Port::new(15006).unwrap();
    let verdict = Verdict::Tproxy { port, mark: MARK };
    let tproxy = Rule { id: RuleId("tproxy"), matches: vec![Match::Protocol(Transport::Tcp)], verdict };
    let desired = of_chain(ChainName::ManglePrerouting, vec![tproxy]);
    let set =
        |mark: u32| [Expr::Value { to: 0, value: mark.to_ne_bytes().to_vec() }, Expr::SetMark { from: 0 }];
    let mut intercepts = redirect_tcp(15006);
    intercepts.statements.pop();
    let then = [Expr::Tproxy { is_for: None, port: Some(0) }].into_iter().chain(set(MARK));
    intercepts.statements.extend(then.map(Statement::Expr));
    let at = |priority, rules| chain("other", ChainKind::Filter, (Hook::Prerouting, priority), rules);
    let judge = |theirs| {
        let live = live(vec![our_own(at(-150, vec![intercepts.clone()])), at(-140, vec![theirs])]);
        compare(&desired, &live, Compared::Redirected)
    };
    let other = judge(named("another mark", rule(set(7).to_vec())));
    let says = "handed to the transparent port 15006 instead of the proxy's transparent port 15006";
    assert!(other.not_redirected.first().is_some_and(|one| one.contains(says)), "{other:#?}");
    assert_found(&judge(named("the same", rule(set(MARK).to_vec()))), [&[], &[], &["the same"]]);
}

/// The values of the desired rules are tried where no rule of the namespace has them.
#[test]
fn a_connection_that_only_the_desired_rules_distinguish_is_tried() {
    let port =
        |port| Match::DestinationPort(Is::In, [PortRange::new(port, port).unwrap()].into_iter().collect());
    let judge = |verdict| {
        let matches = vec![Match::Protocol(Transport::Tcp), port(8443)];
        let only = Rule { id: RuleId("only"), matches, verdict };
        compare(&of_chain(ChainName::NatOutput, vec![only]), &live(vec![]), Compared::Redirected)
    };
    let redirects = judge(Verdict::Redirect(Port::new(15001).unwrap()));
    assert_found(&redirects, [&["to 198.51.100.1:8443 keeps its destination"], &[], &[]]);
    // A policy may redirect nothing.
    assert_found(&judge(Verdict::Return), [&[], &[], &[]]);
}
