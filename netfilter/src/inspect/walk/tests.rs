use super::*;
use crate::inspect::live::rules::constructed::{
    APP, PROXY, aged, chain, namespace, ours, owned_by, redirect_tcp, rule,
};
use crate::inspect::live::rules::expr::{Checksum, Code, Expr, LoadSource, Nat, NatKind};
use crate::inspect::live::rules::{ChainKind, LiveChain, LiveRule, Statement};
use crate::kernel::uapi::{NFT_CMP_EQ, NFT_META_SKUID};
use crate::model::policy::InterfaceName;
use crate::model::ruleset::{Family, Hook, Transport};
use crate::xt::{decode_match, decode_target};

/// Follows a connection of the application to an address outside.
fn walked(chains: Vec<LiveChain>) -> WalkResult {
    let by = InterfaceName::parse("eth0").unwrap();
    let ends = ("10.9.9.9:40000".parse().unwrap(), "198.51.100.1:80".parse().unwrap());
    let packet = Packet::first(Direction::Leaves { by }, Transport::Tcp, ends.0, ends.1).owned_by(APP);
    let listeners = Listeners { proxy: PROXY, proxy_mark: 0, application: APP };
    walk(&namespace(chains), &packet, listeners, &Budget::of(1_000_000))
}

fn to(port: u16) -> Outcome {
    Outcome::Redirected(Port::new(port).unwrap())
}

#[test]
fn the_first_chain_that_translates_decides() {
    let theirs =
        |priority, port| chain("other", ChainKind::Nat, (Hook::Output, priority), vec![redirect_tcp(port)]);
    assert_eq!(walked(vec![ours()]).outcome, to(15001));
    assert_eq!(walked(vec![ours(), theirs(-99, 9999)]).outcome, to(15001));
    assert_eq!(walked(vec![ours(), theirs(-101, 9999)]).outcome, to(9999));
}

#[test]
fn of_one_priority_the_youngest_comes_first_and_an_unknown_order_is_reported() {
    let theirs = || chain("other", ChainKind::Nat, (Hook::Output, -100), vec![redirect_tcp(9999)]);
    assert_eq!(walked(vec![ours(), aged(theirs(), 9, false)]).outcome, to(9999));
    let older = walked(vec![ours(), aged(theirs(), 2, false)]);
    // A chain of an older table may be younger than ours.
    assert_eq!((older.outcome, older.order.is_some()), (Outcome::Unknown, true));
    assert_eq!(walked(vec![ours(), theirs()]).outcome, Outcome::Unknown);
    let same = chain("other", ChainKind::Nat, (Hook::Output, -100), vec![redirect_tcp(15001)]);
    assert_eq!(walked(vec![ours(), same]).outcome, to(15001), "whichever comes first");
}

#[test]
fn of_three_chains_of_one_priority_every_order_is_tried() {
    let same = || chain("other", ChainKind::Nat, (Hook::Output, -100), vec![redirect_tcp(15001)]);
    let theirs = chain("other", ChainKind::Nat, (Hook::Output, -100), vec![redirect_tcp(9999)]);
    let different = walked(vec![same(), same(), theirs]);
    assert_eq!((different.outcome, different.order.is_some()), (Outcome::Unknown, true));
    assert_eq!(walked(vec![same(), same(), same()]).outcome, to(15001));
}

#[test]
fn a_connection_that_is_not_followed_in_time_is_unknown() {
    let packet = Packet::first(
        Direction::Leaves { by: InterfaceName::parse("eth0").unwrap() },
        Transport::Tcp,
        "10.9.9.9:40000".parse().unwrap(),
        "198.51.100.1:80".parse().unwrap(),
    );
    let listeners = Listeners { proxy: PROXY, proxy_mark: 0, application: APP };
    let walked = walk(&namespace(vec![ours()]), &packet.owned_by(APP), listeners, &Budget::of(0));
    assert_eq!(walked.outcome, Outcome::Unknown);
}

#[test]
fn an_untracked_packet_is_not_translated_and_after_tracking_it_is_too_late() {
    let untrack = |priority| {
        chain("other", ChainKind::Filter, (Hook::Output, priority), vec![rule(vec![Expr::Untrack])])
    };
    assert_eq!(walked(vec![ours(), untrack(-300)]).outcome, Outcome::Untouched);
    assert_eq!(walked(vec![ours(), untrack(-150)]).outcome, to(15001));
}

/// Without tracking the replies of the proxy are not translated back.
#[test]
fn the_proxys_untracked_answers_are_lost() {
    let rules = vec![owned_by(1337, Expr::Untrack)];
    let walked = walked(vec![ours(), chain("other", ChainKind::Filter, (Hook::Output, -300), rules)]);
    assert_eq!((walked.outcome, walked.decided_by.map(|at| at.chain)), (Outcome::RepliesLost, Some(1)));
}

#[test]
fn a_rule_that_is_not_evaluated_counts_only_where_the_outcome_depends_on_it() {
    let filter =
        |priority, rules| vec![ours(), chain("other", ChainKind::Filter, (Hook::Output, priority), rules)];
    let limited = |then| vec![rule(vec![Expr::Test("limit".to_owned()), then])];
    assert_eq!(walked(filter(0, limited(Expr::Nothing("log".to_owned())))).outcome, to(15001));
    let drops = walked(filter(0, limited(Expr::Verdict(Code::Drop))));
    assert_eq!((drops.outcome, drops.decided_by.map(|at| at.chain)), (Outcome::Unknown, Some(1)));
    let unknown = || Expr::Unknown("synproxy".to_owned());
    assert_eq!(walked(filter(0, vec![rule(vec![unknown()])])).outcome, Outcome::Unknown);
    // The rule ends before the expression.
    assert_eq!(walked(filter(0, vec![owned_by(7, unknown())])).outcome, to(15001));
    let behind_a_verdict = vec![rule(vec![Expr::Verdict(Code::Accept)]), rule(vec![unknown()])];
    assert_eq!(walked(filter(0, behind_a_verdict)).outcome, to(15001));
    let accepted = |count| (0..count).map(|_| limited(Expr::Verdict(Code::Accept)).remove(0)).collect();
    assert_eq!(walked(filter(0, accepted(2))).outcome, to(15001));
    assert_eq!(walked(filter(0, accepted(20))).outcome, Outcome::Unknown, "more ways than are tried");
}

#[test]
fn chains_that_lead_back_end() {
    let mut looped = chain("other", ChainKind::Filter, (Hook::Output, 0), vec![]);
    looped.rules = vec![rule(vec![Expr::Verdict(Code::Goto("base".to_owned()))])];
    assert_eq!(walked(vec![looped]).outcome, Outcome::Unknown);
    let nowhere = vec![rule(vec![Expr::Verdict(Code::Jump("nowhere".to_owned()))])];
    let nowhere = chain("other", ChainKind::Filter, (Hook::Output, 0), nowhere);
    assert_eq!(walked(vec![nowhere]).outcome, Outcome::Unknown);
}

fn at_output(priority: i32, rules: Vec<LiveRule>) -> Vec<LiveChain> {
    vec![ours(), chain("other", ChainKind::Filter, (Hook::Output, priority), rules)]
}

fn of(register: Vec<u8>, then: Expr) -> LiveRule {
    rule(vec![Expr::Value { to: 0, value: register }, then])
}

/// `-j CT` in its last revision.
fn tracking(flags: u16, zone: u16, helper: &str) -> Expr {
    let mut bytes = vec![0; 72];
    bytes[..2].copy_from_slice(&flags.to_ne_bytes());
    bytes[2..4].copy_from_slice(&zone.to_ne_bytes());
    bytes[12..12 + helper.len()].copy_from_slice(helper.as_bytes());
    Expr::Target(decode_target(Family::V4, "CT", 2, &bytes))
}

#[test]
fn replies_belong_to_a_connection_only_in_its_zone_for_replies() {
    const BY_MARK: u16 = 1 << 4;
    let zone = |direction| Expr::SetZone { from: 0, direction };
    let (mark, five) = (Expr::SetMark { from: 0 }, || 5_u16.to_ne_bytes().to_vec());
    let of_app = |then: Vec<Expr>| {
        let Statement::Expr(load) = owned_by(1000, Expr::Untrack).statements.remove(0) else { panic!() };
        let compare = Expr::Compare { op: NFT_CMP_EQ, at: 0, value: 1000_u32.to_ne_bytes().to_vec() };
        rule([vec![load, compare], then].concat())
    };
    let set = |value: Vec<u8>, then: &Expr| vec![Expr::Value { to: 0, value }, then.clone()];
    for (rules, outcome) in [
        (vec![of_app(set(five(), &zone(None)))], Outcome::RepliesLost),
        (vec![of_app(set(five(), &zone(Some(0))))], to(15001)),
        (vec![of_app(set(five(), &zone(Some(1))))], Outcome::RepliesLost),
        (vec![rule(set(five(), &zone(None)))], to(15001)),
        (vec![rule(set(five(), &zone(Some(1))))], to(15001)),
        (vec![of_app(vec![tracking(0, 5, "")])], Outcome::RepliesLost),
        (vec![of_app(vec![tracking(1 << 2, 5, "")])], to(15001)),
        (vec![of_app(vec![tracking(1 << 3, 5, "")])], Outcome::RepliesLost),
        // It applies to some packets of a connection only.
        (vec![rule(vec![Expr::Test("cpu".to_owned()), tracking(1 << 2, 5, "")])], Outcome::Unknown),
        (vec![rule(vec![tracking(BY_MARK, 0, "")])], to(15001)),
        (
            vec![of_app(set(vec![5, 0, 0, 0], &mark)), rule(vec![tracking(BY_MARK, 0, "")])],
            Outcome::RepliesLost,
        ),
        (vec![of_app(vec![tracking(0, 0, "ftp")])], Outcome::Unknown),
        // A packet with a template is new before it is tracked.
        (vec![of_app(vec![tracking(0, 0, "")]), state(1 << 3)], Outcome::Dropped),
        (vec![of_app(vec![tracking(0, 0, "")]), state(1)], to(15001)),
    ] {
        let found = walked(at_output(-300, rules.clone()));
        assert_eq!(found.outcome, outcome, "{rules:?}");
    }
}

/// Drops packets of that state before the first rule of others.
fn state(bit: u32) -> LiveRule {
    rule(vec![
        Expr::Load { source: LoadSource::Meta(NFT_META_SKUID), to: 0 },
        Expr::Compare { op: NFT_CMP_EQ, at: 0, value: 1000_u32.to_ne_bytes().to_vec() },
        Expr::Load { source: LoadSource::Ct(0, None), to: 0 },
        Expr::Compare { op: NFT_CMP_EQ, at: 0, value: bit.to_ne_bytes().to_vec() },
        Expr::Verdict(Code::Drop),
    ])
}

#[test]
fn a_header_may_change_where_it_routes_no_packet() {
    const NETWORK: u32 = 1;
    const TRANSPORT: u32 = 2;
    let written = |base, offset, length, updates| Expr::Write { from: 0, base, offset, length, updates };
    let write =
        |base, offset, value: &[u8]| of(value.to_vec(), written(base, offset, value.len(), Checksum::Ipv4));
    for (changed, outcome) in [
        (write(NETWORK, 0, &[0x45, 8]), to(15001)),
        (write(NETWORK, 0, &[0x46, 8]), Outcome::Unknown),
        (write(NETWORK, 2, &[0, 60]), Outcome::Unknown),
        (write(NETWORK, 4, &[1, 2]), to(15001)),
        (write(NETWORK, 6, &[0x40, 0]), to(15001)),
        (write(NETWORK, 6, &[0x20, 0]), Outcome::Unknown),
        (write(NETWORK, 8, &[65, 6]), to(15001)),
        (write(NETWORK, 8, &[65, 17]), Outcome::Unknown),
        (write(NETWORK, 12, &[10, 9, 9, 9]), to(15001)),
        (write(NETWORK, 12, &[10, 9, 9, 8]), Outcome::Unknown),
        (write(NETWORK, 16, &[198, 51, 100, 1]), to(15001)),
        (write(NETWORK, 16, &[198, 51, 100, 2]), Outcome::Unknown),
        (write(NETWORK, 20, &[0]), Outcome::Unknown),
        (write(TRANSPORT, 2, &[0, 81]), Outcome::Unknown),
        (write(TRANSPORT, 4, &[0; 4]), Outcome::Unknown),
        (write(0, 0, &[0]), Outcome::Unknown),
        // What was not loaded is not known.
        (rule(vec![written(NETWORK, 16, 4, Checksum::Ipv4)]), Outcome::Unknown),
        // Without the checksum the receiver drops the packet; another one is a second write.
        (of(vec![1, 2], written(NETWORK, 4, 2, Checksum::None)), Outcome::Unknown),
        (of(vec![1, 2], written(NETWORK, 4, 2, Checksum::Other)), Outcome::Unknown),
    ] {
        let rules = vec![owned_by(1337, Expr::Verdict(Code::Accept)), changed.clone()];
        assert_eq!(walked(at_output(-150, rules)).outcome, outcome, "{changed:?}");
    }
}

#[test]
fn a_load_that_may_end_a_rule_and_a_match_that_may_do_more_than_match_are_not_trusted() {
    let other = || Expr::Load { source: LoadSource::Other("socket".to_owned(), 4), to: 0 };
    let equals = |value| Expr::Compare { op: NFT_CMP_EQ, at: 0, value };
    let drop = || Expr::Verdict(Code::Drop);
    let matched = |test| rule(vec![Expr::Match(test), Expr::Nothing("log".to_owned())]);
    let socket = |flags| decode_match(Family::V4, "socket", 3, &[flags]);
    for (tested, outcome) in [
        (rule(vec![other(), drop()]), Outcome::Unknown),
        (rule(vec![other(), equals(vec![1; 4]), drop()]), Outcome::Unknown),
        (rule(vec![other(), Expr::Nothing("counter".to_owned())]), to(15001)),
        // The second load may have ended the rule, too; the comparison of the first is known.
        (
            rule(vec![
                Expr::Value { to: 4, value: vec![1] },
                other(),
                Expr::Compare { op: NFT_CMP_EQ, at: 4, value: vec![2] },
                drop(),
            ]),
            to(15001),
        ),
        (
            rule(vec![
                Expr::Value { to: 4, value: vec![1] },
                other(),
                Expr::Compare { op: NFT_CMP_EQ, at: 4, value: vec![1] },
                drop(),
            ]),
            Outcome::Unknown,
        ),
        // Beyond the modelled header.
        (
            rule(vec![
                Expr::Load { source: LoadSource::Payload { base: 2, offset: 40, length: 4 }, to: 0 },
                drop(),
            ]),
            Outcome::Unknown,
        ),
        (
            rule(vec![
                Expr::Load { source: LoadSource::Payload { base: 2, offset: 2, length: 2 }, to: 0 },
                drop(),
            ]),
            Outcome::Dropped,
        ),
        (rule(vec![Expr::Load { source: LoadSource::Meta(23), to: 0 }, drop()]), Outcome::Unknown),
        (rule(vec![Expr::Update("seen".to_owned()), drop()]), Outcome::Unknown),
        (rule(vec![Expr::OtherConnections("ct helper ftp".to_owned())]), Outcome::Unknown),
        (matched(decode_match(Family::V4, "cgroup", 1, &[])), to(15001)),
        (matched(decode_match(Family::V4, "teleport", 0, &[])), Outcome::Unknown),
        (matched(socket(0)), to(15001)),
        (matched(socket(4)), Outcome::Unknown),
        (rule(vec![Expr::Target(decode_target(Family::V4, "TCPMSS", 0, &[0; 2]))]), to(15001)),
        (rule(vec![Expr::Target(decode_target(Family::V4, "SET", 3, &[0; 40]))]), Outcome::Unknown),
        (rule(vec![Expr::Target(decode_target(Family::V4, "SET", 3, &[0xff; 40]))]), to(15001)),
        (rule(vec![Expr::Target(decode_target(Family::V4, "TCPMSS", 1, &[0; 2]))]), Outcome::Unknown),
        (rule(vec![Expr::Target(decode_target(Family::V6, "HL", 0, &[0; 4]))]), Outcome::Unknown),
        (matched(decode_match(Family::V4, "hashlimit", 3, &[])), Outcome::Unknown),
    ] {
        assert_eq!(walked(at_output(-150, vec![tested.clone()])).outcome, outcome, "{tested:?}");
    }
}

#[test]
fn a_translation_for_the_other_ip_version_does_nothing_and_the_rule_goes_on() {
    for (is_for, outcome) in [
        (None, Outcome::Redirected(Port::new(80).unwrap())),
        (Some(Family::V4), Outcome::Redirected(Port::new(80).unwrap())),
        (Some(Family::V6), Outcome::Dropped),
    ] {
        let kind = NatKind::Destination;
        let nat = Nat { kind, is_for, address: Some(0), last_address: None, port: None, last_port: None };
        let value = Expr::Value { to: 0, value: vec![127, 0, 0, 1] };
        let rules = vec![rule(vec![value, Expr::Nat(nat), Expr::Verdict(Code::Drop)])];
        let theirs = chain("other", ChainKind::Nat, (Hook::Output, -150), rules);
        assert_eq!(walked(vec![theirs]).outcome, outcome, "{is_for:?}");
    }
}

/// Early demultiplexing gives packets of a known connection their socket before the input hook.
#[test]
fn at_input_the_owner_of_the_receiving_socket_is_not_known() {
    let drops = || vec![owned_by(1337, Expr::Verdict(Code::Drop))];
    let at = |hook| walked(vec![ours(), chain("other", ChainKind::Filter, (hook, -150), drops())]);
    assert_eq!(at(Hook::Input).outcome, Outcome::Unknown);
    assert_eq!(at(Hook::Prerouting).outcome, to(15001));
}

/// The mark of an intercepted connection leads to our own route, which delivers to this namespace.
#[test]
fn a_reply_that_a_chain_of_type_route_gives_the_mark_of_interception_does_not_leave() {
    const MARK: u32 = 1337;
    let set = |mark: u32| {
        vec![Expr::Value { to: 0, value: mark.to_ne_bytes().to_vec() }, Expr::SetMark { from: 0 }]
    };
    let mut intercepts = redirect_tcp(15006);
    intercepts.statements.pop();
    let then = [Expr::Tproxy { is_for: None, port: Some(0) }].into_iter().chain(set(MARK));
    intercepts.statements.extend(then.map(Statement::Expr));
    let arriving = |kind, mark| {
        let output = owned_by(1337, Expr::Nothing("counter".to_owned()));
        let marked =
            LiveRule { statements: [output.statements, rule(set(mark)).statements].concat(), ..rule(vec![]) };
        let tproxy = chain("gybe", ChainKind::Filter, (Hook::Prerouting, -150), vec![intercepts.clone()]);
        let theirs = chain("other", kind, (Hook::Output, -150), vec![marked]);
        let by = InterfaceName::parse("eth0").unwrap();
        let ends = ("198.51.100.1:40000".parse().unwrap(), "10.9.9.9:8080".parse().unwrap());
        let packet = Packet::first(Direction::Arrives { by }, Transport::Tcp, ends.0, ends.1);
        let listeners = Listeners { proxy: PROXY, proxy_mark: 0, application: APP };
        walk(&namespace(vec![tproxy, theirs]), &packet, listeners, &Budget::of(1_000_000)).outcome
    };
    let intercepted = Outcome::Intercepted(Port::new(15006).unwrap());
    assert_eq!(arriving(ChainKind::Route, MARK), Outcome::RepliesLost);
    assert_eq!(arriving(ChainKind::Route, 7), intercepted);
    assert_eq!(arriving(ChainKind::Filter, MARK), intercepted, "routed before");
}

#[test]
fn the_first_thousand_rules_that_apply_are_recorded() {
    for (rules, recorded) in [(1_000, 1_000), (1_001, 1_000)] {
        let untrack = || rule(vec![Expr::Untrack]);
        let all = (0..rules).map(|_| untrack()).collect();
        let found = walked(vec![chain("other", ChainKind::Filter, (Hook::Output, -300), all)]);
        assert_eq!((found.outcome, found.steps.len()), (Outcome::Untouched, recorded), "{rules}");
    }
}
