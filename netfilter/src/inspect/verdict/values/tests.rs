use super::*;
use crate::inspect::live::rules::expr::{Code, Data, Expr, LoadSource, VERDICT};
use crate::inspect::live::rules::{Element, LiveChain, LiveRule, NamespaceRules, Set, Statement, TableName};
use crate::kernel::uapi::{
    NFT_CMP_EQ, NFT_META_MARK, NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER,
};
use crate::model::ruleset::{Engine, TableFamily};

const NETWORK: u32 = NFT_PAYLOAD_NETWORK_HEADER;
const TRANSPORT: u32 = NFT_PAYLOAD_TRANSPORT_HEADER;
const NFT_CMP_LT: u32 = 2;
const NFT_CT_SRC_IP: u32 = 19;
const IP_CT_DIR_REPLY: u8 = 1;

fn payload(base: u32, offset: u32, length: usize) -> Expr {
    Expr::Load { source: LoadSource::Payload { base, offset, length }, to: 0 }
}

fn compare(op: u32, value: &[u8]) -> Expr {
    Expr::Compare { op, at: 0, value: value.to_vec() }
}

fn unlimited() -> Budget {
    Budget::of(usize::MAX)
}

fn table() -> TableName {
    TableName { engine: Engine::NfTables, family: TableFamily::Inet, name: "other".to_owned() }
}

fn values_of_rule(exprs: Vec<Expr>, sets: Vec<Set>) -> Values {
    let mut statements: Vec<Statement> = exprs.into_iter().map(Statement::Expr).collect();
    statements.push(Statement::Expr(Expr::Verdict(Code::Drop)));
    let rule = LiveRule { text: "a rule".to_owned(), comment: None, is_ours: false, statements };
    let chain =
        LiveChain { table: table(), name: "theirs".to_owned(), base: None, rules: vec![rule], age: None };
    let mut values = Values::default();
    values.add(&NamespaceRules { chains: vec![chain], sets, ..NamespaceRules::default() }, &unlimited());
    values
}

fn candidates(values: &Values, property: Property) -> Vec<u128> {
    let mut all = values.of(property, &[], |_| 0, &unlimited()).unwrap();
    all.sort_unstable();
    all
}

#[test]
fn a_value_below_at_and_above_a_bound_is_a_candidate() {
    let values =
        values_of_rule(vec![payload(TRANSPORT, 2, 2), compare(NFT_CMP_LT, &1024_u16.to_be_bytes())], vec![]);
    let ports = candidates(&values, Property::DestinationPort);
    assert_eq!(ports.len(), 3, "{ports:?}");
    assert!(ports.first().is_some_and(|port| (1..1024).contains(port)), "{ports:?}");
    assert!(ports.contains(&1024) && ports.iter().any(|port| *port > 1024), "{ports:?}");
}

/// Replies have the ports of the first packet exchanged.
#[test]
fn another_owners_test_of_a_port_may_match_replies() {
    let to_clients = values_of_rule(
        vec![payload(TRANSPORT, 2, 2), compare(NFT_CMP_EQ, &50_000_u16.to_be_bytes())],
        vec![],
    );
    assert!(candidates(&to_clients, Property::SourcePort).contains(&50_000));
    let to_servers =
        values_of_rule(vec![payload(TRANSPORT, 2, 2), compare(NFT_CMP_EQ, &22_u16.to_be_bytes())], vec![]);
    assert!(!candidates(&to_servers, Property::SourcePort).contains(&22), "no client calls from port 22");
    let from_servers =
        values_of_rule(vec![payload(TRANSPORT, 0, 2), compare(NFT_CMP_EQ, &22_u16.to_be_bytes())], vec![]);
    assert!(candidates(&from_servers, Property::DestinationPort).contains(&22));
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
fn keys_of_a_map_with_different_verdicts_are_different_candidates() {
    let map = verdict_map(&[(80, Code::Accept), (443, Code::Drop), (8080, Code::Drop)]);
    let lookup = Expr::Lookup { set: "map".to_owned(), at: 0, to: Some(VERDICT), inverted: false };
    let ports = candidates(
        &values_of_rule(vec![payload(TRANSPORT, 2, 2), lookup], vec![map]),
        Property::DestinationPort,
    );
    assert_eq!(ports.len(), 3, "{ports:?}");
    assert!(ports.contains(&80) && (ports.contains(&443) || ports.contains(&8080)), "{ports:?}");
}

/// `nft add rule ... tcp sport 1000 tcp dport 443` is one load of four bytes.
#[test]
fn ports_that_one_load_compares_are_both_candidates() {
    let values =
        values_of_rule(vec![payload(TRANSPORT, 0, 4), compare(NFT_CMP_EQ, &[3, 232, 1, 187])], vec![]);
    assert!(candidates(&values, Property::SourcePort).contains(&1000));
    assert!(candidates(&values, Property::DestinationPort).contains(&443));
    assert!(values.not_evaluated.is_empty());
}

#[test]
fn addresses_that_one_load_compares_are_both_candidates() {
    let both = [10, 0, 0, 1, 10, 0, 0, 2];
    let values = values_of_rule(vec![payload(NETWORK, 12, 8), compare(NFT_CMP_EQ, &both)], vec![]);
    assert!(candidates(&values, Property::SourceV4).contains(&0x0a00_0001));
    assert!(candidates(&values, Property::DestinationV4).contains(&0x0a00_0002));
}

/// `ct reply ip saddr` is the destination of the first packet.
#[test]
fn an_address_of_the_connection_is_a_candidate_for_both_ends() {
    let load = Expr::Load { source: LoadSource::Ct(NFT_CT_SRC_IP, Some(IP_CT_DIR_REPLY)), to: 0 };
    let values = values_of_rule(vec![load, compare(NFT_CMP_EQ, &[10, 0, 0, 1])], vec![]);
    assert!(candidates(&values, Property::SourceV4).contains(&0x0a00_0001));
    assert!(candidates(&values, Property::DestinationV4).contains(&0x0a00_0001));
}

#[test]
fn every_combination_of_single_bits_is_a_candidate() {
    let mut exprs = vec![];
    for bit in [1_u32, 2, 8, 16] {
        exprs.push(Expr::Load { source: LoadSource::Meta(NFT_META_MARK), to: 0 });
        exprs.push(Expr::Bitwise { from: 0, to: 0, mask: bit.to_ne_bytes().to_vec(), xor: vec![0; 4] });
        exprs.push(compare(NFT_CMP_EQ, &bit.to_ne_bytes()));
    }
    assert_eq!(candidates(&values_of_rule(exprs, vec![]), Property::Mark).len(), 16);
}

#[test]
fn a_comparison_that_cannot_be_evaluated_is_named() {
    let exprs = vec![
        Expr::Load { source: LoadSource::Meta(NFT_META_MARK), to: 0 },
        Expr::Bitwise { from: 0, to: 0, mask: vec![0xff; 4], xor: vec![1; 4] },
        compare(NFT_CMP_EQ, &[0; 4]),
    ];
    assert_eq!(
        values_of_rule(exprs, vec![]).not_evaluated,
        ["comparison not evaluated: inet other theirs: a rule"]
    );
    // The walk tries both results of a test of the TCP flags, which the sender chooses.
    let flags = vec![payload(TRANSPORT, 13, 1), compare(NFT_CMP_EQ, &[2])];
    assert!(values_of_rule(flags, vec![]).not_evaluated.is_empty());
}

#[test]
fn a_large_set_is_one_test_and_too_many_tests_have_no_result() {
    let mut values = Values::default();
    let odd = |count: u128| (0..count).map(|n| (2 * n + 1, 2 * n + 1)).collect::<Vec<_>>();
    values.test(Property::DestinationV4, u32::MAX.into(), odd(100_000));
    assert_eq!(candidates(&values, Property::DestinationV4).len(), 2);
    odd(20_000).into_iter().for_each(|one| values.test(Property::SourceV4, u32::MAX.into(), vec![one]));
    assert_eq!(values.of(Property::SourceV4, &[], |_| 0, &unlimited()), None);
}

#[test]
fn more_tests_and_ranges_than_are_stored_are_too_many_to_compute() {
    let mut values = Values::default();
    let ranges = |count: u128| (0..count).map(|at| (2 * at, 2 * at)).collect();
    values.ranges(Property::DestinationV6, ranges(MAX_STORED as u128 - 3));
    values.ranges(Property::Uid, ranges(1));
    let uids = |values: &Values| values.of(Property::Uid, &[], |_| 0, &unlimited()).map(|uids| uids.len());
    assert_eq!(uids(&values), Some(2));
    values.ranges(Property::Uid, ranges(1));
    assert_eq!(uids(&values), Some(2), "the same test again");
    values.ranges(Property::Gid, ranges(1));
    assert_eq!((uids(&values), values.tests.len()), (None, 2));
}

/// Each test has one range. 1,414 is the most tests whose product of candidates and tests is within [`MAX_TESTED`].
#[test]
fn candidates_are_bounded_before_they_are_computed() {
    let mut values = Values::default();
    (1..=1_414).for_each(|uid| values.ranges(Property::Uid, vec![(3 * uid, 3 * uid)]));
    let fits = |values: &Values, steps| values.of(Property::Uid, &[], |_| 0, &Budget::of(steps)).is_some();
    let steps = CANDIDATES * 1_414 * 1_414 / TESTED_PER_STEP;
    assert!(fits(&values, steps + 1) && !fits(&values, steps));
    values.ranges(Property::Uid, vec![(0, 0)]);
    assert!(!fits(&values, usize::MAX), "more than {MAX_TESTED}");
}
