//! `gybe trace`: where a connection goes, and the rules that send it there.

use super::answer::{Answer, Failure};
use super::live_trace;
use super::namespace::{Opened, SomeNetns};
use super::packet::{self, PacketArgs};
use super::wish::{Asked, InitArg, Place, WishArgs};
use clap::Args;
use gybe_netfilter::compile::compile;
use gybe_netfilter::live::{LiveRules, LiveTrace};
use gybe_netfilter::policy::{Families, RedirectPolicy};
use gybe_netfilter::ruleset::{Family, Ruleset};
use gybe_netfilter::show::show_rule;
use gybe_netfilter::trace::{Fate, Packet, trace};
use serde_json::{Value, json};
use std::fmt::Write;

/// Say where a connection goes, and by which rules.
///
/// Nothing is sent and no rule is written. With --netns the connection is followed through all rules of
/// that network namespace, whoever owns them; with --policy or --pod through the rules they ask for. With
/// both it is followed through both, and the answer says whether they differ.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  gybe trace --netns /run/netns/x out tcp 10.1.2.3:80 --uid 1000
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
        let there = self.netns.open()?;
        let addresses = there.as_ref().map(Opened::addresses).transpose()?;
        let packet = self.packet.packet(addresses.as_deref().unwrap_or_default())?;
        let desired = match self.wish.is_given() || there.is_none() {
            true => Some(self.desired(addresses)?),
            false => None,
        };
        let live = there.as_ref().map(|there| self.live(there, &packet, desired.as_ref())).transpose()?;
        let headline = packet::sentence(&packet);
        Ok(match (desired, live) {
            (Some(desired), None) => desired.answer(&packet),
            (Some(desired), Some(live)) => {
                both(&desired.answer(&packet), &live, &packet, desired.fate(&packet))
            }
            (None, Some((live, not_evaluated))) => {
                let text = format!("{headline}\n{}", live_trace::text(&live));
                let mut json = live_trace::json(&live);
                insert(&mut json, "packet", packet::as_json(&packet));
                insert(&mut json, "rules", "live".into());
                Answer::yes(text, json).noting(live_trace::notes(&not_evaluated))
            }
            // One of both is there: without a namespace the desired rules are asked for.
            (None, None) => return Err(Failure::new("neither --netns nor --policy nor --pod is given")),
        })
    }

    fn desired(&self, addresses: Option<Vec<std::net::IpAddr>>) -> Result<Desired, Failure> {
        let wish = self.wish.one()?;
        let asked = wish.asked(&Place::of(addresses, self.netns.families()), self.init.gate())?;
        Ok(match asked {
            Asked::Redirect(policy) => Desired::Rules(compile(&policy), policy, wish.warnings()),
            Asked::LeaveAlone(reason) => Desired::LeftAlone(wish.origin().to_owned(), reason),
        })
    }

    fn live(&self, there: &Opened<'_>, packet: &Packet, desired: Option<&Desired>) -> Result<Live, Failure> {
        let read = there.inside(LiveRules::read)?;
        let cannot = |why| Failure::hinted(format!("cannot read the rules in {}", there.path()), why);
        let mut rules = read.map_err(cannot)?.with_addresses(self.packet.pod_addresses());
        if let Some(Desired::Rules(_, policy, _)) = desired {
            rules = rules.with_proxy_of(policy);
        }
        Ok((rules.trace(packet), rules.not_evaluated().to_vec()))
    }
}

/// The way through the live rules, and what of these was not evaluated.
type Live = (LiveTrace, Vec<String>);

/// What a policy or a pod asks for.
enum Desired {
    /// The rules, their policy, and what is doubtful about it.
    Rules(Ruleset, Box<RedirectPolicy>, Vec<String>),
    LeftAlone(String, String),
}

impl Desired {
    fn answer(&self, packet: &Packet) -> Answer {
        match self {
            Self::Rules(rules, policy, doubts) => {
                let notes = notes(policy.families, packet.family());
                answer(rules, packet).noting([doubts.clone(), notes].concat())
            }
            Self::LeftAlone(origin, reason) => {
                let text = format!("{origin} is left alone: {reason}\n");
                let json =
                    json!({ "packet": packet::as_json(packet), "fate": "untouched", "reason": reason });
                Answer::yes(text, json)
            }
        }
    }

    fn fate(&self, packet: &Packet) -> Fate {
        match self {
            Self::Rules(rules, ..) => trace(rules, packet).fate,
            Self::LeftAlone(..) => Fate::Untouched,
        }
    }
}

/// The desired rules' answer, then the live ones', and whether they differ.
fn both(desired: &Answer, (live, not_evaluated): &Live, packet: &Packet, fate: Fate) -> Answer {
    let differs = !live_trace::is_as(live, fate);
    let mut text = format!("{}\ndesired rules:\n", packet::sentence(packet));
    let headline = format!("{}\n", packet::sentence(packet));
    text.push_str(desired.text.strip_prefix(&headline).unwrap_or(&desired.text));
    text.push_str("rules in the namespace:\n");
    text.push_str(&live_trace::text(live));
    if differs {
        text.push_str("DIFFERENT: the rules in the namespace do not do what is desired\n");
    }
    let mut json = desired.json.clone();
    insert(&mut json, "live", live_trace::json(live));
    insert(&mut json, "differs", differs.into());
    insert(&mut json, "rules", "desired".into());
    Answer::yes(text, json).noting([desired.notes.clone(), live_trace::notes(not_evaluated)].concat())
}

fn insert(json: &mut Value, key: &str, value: Value) {
    if let Some(members) = json.as_object_mut() {
        members.insert(key.to_owned(), value);
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
