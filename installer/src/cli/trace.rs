//! `gybe trace`: where a connection goes, and the rules that send it there.

use super::answer::{Answer, Failure};
use super::namespace::SomeNetns;
use super::packet::{self, PacketArgs};
use super::wish::{Asked, InitArg, Place, WishArgs};
use clap::Args;
use gybe_netfilter::compile::compile;
use gybe_netfilter::policy::Families;
use gybe_netfilter::ruleset::{Family, Ruleset};
use gybe_netfilter::show::show_rule;
use gybe_netfilter::trace::{Fate, Packet, trace};
use serde_json::json;
use std::fmt::Write;

/// Say where a connection goes, and by which rules.
///
/// Nothing is sent and no rule is written: the rules a wish asks for are walked through.
/// With --netns the namespace's addresses decide what the pod's own are and whether IPv6 is on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gybe trace --policy policy.json out tcp 10.1.2.3:80 --uid 1000
  gybe trace --pod pod.yaml in tcp 10.244.0.10:8080
  gybe trace --pod pod.yaml out tcp 10.244.0.10:8080 --uid 1337 --pod-ip 10.244.0.10")]
pub(super) struct TraceArgs {
    #[command(flatten)]
    wish: WishArgs,
    #[command(flatten)]
    netns: SomeNetns,
    #[command(flatten)]
    init: InitArg,
    #[command(flatten)]
    packet: PacketArgs,
}

impl TraceArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let addresses = self.netns.addresses()?;
        let packet = self.packet.packet(addresses.as_deref().unwrap_or_default())?;
        let wish = self.wish.one()?;
        match wish.asked(&Place::of(addresses, self.netns.families()), self.init.gate())? {
            Asked::Redirect(policy) => {
                let answer = answer(&compile(&policy), &packet);
                Ok(answer.noting([wish.doubts(), notes(policy.families, packet.family())].concat()))
            }
            Asked::LeaveAlone(reason) => {
                let text = format!("{} is left alone: {reason}\n", wish.origin());
                let json =
                    json!({ "packet": packet::as_json(&packet), "fate": "untouched", "reason": reason });
                Ok(Answer::yes(text, json))
            }
        }
    }
}

fn answer(rules: &Ruleset, packet: &Packet) -> Answer {
    let way = trace(rules, packet);
    let mut text = format!("{}\n", packet::sentence(packet));
    for step in &way.steps {
        let rule = rules.rules().find(|(_, rule)| rule.id == step.rule);
        let rule = rule.map_or_else(String::new, |(_, rule)| show_rule(rule));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:<18} {rule}", step.chain.as_str());
    }
    let by = way.decided_by.map_or("no rule applies".to_owned(), |rule| format!("rule {rule}"));
    let _ = writeln!(text, "{} ({by})", sentence(way.fate));
    let json = json!({
        "packet": packet::as_json(packet),
        "fate": name(way.fate),
        "port": port(way.fate),
        "decided_by": way.decided_by.map(|rule| rule.0),
        "steps": way.steps.iter().map(|s| json!({ "chain": s.chain.as_str(), "rule": s.rule.0 })).collect::<Vec<_>>(),
        "zone": way.zone,
        "mark": way.mark,
    });
    Answer::yes(text, json)
}

fn notes(redirected: Families, asked: Family) -> Vec<String> {
    match (redirected, asked) {
        (Families::V4Only, Family::V6) => vec!["note: IPv6 is left alone here".to_owned()],
        _ => Vec::new(),
    }
}

fn sentence(fate: Fate) -> String {
    match fate {
        Fate::Untouched => "goes where it would go without us".to_owned(),
        Fate::Redirected(port) => format!("goes to the proxy's port {port}"),
        Fate::Intercepted(port) => format!("is handed to the proxy's transparent port {port}"),
        Fate::Dropped => "is dropped".to_owned(),
    }
}

fn name(fate: Fate) -> &'static str {
    match fate {
        Fate::Untouched => "untouched",
        Fate::Redirected(_) => "redirected",
        Fate::Intercepted(_) => "intercepted",
        Fate::Dropped => "dropped",
    }
}

fn port(fate: Fate) -> Option<u16> {
    match fate {
        Fate::Redirected(port) | Fate::Intercepted(port) => Some(port.get()),
        Fate::Untouched | Fate::Dropped => None,
    }
}
