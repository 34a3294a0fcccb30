//! Renders rules as nft text for dry runs, logs and reviews. No code of Gybe parses it.
//!
//! The text is a complete script for `nft -f`. After loading it, `nft list` prints the same as after the netlink batch
//! (integration/tests/commands/render.rs). Both are rendered from the same value, independently of each other.

use crate::model::policy::{InterfaceName, MaskedMark, PortSet};
use crate::model::ruleset::{
    Chain, ChainName, ConnectionState, Elements, Family, Hook, Is, Match, NamedList, Networks, Rule, Ruleset,
    Stage, Verdict, v4_ranges, v6_ranges,
};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Renders the rules as a script for `nft -f`. Loading it again changes nothing.
pub fn show(rules: &Ruleset) -> String {
    let mut text = String::from("table inet gybe\ndelete table inet gybe\ntable inet gybe {\n");
    for list in &rules.lists() {
        text += &set(list);
    }
    for chain in &rules.chains {
        text += &show_chain(chain);
    }
    text + "}\n"
}

fn show_chain(chain: &Chain) -> String {
    let mut text = format!("\tchain {} {{\n", chain.name);
    if let Some(base) = base(chain.name) {
        text += &format!("\t\t{base}\n");
    }
    for rule in &chain.rules {
        text += &format!("\t\t{}\n", show_rule(rule));
    }
    text + "\t}\n"
}

/// Renders one rule in nft syntax, with its id as the comment.
pub fn show_rule(rule: &Rule) -> String {
    let lists = rule.lists();
    let mut text = String::new();
    for (at, m) in rule.matches.iter().enumerate() {
        // The clause of a port includes the transport protocol.
        let port_follows = rule.matches.get(at + 1).is_some_and(is_port);
        if matches!(m, Match::Protocol(_)) && port_follows {
            continue;
        }
        let set = lists.iter().find(|list| list.at == at);
        let before = at.checked_sub(1).and_then(|before| rule.matches.get(before));
        text += &clause(m, before, set);
        text.push(' ');
    }
    text + "counter " + &verdict(rule) + &format!(" comment \"{}\"", rule.id)
}

fn is_port(m: &Match) -> bool {
    matches!(m, Match::SourcePort(..) | Match::DestinationPort(..))
}

fn clause(m: &Match, before: Option<&Match>, set: Option<&NamedList<'_>>) -> String {
    let ports_of = match before {
        Some(Match::Protocol(transport)) => transport.name(),
        _ => "th",
    };
    match m {
        Match::Family(Family::V4) => "meta nfproto ipv4".into(),
        Match::Family(Family::V6) => "meta nfproto ipv6".into(),
        Match::Protocol(transport) => format!("meta l4proto {}", transport.name()),
        // No list with a name: see `ruleset/lists.rs`.
        Match::InInterface(names) => compare("iifname", Is::In, set, interfaces(names)),
        Match::OutInterface(names) => compare("oifname", Is::In, set, interfaces(names)),
        Match::Source(is, nets) => {
            compare(&format!("{} saddr", nets.family().name()), *is, set, networks(nets))
        }
        Match::Destination(is, nets) => {
            compare(&format!("{} daddr", nets.family().name()), *is, set, networks(nets))
        }
        Match::SourcePort(is, list) => compare(&format!("{ports_of} sport"), *is, set, ports(list)),
        Match::DestinationPort(is, list) => compare(&format!("{ports_of} dport"), *is, set, ports(list)),
        Match::OwnerUid(ids) => compare("meta skuid", Is::In, set, joined(ids)),
        Match::OwnerGid(ids) => compare("meta skgid", Is::In, set, joined(ids)),
        Match::Mark(is, mark) => masked("meta mark", *is, *mark),
        Match::ConnectionMark(mark) => masked("ct mark", Is::In, *mark),
        Match::State(ConnectionState::EstablishedOrRelated) => "ct state established,related".into(),
        Match::State(ConnectionState::Invalid) => "ct state invalid".into(),
    }
}

fn compare(what: &str, is: Is, set: Option<&NamedList<'_>>, value: impl Display) -> String {
    let not = if is == Is::NotIn { "!= " } else { "" };
    match set {
        Some(set) => format!("{what} {not}@{}", set.name),
        None => format!("{what} {not}{value}"),
    }
}

fn masked(what: &str, is: Is, mark: MaskedMark) -> String {
    let equals = if is == Is::NotIn { "!=" } else { "==" };
    match mark.is_whole() {
        true => compare(what, is, None, mark.value()),
        false => format!("{what} & {:#x} {equals} {:#x}", mark.mask(), mark.value()),
    }
}

fn verdict(rule: &Rule) -> String {
    match rule.verdict {
        Verdict::Return => "return".into(),
        Verdict::Drop => "drop".into(),
        Verdict::Goto(chain) => format!("goto {chain}"),
        Verdict::Redirect(port) => format!("redirect to :{port}"),
        Verdict::Tproxy { port, mark } => {
            let family = rule.family().unwrap_or(Family::V4).name();
            format!("tproxy {family} to :{port} meta mark set {mark} accept")
        }
        Verdict::Divert(mark) => format!("meta mark set {mark} accept"),
        Verdict::SetMark(mark) => format!("meta mark set {mark}"),
        Verdict::SetConnectionMark(mark) => {
            format!("ct mark set ct mark & {:#x} | {:#x}", !mark.mask(), mark.value())
        }
        Verdict::SaveMark => "ct mark set meta mark".into(),
        Verdict::RestoreMark => "meta mark set ct mark".into(),
        Verdict::Zone(zone) => format!("ct zone set {zone}"),
    }
}

fn set(list: &NamedList<'_>) -> String {
    let (kind, elements) = match list.elements {
        Elements::Ports(ports) => ("type inet_service; flags interval;", joined(ports.ranges())),
        Elements::V4(nets) => ("type ipv4_addr; flags interval;", joined(v4_ranges(nets).iter().map(range))),
        Elements::V6(nets) => ("type ipv6_addr; flags interval;", joined(v6_ranges(nets).iter().map(range))),
        Elements::Uids(ids) => ("type uid;", joined(ids)),
        Elements::Gids(ids) => ("type gid;", joined(ids)),
        Elements::Interfaces(names) => ("type ifname;", interfaces(names)),
    };
    let elements = if elements.is_empty() { elements } else { format!(" elements = {{ {elements} }};") };
    format!("\tset {} {{\n\t\t{kind}{elements}\n\t}}\n", list.name)
}

fn base(chain: ChainName) -> Option<String> {
    let hook = chain.hook()?;
    // Numbers, not words: nft 1.0.6 refuses `dstnat` on the output hook.
    let (kind, priority) = match (chain.stage(), hook) {
        (Stage::Raw, _) => ("filter", -300),
        (Stage::Mangle, Hook::Output) => ("route", -150),
        (Stage::Mangle, _) => ("filter", -150),
        (Stage::Nat, _) => ("nat", -100),
    };
    Some(format!("type {kind} hook {} priority {priority}; policy accept;", hook.name()))
}

fn networks(nets: &Networks) -> String {
    match nets {
        Networks::V4(nets) => joined(nets),
        Networks::V6(nets) => joined(nets),
    }
}

fn ports(ports: &PortSet) -> String {
    joined(ports.ranges())
}

fn interfaces(names: &BTreeSet<InterfaceName>) -> String {
    joined(names.iter().map(|name| format!("\"{}\"", name.as_str())))
}

fn range<A: Display + PartialEq>(range: &RangeInclusive<A>) -> String {
    let (first, last) = (range.start(), range.end());
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn joined<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
