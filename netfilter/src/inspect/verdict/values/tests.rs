use super::*;
use crate::inspect::live::rules::expr::{Code, LoadSource, VERDICT};
use crate::inspect::live::rules::expr::{Data, Expr};
use crate::inspect::live::rules::{Element, TableName};
use crate::inspect::live::rules::{LiveChain, LiveRule, NamespaceRules, Set, Statement};
use crate::kernel::uapi::{NFT_CMP_EQ, NFT_META_MARK, NFT_PAYLOAD_TRANSPORT_HEADER};
use crate::model::ruleset::{Engine, TableFamily};

const TRANSPORT: u32 = NFT_PAYLOAD_TRANSPORT_HEADER;
const LESS: u32 = 2;

fn payload(base: u32, offset: u32, length: usize) -> Expr {
    Expr::Load { source: LoadSource::Payload { base, offset, length }, to: 0 }
}

fn compare(op: u32, value: &[u8]) -> Expr {
    Expr::Compare { op, at: 0, value: value.to_vec() }
}

fn budget() -> Budget {
    Budget::of(usize::MAX)
}

fn table() -> TableName {
    TableName { engine: Engine::NfTables, family: TableFamily::Inet, name: "other".to_owned() }
}

fn values(exprs: Vec<Expr>, sets: Vec<Set>) -> Values {
    let mut statements: Vec<Statement> = exprs.into_iter().map(Statement::Expr).collect();
    statements.push(Statement::Expr(Expr::Verdict(Code::Drop)));
    let rule = LiveRule { text: "a rule".to_owned(), comment: None, is_ours: false, statements };
    let chain =
        LiveChain { table: table(), name: "theirs".to_owned(), base: None, rules: vec![rule], age: None };
    let mut values = Values::default();
    values.add(&NamespaceRules { chains: vec![chain], sets, ..NamespaceRules::default() }, &budget());
    values
}

fn of(values: &Values, property: Property) -> Vec<u128> {
    let mut all = values.of(property, &[], |_| 0, &budget()).unwrap();
    all.sort_unstable();
    all
}

#[test]
fn a_value_below_at_and_above_a_bound_is_tried() {
    let values = values(vec![payload(TRANSPORT, 2, 2), compare(LESS, &1024_u16.to_be_bytes())], vec![]);
    let ports = of(&values, Property::DestinationPort);
    assert_eq!(ports.len(), 3, "{ports:?}");
    assert!(ports.first().is_some_and(|port| (1..1024).contains(port)), "{ports:?}");
    assert!(ports.contains(&1024) && ports.iter().any(|port| *port > 1024), "{ports:?}");
}

/// Replies have the ports of the first packet exchanged.
#[test]
fn another_owners_test_of_a_port_may_match_replies() {
    let to_clients =
        values(vec![payload(TRANSPORT, 2, 2), compare(NFT_CMP_EQ, &50_000_u16.to_be_bytes())], vec![]);
    assert!(of(&to_clients, Property::SourcePort).contains(&50_000));
    let to_servers =
        values(vec![payload(TRANSPORT, 2, 2), compare(NFT_CMP_EQ, &22_u16.to_be_bytes())], vec![]);
    assert!(!of(&to_servers, Property::SourcePort).contains(&22), "no client calls from port 22");
    let from_servers =
        values(vec![payload(TRANSPORT, 0, 2), compare(NFT_CMP_EQ, &22_u16.to_be_bytes())], vec![]);
    assert!(of(&from_servers, Property::DestinationPort).contains(&22));
}

fn verdict_map(elements: &[(u16, Code)]) -> Set {
    let element = |(port, code): &(u16, Code)| Element {
        first: port.to_be_bytes().to_vec(),
        last: port.to_be_bytes().to_vec(),
        data: Data::Verdict(code.clone()),
    };
    Set {
        table: table(),
        name: "map".to_owned(),
        key_length: 2,
        is_interval: false,
        parts: Vec::new(),
        objects: 0,
        is_dynamic: false,
        elements: elements.iter().map(element).collect(),
        catch_all: None,
    }
}

#[test]
fn keys_of_a_map_with_other_data_are_told_apart() {
    let map = verdict_map(&[(80, Code::Accept), (443, Code::Drop), (8080, Code::Drop)]);
    let lookup = Expr::Lookup { set: "map".to_owned(), at: 0, to: Some(VERDICT), inverted: false };
    let ports = of(&values(vec![payload(TRANSPORT, 2, 2), lookup], vec![map]), Property::DestinationPort);
    assert_eq!(ports.len(), 3, "{ports:?}");
    assert!(ports.contains(&80) && (ports.contains(&443) || ports.contains(&8080)), "{ports:?}");
}

/// `nft add rule ... tcp sport 1000 tcp dport 443` is one load of four bytes.
#[test]
fn ports_that_are_compared_at_once_are_both_tried() {
    let values = values(vec![payload(TRANSPORT, 0, 4), compare(NFT_CMP_EQ, &[3, 232, 1, 187])], vec![]);
    assert!(of(&values, Property::SourcePort).contains(&1000));
    assert!(of(&values, Property::DestinationPort).contains(&443));
    assert!(values.not_evaluated.is_empty());
}

#[test]
fn addresses_that_are_compared_at_once_are_both_tried() {
    let both = [10, 0, 0, 1, 10, 0, 0, 2];
    let values = values(vec![payload(1, 12, 8), compare(NFT_CMP_EQ, &both)], vec![]);
    assert!(of(&values, Property::SourceV4).contains(&0x0a00_0001));
    assert!(of(&values, Property::DestinationV4).contains(&0x0a00_0002));
}

/// `ct reply ip saddr` is the destination of the first packet.
#[test]
fn an_address_of_the_connection_is_tried_at_both_ends() {
    let load = Expr::Load { source: LoadSource::Ct(19, Some(1)), to: 0 };
    let values = values(vec![load, compare(NFT_CMP_EQ, &[10, 0, 0, 1])], vec![]);
    assert!(of(&values, Property::SourceV4).contains(&0x0a00_0001));
    assert!(of(&values, Property::DestinationV4).contains(&0x0a00_0001));
}

#[test]
fn every_combination_of_single_bits_is_tried() {
    let mut exprs = vec![];
    for bit in [1_u32, 2, 8, 16] {
        exprs.push(Expr::Load { source: LoadSource::Meta(NFT_META_MARK), to: 0 });
        exprs.push(Expr::Bitwise { from: 0, to: 0, mask: bit.to_ne_bytes().to_vec(), xor: vec![0; 4] });
        exprs.push(compare(NFT_CMP_EQ, &bit.to_ne_bytes()));
    }
    assert_eq!(of(&values(exprs, vec![]), Property::Mark).len(), 16);
}

#[test]
fn a_comparison_that_cannot_be_evaluated_is_named() {
    let exprs = vec![
        Expr::Load { source: LoadSource::Meta(NFT_META_MARK), to: 0 },
        Expr::Bitwise { from: 0, to: 0, mask: vec![0xff; 4], xor: vec![1; 4] },
        compare(NFT_CMP_EQ, &[0; 4]),
    ];
    assert_eq!(values(exprs, vec![]).not_evaluated, ["comparison not evaluated: inet other theirs: a rule"]);
    // What the sender chooses is tried both ways by the walk.
    let flags = vec![payload(TRANSPORT, 13, 1), compare(NFT_CMP_EQ, &[2])];
    assert!(values(flags, vec![]).not_evaluated.is_empty());
}

#[test]
fn a_great_set_is_one_test_and_too_many_tests_are_given_up() {
    let mut values = Values::default();
    let odd = |many: u128| (0..many).map(|n| (2 * n + 1, 2 * n + 1)).collect::<Vec<_>>();
    values.test(Property::DestinationV4, u32::MAX.into(), odd(100_000));
    assert_eq!(of(&values, Property::DestinationV4).len(), 2);
    odd(20_000).into_iter().for_each(|one| values.test(Property::SourceV4, u32::MAX.into(), vec![one]));
    assert_eq!(values.of(Property::SourceV4, &[], |_| 0, &budget()), None);
}

#[test]
fn more_tests_and_ranges_than_are_stored_are_too_many_to_compute() {
    let mut values = Values::default();
    let ranges = |count: u128| (0..count).map(|at| (2 * at, 2 * at)).collect();
    values.ranges(Property::DestinationV6, ranges(MAX_STORED as u128 - 3));
    values.ranges(Property::Uid, ranges(1));
    let uids = |values: &Values| values.of(Property::Uid, &[], |_| 0, &budget()).map(|uids| uids.len());
    assert_eq!(uids(&values), Some(2));
    values.ranges(Property::Uid, ranges(1));
    assert_eq!(uids(&values), Some(2), "the same test again");
    values.ranges(Property::Gid, ranges(1));
    assert_eq!((uids(&values), values.tests.len()), (None, 2));
}

/// Each of the tests has one range: candidates times tests is what is counted.
#[test]
fn candidates_are_counted_before_they_are_made() {
    let mut values = Values::default();
    (1..=1_414).for_each(|uid| values.ranges(Property::Uid, vec![(3 * uid, 3 * uid)]));
    let spent = |values: &Values, steps| values.of(Property::Uid, &[], |_| 0, &Budget::of(steps)).is_some();
    let tested = 5 * 1_414 * 1_414 / TESTED_PER_STEP;
    assert!(spent(&values, tested + 1) && !spent(&values, tested));
    values.ranges(Property::Uid, vec![(0, 0)]);
    assert!(!spent(&values, usize::MAX), "more than {MAX_TESTED}");
}
