use super::*;
use crate::live::rules::expr::{Code, Expr, Nat, NatKind, Source};
use crate::live::rules::{
    Age, BaseChain, ChainKind, Engine, Interface, LiveChain, LiveRule, Statement, TableFamily, TableName,
};
use crate::nft::uapi::{NFT_CMP_EQ, NFT_META_L4PROTO, NFT_META_SKUID};
use crate::policy::InterfaceName;
use crate::trace::Transport;
use crate::xt::legacy::InetHook;
use std::time::Duration;

const PROXY: Owner = Owner { uid: 1337, gid: 1337 };
const APP: Owner = Owner { uid: 1000, gid: 1000 };

fn rule(exprs: Vec<Expr>) -> LiveRule {
    let statements = exprs.into_iter().map(Statement::Expr).collect();
    LiveRule { text: String::new(), comment: None, is_ours: false, statements }
}

fn owned_by(uid: u32, then: Expr) -> LiveRule {
    rule(vec![
        Expr::Load { source: Source::Meta(NFT_META_SKUID), to: 0 },
        Expr::Compare { op: NFT_CMP_EQ, at: 0, value: uid.to_ne_bytes().to_vec() },
        then,
    ])
}

fn redirect_tcp(port: u16) -> LiveRule {
    rule(vec![
        Expr::Load { source: Source::Meta(NFT_META_L4PROTO), to: 0 },
        Expr::Compare { op: NFT_CMP_EQ, at: 0, value: vec![6] },
        Expr::Value { to: 0, value: port.to_be_bytes().to_vec() },
        Expr::Nat(Nat {
            kind: NatKind::Redirect,
            address: None,
            last_address: None,
            port: Some(0),
            last_port: Some(0),
        }),
    ])
}

fn chain(table: &str, kind: ChainKind, at: (InetHook, i32), rules: Vec<LiveRule>) -> LiveChain {
    let table = TableName { engine: Engine::NfTables, family: TableFamily::Inet, name: table.to_owned() };
    let base = BaseChain { kind, hook: at.0, priority: at.1, drops: false };
    LiveChain { table, name: "base".to_owned(), base: Some(base), rules, age: None }
}

fn aged(mut chain: LiveChain, table: u64, is_of_one_transaction: bool) -> LiveChain {
    chain.age = Some(Age { table, chain: 1, is_of_one_transaction });
    chain
}

fn namespace(chains: Vec<LiveChain>) -> NamespaceRules {
    let interface = |index, name: &str, address: &str| Interface {
        index,
        name: name.to_owned(),
        is_raised: true,
        addresses: vec![address.parse().unwrap()],
    };
    let interfaces = vec![interface(1, "lo", "127.0.0.1"), interface(2, "eth0", "10.9.9.9")];
    NamespaceRules { chains, interfaces, ..NamespaceRules::default() }
}

/// Follows a connection of the application to an address outside.
fn walked(chains: Vec<LiveChain>) -> WalkResult {
    let by = InterfaceName::parse("eth0").unwrap();
    let ends = ("10.9.9.9:40000".parse().unwrap(), "198.51.100.1:80".parse().unwrap());
    let packet = Packet::first(Direction::Leaves { by }, Transport::Tcp, ends.0, ends.1).owned_by(APP);
    let listeners = Listeners { proxy: PROXY, application: APP };
    walk(&namespace(chains), &packet, listeners, Budget::of(Duration::from_secs(60)))
}

/// Redirects every connection but the proxy's to 15001.
fn ours() -> LiveChain {
    let rules = vec![owned_by(1337, Expr::Verdict(Code::Return)), redirect_tcp(15001)];
    aged(chain("gybe", ChainKind::Nat, (InetHook::Output, -100), rules), 5, true)
}

fn to(port: u16) -> Outcome {
    Outcome::Redirected(Port::new(port).unwrap())
}

#[test]
fn the_first_chain_that_translates_decides() {
    let theirs = |priority, port| {
        chain("other", ChainKind::Nat, (InetHook::Output, priority), vec![redirect_tcp(port)])
    };
    assert_eq!(walked(vec![ours()]).outcome, to(15001));
    assert_eq!(walked(vec![ours(), theirs(-99, 9999)]).outcome, to(15001));
    assert_eq!(walked(vec![ours(), theirs(-101, 9999)]).outcome, to(9999));
}

#[test]
fn of_one_priority_the_youngest_comes_first_and_an_unknown_order_is_reported() {
    let theirs = || chain("other", ChainKind::Nat, (InetHook::Output, -100), vec![redirect_tcp(9999)]);
    assert_eq!(walked(vec![ours(), aged(theirs(), 9, false)]).outcome, to(9999));
    let older = walked(vec![ours(), aged(theirs(), 2, false)]);
    // A chain of an older table may be younger than ours.
    assert_eq!((older.outcome, older.order.is_some()), (Outcome::Unknown, true));
    assert_eq!(walked(vec![ours(), theirs()]).outcome, Outcome::Unknown);
    let same = chain("other", ChainKind::Nat, (InetHook::Output, -100), vec![redirect_tcp(15001)]);
    assert_eq!(walked(vec![ours(), same]).outcome, to(15001), "whichever comes first");
}

#[test]
fn of_three_chains_of_one_priority_every_order_is_tried() {
    let same = || chain("other", ChainKind::Nat, (InetHook::Output, -100), vec![redirect_tcp(15001)]);
    let theirs = chain("other", ChainKind::Nat, (InetHook::Output, -100), vec![redirect_tcp(9999)]);
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
    let listeners = Listeners { proxy: PROXY, application: APP };
    let walked = walk(&namespace(vec![ours()]), &packet.owned_by(APP), listeners, Budget::of(Duration::ZERO));
    assert_eq!(walked.outcome, Outcome::Unknown);
}

#[test]
fn an_untracked_packet_is_not_translated_and_after_tracking_it_is_too_late() {
    let untrack = |priority| {
        chain("other", ChainKind::Filter, (InetHook::Output, priority), vec![rule(vec![Expr::Untrack])])
    };
    assert_eq!(walked(vec![ours(), untrack(-300)]).outcome, Outcome::Untouched);
    assert_eq!(walked(vec![ours(), untrack(-150)]).outcome, to(15001));
}

/// Without tracking the replies of the proxy are not translated back.
#[test]
fn the_proxys_untracked_answers_are_lost() {
    let rules = vec![owned_by(1337, Expr::Untrack)];
    let walked = walked(vec![ours(), chain("other", ChainKind::Filter, (InetHook::Output, -300), rules)]);
    assert_eq!((walked.outcome, walked.decided_by.map(|at| at.chain)), (Outcome::RepliesLost, Some(1)));
}

#[test]
fn a_rule_that_is_not_evaluated_counts_only_where_the_outcome_depends_on_it() {
    let filter = |priority, rules| {
        vec![ours(), chain("other", ChainKind::Filter, (InetHook::Output, priority), rules)]
    };
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
    let mut looped = chain("other", ChainKind::Filter, (InetHook::Output, 0), vec![]);
    looped.rules = vec![rule(vec![Expr::Verdict(Code::Goto("base".to_owned()))])];
    assert_eq!(walked(vec![looped]).outcome, Outcome::Unknown);
    let nowhere = vec![rule(vec![Expr::Verdict(Code::Jump("nowhere".to_owned()))])];
    let nowhere = chain("other", ChainKind::Filter, (InetHook::Output, 0), nowhere);
    assert_eq!(walked(vec![nowhere]).outcome, Outcome::Unknown);
}
