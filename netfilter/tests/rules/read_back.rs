//! Parses restore text to a `Ruleset`. Written for this test only, from iptables-extensions(8).

use gybe_netfilter::model::policy::{Families, InterfaceName, MaskedMark, PortRange, PortSet};
use gybe_netfilter::model::ruleset::{
    Chain, ChainName, ConnectionState, Is, Match, Networks, Rule, RuleId, Ruleset, Transport, Verdict,
};
use std::collections::BTreeSet;

pub(crate) fn read_back(text: &str) -> Ruleset {
    let (mut table, mut chains) = ("", Vec::<Chain>::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let (name, spec) = rule.split_once(' ').unwrap();
            if matches!(name, "OUTPUT" | "PREROUTING" | "ISTIO_DIVERT") || name.starts_with(LIST) {
                continue;
            }
            let name = chain(table, name);
            if !chains.iter().any(|chain| chain.name == name) {
                chains.push(Chain { name, rules: Vec::new() });
            }
            let rules = read_rules((text, table), spec);
            chains.iter_mut().find(|chain| chain.name == name).unwrap().rules.extend(rules);
        }
    }
    // A rule may have become several lines; an id is unique, because it names the rule's sets.
    for (number, rule) in chains.iter_mut().flat_map(|chain| &mut chain.rules).enumerate() {
        rule.id = RuleId(Box::leak(format!("{}#{number}", rule.id).into_boxed_str()));
    }
    Ruleset { families: Families::V4AndV6, chains }
}

/// Prefix of list chains: a packet must match the calling rule and a rule of the list chain.
const LIST: &str = "ISTIO_LIST_";

fn read_rules((text, table): (&str, &str), spec: &str) -> Vec<Rule> {
    let Some((call, list)) = spec.split_once(&format!("-j {LIST}")) else {
        return vec![read_rule(table, spec)];
    };
    let call = read_rule(table, &format!("{call}-j RETURN"));
    let (begin, own) = (format!("*{table}\n"), format!("-A {LIST}{list} "));
    let (_, own_table) = text.split_once(&begin).unwrap();
    let lines = own_table.lines().take_while(|line| *line != "COMMIT");
    let called = lines.filter_map(|line| line.strip_prefix(&own));
    let rules = called.flat_map(|spec| read_rules((text, table), spec));
    rules.map(|rule| Rule { matches: [call.matches.clone(), rule.matches].concat(), ..rule }).collect()
}

fn chain(table: &str, name: &str) -> ChainName {
    match (table, name) {
        ("raw", "ISTIO_INBOUND") => ChainName::RawPrerouting,
        ("raw", "ISTIO_OUTPUT_DNS") => ChainName::RawOutput,
        ("mangle", "ISTIO_INBOUND") => ChainName::ManglePrerouting,
        ("mangle", "ISTIO_OUTPUT") => ChainName::MangleOutput,
        ("nat", "ISTIO_INBOUND") => ChainName::NatPrerouting,
        ("nat", "ISTIO_OUTPUT") => ChainName::NatOutput,
        ("nat", "ISTIO_LOOPBACK") => ChainName::NatLoopback,
        ("nat", "ISTIO_REDIRECT") => ChainName::NatCapture,
        other => panic!("no chain of ours: {other:?}"),
    }
}

fn number(text: &str) -> u32 {
    let text = text.trim_end_matches("/0xffffffff");
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

fn mark(text: &str) -> MaskedMark {
    match text.split_once('/') {
        Some((value, mask)) => MaskedMark::new(number(value), number(mask)),
        None => number(text).into(),
    }
}

fn ports(text: &str) -> PortSet {
    let range = |text: &str| {
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        PortRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
    };
    text.split(',').map(range).collect()
}

fn networks(text: &str) -> Networks {
    match text.parse().unwrap() {
        ipnet::IpNet::V4(net) => Networks::V4(vec![net]),
        ipnet::IpNet::V6(net) => Networks::V6(vec![net]),
    }
}

fn interface(text: &str) -> BTreeSet<InterfaceName> {
    BTreeSet::from([InterfaceName::parse(text).unwrap()])
}

fn read_rule(table: &str, spec: &str) -> Rule {
    let mut words = spec.split(' ');
    let (mut matches, mut is, mut module, mut id) = (Vec::new(), Is::In, "", "");
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap();
        match word {
            "!" => {
                is = Is::NotIn;
                continue;
            }
            "-m" => {
                module = value();
                continue;
            }
            "-j" | "-g" => {
                let target = value();
                let id = RuleId(Box::leak(id.to_owned().into_boxed_str()));
                let verdict = verdict(table, (word, target), &words.collect::<Vec<_>>());
                return Rule { id, matches, verdict };
            }
            "--comment" => id = value(),
            "-s" => matches.push(Match::Source(is, networks(value()))),
            "-d" => matches.push(Match::Destination(is, networks(value()))),
            "-i" => matches.push(Match::InInterface(interface(value()))),
            "-o" => matches.push(Match::OutInterface(interface(value()))),
            "-p" => matches.push(Match::Protocol(match value() {
                "tcp" => Transport::Tcp,
                "udp" => Transport::Udp,
                other => panic!("{other}"),
            })),
            "--sport" | "--sports" => matches.push(Match::SourcePort(is, ports(value()))),
            "--dport" | "--dports" => matches.push(Match::DestinationPort(is, ports(value()))),
            "--uid-owner" => matches.push(Match::OwnerUid(BTreeSet::from([number(value())]))),
            "--gid-owner" => matches.push(Match::OwnerGid(BTreeSet::from([number(value())]))),
            "--mark" if module == "mark" => matches.push(Match::Mark(is, mark(value()))),
            "--mark" => matches.push(Match::ConnectionMark(mark(value()))),
            "--ctstate" => matches.push(Match::State(match value() {
                "INVALID" => ConnectionState::Invalid,
                "RELATED,ESTABLISHED" => ConnectionState::EstablishedOrRelated,
                other => panic!("{other}"),
            })),
            other => panic!("no option of ours: {other} in {spec}"),
        }
        is = Is::In;
    }
    panic!("no target: {spec}")
}

fn verdict(table: &str, (how, target): (&str, &str), rest: &[&str]) -> Verdict {
    let port = |text: &str| text.parse().unwrap();
    match (target, rest) {
        ("RETURN", []) => Verdict::Return,
        ("DROP", []) => Verdict::Drop,
        ("REDIRECT", ["--to-ports", to]) => Verdict::Redirect(port(to)),
        ("TPROXY", ["--on-port", on, "--on-ip", "0.0.0.0" | "::", "--tproxy-mark", mark]) => {
            Verdict::Tproxy { port: port(on), mark: number(mark) }
        }
        ("MARK", ["--set-xmark", mark]) => Verdict::SetMark(number(mark)),
        ("CONNMARK", ["--save-mark", "--nfmask", "0xffffffff", "--ctmask", "0xffffffff"]) => {
            Verdict::SaveMark
        }
        ("CONNMARK", ["--restore-mark", "--nfmask", "0xffffffff", "--ctmask", "0xffffffff"]) => {
            Verdict::RestoreMark
        }
        ("CONNMARK", ["--set-xmark", bits]) => Verdict::SetConnectionMark(mark(bits)),
        ("CT", ["--zone", zone]) => Verdict::Zone(zone.parse().unwrap()),
        ("ISTIO_DIVERT", []) if how == "-g" => Verdict::Divert(1337),
        (name, []) if how == "-g" => Verdict::Goto(chain(table, name)),
        other => panic!("no target of ours: {other:?}"),
    }
}
