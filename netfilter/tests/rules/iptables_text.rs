//! Property test: the restore text, parsed back to rules, has the same outcome for every packet as the rules that it
//! was rendered from. Without a kernel; policies and packets come from a fixed seed.

use crate::random::{INTERFACES, Random, V4, V6};
use crate::read_back::read_back;
use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::live::{LiveRules, LiveTrace};
use gybe_netfilter::iptables::script;
use gybe_netfilter::model::packet::Packet;
use gybe_netfilter::model::policy::{Families, InterfaceName, PortRange, PortSet};
use gybe_netfilter::model::ruleset::{
    Chain, ChainName, Family, Is, Match, Networks, Rule, RuleId, Ruleset, Transport, Verdict,
};
use ipnet::Ipv4Net;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

pub(crate) fn assert_same(rules: &Ruleset, packets: &[Packet]) {
    let texts = [Family::V4, Family::V6].map(|family| script(rules, family).unwrap());
    let [v4, v6] = texts.clone().map(|text| in_a_namespace(&read_back(&text)));
    let desired = in_a_namespace(rules);
    for packet in packets {
        let written = if packet.family() == Family::V4 { &v4 } else { &v6 };
        // A rule with a Goto may have several lines, so only the result and the deciding rule are compared.
        let result = |rules: &LiveRules| {
            let trace = rules.trace(packet);
            (trace.first, trace.outcome, id(&trace), trace.zone, trace.mark)
        };
        assert_eq!(result(&desired), result(written), "{packet:?}\n{rules:?}\n{}\n{}", texts[0], texts[1]);
    }
}

/// The id of the deciding rule, without the number of its line.
fn id(trace: &LiveTrace) -> Option<String> {
    Some(trace.rule()?.split('#').next()?.to_owned())
}

/// The rules where every address of a random packet is local.
fn in_a_namespace(rules: &Ruleset) -> LiveRules {
    let addresses: Vec<IpAddr> = V4.iter().chain(&V6).map(|address| address.parse().unwrap()).collect();
    let live = LiveRules::of_ruleset(rules).unwrap();
    // Ids that are read back end in `#` and a line number, so `LiveRules` does not recognize an ambient policy by them.
    let is_ambient = rules.rules().any(|(_, rule)| rule.id.0.starts_with("answer-to-ztunnel"));
    let live = if is_ambient { live.with_ztunnel() } else { live };
    INTERFACES.iter().fold(live, |live, name| live.with_interface(name, &addresses))
}

#[test]
fn iptables_text_has_the_same_outcomes_as_its_policy() {
    let mut random = Random::new(1);
    for _ in 0..400 {
        let policy = random.policy();
        let packets: Vec<Packet> = (0..400).map(|_| random.packet()).collect();
        assert_same(&compile(&policy), &packets);
    }
}

/// A chain of these rules, and the chain that the last of them leads to.
fn chains(rules: Vec<Rule>) -> Vec<Chain> {
    let verdict = Verdict::Redirect(15002.try_into().unwrap());
    let capture = Rule { id: RuleId("capture"), matches: vec![Match::Protocol(Transport::Tcp)], verdict };
    vec![
        Chain { name: ChainName::NatOutput, rules },
        Chain { name: ChainName::NatCapture, rules: vec![capture] },
    ]
}

/// Adds a condition, unless its list would have the name of another list of the rule: nftables has one set of a name,
/// and no policy compiles to such a rule.
fn add(matches: &mut Vec<Match>, condition: Match) {
    matches.push(condition);
    let rule = Rule { id: RuleId("any"), matches: matches.clone(), verdict: Verdict::Return };
    let lists = rule.lists();
    if lists.iter().map(|list| &list.name).collect::<BTreeSet<_>>().len() < lists.len() {
        matches.pop();
    }
}

#[test]
fn iptables_text_of_random_rules_has_the_same_outcomes() {
    let mut random = Random::new(2);
    for _ in 0..2000 {
        let mut matches = Vec::new();
        (0..random.below(4)).for_each(|_| add(&mut matches, random.condition()));
        let verdict = Verdict::Redirect(15001.try_into().unwrap());
        let rule = |id, matches, verdict| Rule { id: RuleId(id), matches, verdict };
        let chains = chains(vec![
            rule("any", matches, verdict),
            rule("rest", Vec::new(), Verdict::Goto(ChainName::NatCapture)),
        ]);
        let rules = Ruleset { families: Families::V4AndV6, chains };
        let packets: Vec<Packet> = (0..60).map(|_| random.packet()).collect();
        assert_same(&rules, &packets);
    }
}

/// The lists are long enough for list chains, also for a list chain that calls another.
#[test]
fn several_long_lists_in_one_rule_have_the_same_outcomes_as_list_chains() {
    let mut random = Random::new(5);
    let mut chains_were_called = 0;
    for _ in 0..60 {
        let more = (0..40_u8).map(|n| Ipv4Net::from(Ipv4Addr::new(10, 200, n * 2, 0)));
        let networks = more.chain(["10.0.0.0/15", "20.1.2.3/32"].map(|net| net.parse().unwrap())).collect();
        let owners = (1000..1000 + u32::try_from(random.below(8)).unwrap()).chain([1337]).collect();
        let names = ["eth0", "eth1", "net1", "v0", "v1"].map(|name| InterfaceName::parse(name).unwrap());
        let mut matches = vec![
            Match::OutInterface(names.into()),
            Match::Destination(Is::In, Networks::V4(networks)),
            Match::OwnerUid(owners),
        ];
        (0..random.below(2)).for_each(|_| add(&mut matches, random.condition()));
        let verdict = [Verdict::Redirect(15001.try_into().unwrap()), Verdict::Drop, Verdict::Return];
        let rule = |id, matches, verdict| Rule { id: RuleId(id), matches, verdict };
        let chains = chains(vec![
            rule("long", matches, verdict[random.below(3)]),
            rule("rest", Vec::new(), Verdict::Goto(ChainName::NatCapture)),
        ]);
        let rules = Ruleset { families: Families::V4AndV6, chains };
        chains_were_called += script(&rules, Family::V4).unwrap().matches(":ISTIO_LIST_").count();
        let packets: Vec<Packet> = (0..400).map(|_| random.packet()).collect();
        assert_same(&rules, &packets);
    }
    assert!(chains_were_called > 60, "{chains_were_called}");
}

#[test]
fn a_missing_rule_changes_an_outcome() {
    let mut random = Random::new(3);
    let rules = compile(&random.policy());
    let packets: Vec<Packet> = (0..2000).map(|_| random.packet()).collect();
    let without = rules.without("proxy-uid").unwrap();
    let (text, less) = (script(&rules, Family::V4).unwrap(), script(&without, Family::V4).unwrap());
    let (all, less) = (in_a_namespace(&read_back(&text)), in_a_namespace(&read_back(&less)));
    let v4 = packets.iter().filter(|packet| packet.family() == Family::V4);
    assert!(v4.into_iter().any(|packet| id(&all.trace(packet)) != id(&less.trace(packet))));
}

#[test]
fn without_ipv6_the_ipv6_text_is_empty() {
    let mut random = Random::new(4);
    let policies = (0..100).map(|_| random.policy()).filter(|policy| policy.families == Families::V4Only);
    let scripts: Vec<String> =
        policies.map(|policy| script(&compile(&policy), Family::V6).unwrap()).collect();
    assert!(scripts.len() > 20 && scripts.iter().all(String::is_empty));
}

#[test]
fn long_port_lists_fill_rules_up_to_15_slots() {
    let ports = (0..4096_u16).filter_map(|n| PortRange::new(n * 16, n * 16 + n % 2)).collect::<PortSet>();
    let networks = Networks::V4(vec!["10.0.0.0/8".parse().unwrap(), "11.0.0.0/16".parse().unwrap()]);
    let lo = BTreeSet::from([InterfaceName::loopback()]);
    let rule = Rule {
        id: RuleId("ports"),
        matches: vec![
            Match::OutInterface(lo),
            Match::Destination(Is::In, networks),
            Match::Protocol(Transport::Tcp),
            Match::DestinationPort(Is::In, ports),
        ],
        verdict: Verdict::Return,
    };
    let chains = vec![Chain { name: ChainName::NatOutput, rules: vec![rule] }];
    let text = script(&Ruleset { families: Families::V4AndV6, chains }, Family::V4).unwrap();
    let lists: Vec<usize> = text
        .lines()
        .filter_map(|line| line.split_once("--dports ")?.1.split(' ').next())
        .map(|list| list.split([',', ':']).count())
        .collect();
    assert!(lists.iter().all(|slots| *slots <= 15), "{lists:?}");
    // 2048 single ports and 2048 ranges take 6144 slots, for each of two networks.
    assert!(lists.len() < 2 * (6144 / 14 + 1), "{}", lists.len());
}
