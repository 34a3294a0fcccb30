use super::*;
use crate::iptables::save::parse;
use crate::model::policy::{InterfaceName, PortSet};
use crate::model::ruleset::{Is, Match, Networks, Rule, Transport};

fn render(rules: &Ruleset, family: Family) -> FamilyRules {
    super::render(rules).unwrap().remove(&family).unwrap()
}

fn rule(id: &'static str, matches: Vec<Match>, verdict: Verdict) -> Rule {
    Rule { id: RuleId(id), matches, verdict }
}

fn rules(chains: Vec<(ChainName, Vec<Rule>)>) -> Ruleset {
    let chains = chains.into_iter().map(|(name, rules)| Chain { name, rules }).collect();
    Ruleset { families: Families::V4AndV6, chains }
}

fn small() -> Ruleset {
    let to_proxy = Verdict::Redirect(15001.try_into().unwrap());
    rules(vec![
        (
            ChainName::NatOutput,
            vec![
                rule("proxy-uid", vec![Match::OwnerUid([1337, u32::MAX].into())], Verdict::Return),
                rule("to-capture", Vec::new(), Verdict::Goto(ChainName::NatCapture)),
            ],
        ),
        (ChainName::NatCapture, vec![rule("to-proxy", vec![Match::Protocol(Transport::Tcp)], to_proxy)]),
    ])
}

/// Returns the rules as parsed from the `iptables-save` output of tables with only these rules.
fn saved(tables: &FamilyRules) -> FamilyRules {
    let text = tables.iter().map(|(stage, table)| {
        let declared: String = table.chains.keys().map(|chain| format!(":{chain} - [0:0]\n")).collect();
        let rules = table.hooks.iter().chain(&table.chains).flat_map(|(chain, rules)| {
            rules.iter().map(move |rule| format!("[0:0] -A {chain} {}\n", rule.text()))
        });
        format!("*{}\n:OUTPUT ACCEPT [0:0]\n{declared}{}COMMIT\n", stage.table(), rules.collect::<String>())
    });
    parse(&text.collect::<String>()).unwrap().ours
}

#[test]
fn a_fresh_namespace_gets_this_text() {
    let desired = "*nat\n\
        :GYBE - [0:0]\n\
        :ISTIO_OUTPUT - [0:0]\n\
        :ISTIO_REDIRECT - [0:0]\n\
        -A ISTIO_OUTPUT -m owner --uid-owner 1337 -m comment --comment proxy-uid -j RETURN\n\
        -A ISTIO_OUTPUT -m comment --comment to-capture -g ISTIO_REDIRECT\n\
        -A ISTIO_REDIRECT -p tcp -m comment --comment to-proxy -j REDIRECT --to-ports 15001\n\
        -A OUTPUT -m comment --comment nat-output -j ISTIO_OUTPUT\n\
        COMMIT\n";
    for family in [Family::V4, Family::V6] {
        assert_eq!(transaction(&FamilyRules::new(), &render(&small(), family)).as_deref(), Some(desired));
    }
}

#[test]
fn existing_rules_are_not_written_again() {
    let desired = render(&small(), Family::V4);
    assert_eq!(transaction(&saved(&desired), &desired), None);
}

#[test]
fn removal_deletes_the_mark_and_names_no_chain_of_other_owners() {
    let text = transaction(&saved(&render(&small(), Family::V4)), &FamilyRules::new()).unwrap();
    let desired = "*nat\n-F GYBE\n-F ISTIO_OUTPUT\n-F ISTIO_REDIRECT\n\
        -D OUTPUT -m comment --comment nat-output -j ISTIO_OUTPUT\n\
        -X GYBE\n-X ISTIO_OUTPUT\n-X ISTIO_REDIRECT\nCOMMIT\n";
    assert_eq!(text, desired);
}

#[test]
fn a_changed_rule_leaves_the_hook_in_its_position_among_other_rules() {
    let mut other = small();
    other.chains[0].rules.remove(0);
    let text = transaction(&saved(&render(&small(), Family::V4)), &render(&other, Family::V4)).unwrap();
    assert!(!text.contains("-A OUTPUT") && !text.contains("-D OUTPUT"), "{text}");
}

#[test]
fn only_tables_that_differ_are_written() {
    let dns = rule(
        "zone",
        vec![Match::Protocol(Transport::Udp), Match::DestinationPort(Is::In, PortSet::from_iter([53]))],
        Verdict::Zone(2),
    );
    let mut more = small();
    more.chains.push(Chain { name: ChainName::RawOutput, rules: vec![dns] });
    let (less, more) = (render(&small(), Family::V4), render(&more, Family::V4));
    for (found, desired) in [(&less, &more), (&more, &less)] {
        let text = transaction(&saved(found), desired).unwrap();
        assert!(text.starts_with("*raw\n") && !text.contains("*nat"), "{text}");
    }
}

#[test]
fn another_owners_rule_that_leads_into_gybes_chains_is_deleted_with_them_and_never_quoted() {
    let text = "*nat\n:OUTPUT ACCEPT [0:0]\n:GYBE - [0:0]\n:ISTIO_OUTPUT - [0:0]\n:MINE - [0:0]\n\
        -A OUTPUT -j MINE\n\
        -A OUTPUT -m comment --comment \"x\n-A OUTPUT --modprobe=/evil\" -j ISTIO_OUTPUT\n\
        -A OUTPUT -m comment --comment nat-output -j ISTIO_OUTPUT\nCOMMIT\n";
    let text = transaction(&parse(text).unwrap().ours, &FamilyRules::new()).unwrap();
    assert!(
        text.contains("-D OUTPUT 2\n-D OUTPUT -m comment --comment nat-output -j ISTIO_OUTPUT\n"),
        "{text}"
    );
    assert!(!text.contains("evil") && !text.contains("MINE"), "{text}");
}

#[test]
fn a_divert_is_a_chain_that_marks_and_accepts() {
    let divert = rule("intercepted-before", vec![Match::Protocol(Transport::Tcp)], Verdict::Divert(1337));
    let tables = render(&rules(vec![(ChainName::ManglePrerouting, vec![divert])]), Family::V6);
    let text = transaction(&FamilyRules::new(), &tables).unwrap();
    for line in [
        "-A ISTIO_DIVERT -j MARK --set-xmark 0x539/0xffffffff\n-A ISTIO_DIVERT -j ACCEPT\n",
        "-A ISTIO_INBOUND -p tcp -m comment --comment intercepted-before -g ISTIO_DIVERT\n",
        "-A PREROUTING -m comment --comment mangle-prerouting -j ISTIO_INBOUND\n",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn a_chain_without_rules_for_a_family_is_not_written_for_it() {
    let servers = Networks::V4(vec!["10.96.0.10/32".parse().unwrap()]);
    let zone = rule("zone-app-queries-v4", vec![Match::Destination(Is::In, servers)], Verdict::Zone(2));
    let rules = rules(vec![(ChainName::RawOutput, vec![zone])]);
    assert!(render(&rules, Family::V6).is_empty());
    assert!(!render(&rules, Family::V4).is_empty());
}

/// A rule for TCP from any of `interfaces` interfaces to any of `networks` networks.
fn product(interfaces: usize, networks: u32, verdict: Verdict) -> Ruleset {
    let names = (0..interfaces).map(|n| InterfaceName::parse(&format!("v{n}")).unwrap());
    let networks = (0..networks).map(|n| ipnet::Ipv4Net::from(std::net::Ipv4Addr::from(n << 4)));
    let matches = vec![
        Match::InInterface(names.collect()),
        Match::Destination(Is::In, Networks::V4(networks.collect())),
        Match::Protocol(Transport::Tcp),
    ];
    rules(vec![(ChainName::NatPrerouting, vec![rule("product", matches, verdict)])])
}

const TO_PROXY: Verdict = Verdict::Redirect(crate::model::policy::Port::new(15001).unwrap());

#[test]
fn a_small_product_is_multiplied_out_and_a_large_one_is_two_chains() {
    for (interfaces, networks, own, called) in
        [(8, 16, 128, None), (1, 4000, 4000, None), (3, 43, 3, Some(43)), (4000, 2, 2, Some(4000))]
    {
        let table = render(&product(interfaces, networks, TO_PROXY), Family::V4).remove(&Stage::Nat).unwrap();
        assert_eq!(table.chains["ISTIO_INBOUND"].len(), own, "{interfaces} x {networks}");
        let list = table.chains.get("ISTIO_LIST_1").map(Vec::len);
        assert_eq!(list, called, "{interfaces} x {networks}");
    }
    let table = render(&product(129, 200, TO_PROXY), Family::V4).remove(&Stage::Nat).unwrap();
    let lines = ["ISTIO_INBOUND", "ISTIO_LIST_1"].map(|chain| table.chains[chain][7].text());
    assert_eq!(
        lines,
        [
            "-i v104 -m comment --comment product -j ISTIO_LIST_1",
            "-d 0.0.0.112/32 -p tcp -m comment --comment product -j REDIRECT --to-ports 15001"
        ]
    );
}

/// `RETURN` in a list chain would only return to the chain that jumped to it.
#[test]
fn a_product_that_returns_is_multiplied_out_however_large() {
    let table = render(&product(20, 20, Verdict::Return), Family::V4).remove(&Stage::Nat).unwrap();
    assert_eq!(table.chains["ISTIO_INBOUND"].len(), 400);
    assert!(!table.chains.contains_key("ISTIO_LIST_1"));
}

#[test]
fn a_policy_with_too_many_rules_is_refused_with_their_number_and_not_expanded() {
    for (rules, excess) in [
        (product(2000, 4000, TO_PROXY), None),
        (product(2001, 4000, TO_PROXY), Some(6001)),
        (product(65_536, 65_536, TO_PROXY), Some(131_072)),
        (product(65_536, 65_536, Verdict::Return), Some(65_536 * 65_536)),
    ] {
        match (super::render(&rules), excess) {
            (Ok(rendered), None) => {
                let tables = rendered.values().flat_map(BTreeMap::values);
                let chains = tables.flat_map(|table| table.chains.values());
                assert!(chains.map(Vec::len).sum::<usize>() <= MAX_RULES);
            }
            (Err(IptablesError::TooManyRules { rule, rules }), Some(excess)) => {
                assert_eq!((rule.0, rules), ("product", excess));
            }
            (rendered, _) => panic!("{:?}, expected {excess:?}", rendered.map(drop)),
        }
    }
}
