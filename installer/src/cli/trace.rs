//! `gybe trace`: predicts the destination of a connection, and names the rules that decide it.

use super::input::DirectoriesArg;
use super::namespace::{FamiliesArg, NAMESPACE, NamespaceArgs, OpenNamespace};
use super::output::{CommandError, CommandOutput};
use super::packet::{self, ChosenRoute, PacketArgs};
use super::policy_source::{IgnoreInitArg, PolicyArgs, Requested, Target};
use super::style::{bad, examples};
use crate::error::chain;
use crate::pod::cgroups::Cgroups;
use clap::Args;
use gybe_netfilter::apply::redirection::RedirectionError;
use gybe_netfilter::compile::compile_any;
use gybe_netfilter::inspect::live::{LiveRules, LiveStep, LiveTrace, Outcome};
use gybe_netfilter::inspect::show::show_rule;
use gybe_netfilter::kernel::routes::{Link, Route, Rtnetlink};
use gybe_netfilter::model::packet::{Direction, Packet};
use gybe_netfilter::model::policy::{Families, InterfaceName, Policy};
use gybe_netfilter::model::ruleset::{Family, Ruleset};
use nix::errno::Errno;
use serde_json::{Value, json};
use std::fmt::Write;
use std::net::IpAddr;

/// Predict where a connection goes, and name the rules that decide it
///
/// Sends no packet and writes no rule. With --netns, --pid or --container-id the connection passes all rules of that
/// network namespace, whichever program wrote them; with --policy or --pod it passes the rules of that policy. With
/// both it passes both, and the output reports whether they differ; the policy is then for the addresses and families
/// of the namespace.
#[derive(Debug, Args)]
#[command(mut_arg("families", |families| families.conflicts_with(NAMESPACE)))]
#[command(after_help = examples(&[
    "gybe trace --netns /run/netns/x out tcp 10.1.2.3:80 --uid 1000",
    "gybe trace --policy policy.json out tcp 10.1.2.3:80 --uid 1000",
    "gybe trace --pod pod.yaml in tcp 10.244.0.10:8080",
    "gybe trace --pod pod.yaml out tcp 10.244.0.10:8080 --uid 1337 --pod-ip 10.244.0.10",
]))]
pub(super) struct TraceArgs {
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    directories: DirectoriesArg,
    #[command(flatten)]
    families: FamiliesArg,
    #[command(flatten)]
    init: IgnoreInitArg,
    #[command(flatten)]
    packet: PacketArgs,
}

impl TraceArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let is_live = self.namespace.is_given();
        let namespace = is_live.then(|| self.namespace.open(&self.directories)).transpose()?;
        let addresses = namespace.as_ref().map(OpenNamespace::addresses).transpose()?;
        let route = namespace.as_ref().map(|namespace| self.route(namespace)).transpose()?.flatten();
        let chosen = route.as_ref().and_then(|route| route.as_ref().ok());
        let packet = self.packet.packet(addresses.as_deref().unwrap_or_default(), chosen)?;
        let Some(namespace) = namespace else { return Ok(self.desired(addresses, &packet)?.output(&packet)) };
        let desired = self.policy.is_given().then(|| self.desired(addresses, &packet)).transpose()?;
        let live = self.live(&namespace, &packet, desired.as_ref(), route.and_then(Result::err))?;
        Ok(desired.map_or_else(|| live.output(&packet), |desired| both(&desired, &live, &packet)))
    }

    fn desired(&self, addresses: Option<Vec<IpAddr>>, packet: &Packet) -> Result<DesiredRules, CommandError> {
        let source = self.policy.one()?;
        let target = Target::of(addresses, self.families.families());
        Ok(match source.requested(&target, self.init.gate())? {
            Requested::Redirect(policy) => {
                let rules = compile_any(&policy);
                let cannot = |why| CommandError::hinted("cannot evaluate the rules of the policy", why);
                let trace = traced(&rules, &policy, packet).map_err(cannot)?;
                DesiredRules::Rules { rules, trace: Box::new(trace), policy, warnings: source.warnings() }
            }
            Requested::LeaveAlone { reason, hint } => {
                DesiredRules::None { origin: source.origin().to_owned(), reason, hint }
            }
        })
    }

    fn live(
        &self,
        namespace: &OpenNamespace,
        packet: &Packet,
        desired: Option<&DesiredRules>,
        refused: Option<Errno>,
    ) -> Result<Live, CommandError> {
        let (read, cgroups) = namespace.inside(|| (LiveRules::read(), Cgroups::of_this_namespace()))?;
        let read = match read {
            Err(why) if why.is_incomplete() => {
                let notes = vec![format!("note: not evaluated: {}", chain(&why))];
                return Ok(Live { trace: LiveTrace::not_known(), refused, notes });
            }
            read => read.map_err(|why| {
                CommandError::hinted(format!("cannot read the rules in {}", namespace.path()), why)
            }),
        };
        let mut rules = read?.with_interface("", self.packet.pod_addresses());
        rules = rules.with_programs(cgroups.programs());
        if let Some(DesiredRules::Rules { policy, .. }) = desired {
            rules = rules.with_listeners_of(policy);
        }
        Ok(Live { trace: rules.trace(packet), refused, notes: not_evaluated(&rules) })
    }

    fn route(&self, namespace: &OpenNamespace) -> Result<Option<KernelRoute>, CommandError> {
        let cannot =
            |why| CommandError::hinted(format!("cannot query the routes in {}", namespace.path()), why);
        namespace.inside(|| {
            let mut rtnetlink = Rtnetlink::open().map_err(cannot)?;
            let links = rtnetlink.links().map_err(cannot)?;
            let Some(query) = self.packet.route_query(&links)? else { return Ok(None) };
            Ok(match rtnetlink.route(query).map_err(cannot)? {
                Ok(route) => chosen(&route, &links).map(Ok),
                Err(errno) => Some(Err(errno)),
            })
        })?
    }
}

/// The kernel's route for a connection, or the error of connect(2).
type KernelRoute = Result<ChosenRoute, Errno>;

fn chosen(route: &Route, links: &[Link]) -> Option<ChosenRoute> {
    let link = links.iter().find(|link| link.index == route.interface)?;
    Some(ChosenRoute { interface: InterfaceName::parse(&link.name).ok()?, source: route.source })
}

/// The path through the rules in the namespace, and notes about rules that were not evaluated.
struct Live {
    trace: LiveTrace,
    /// Why the kernel refuses the connection before any rule.
    refused: Option<Errno>,
    notes: Vec<String>,
}

impl Live {
    fn output(&self, packet: &Packet) -> CommandOutput {
        let text = format!("{}\n{}", packet::sentence(packet), self.text());
        let mut json = self.json();
        insert(&mut json, "packet", packet::as_json(packet));
        insert(&mut json, "rules", "live".into());
        CommandOutput::done(text, json).with_notes(self.notes.clone())
    }

    fn text(&self) -> String {
        match self.refused {
            Some(why) => format!("is refused by the kernel before any rule: {} ({why})\n", obstacle(why)),
            None => path_text(&self.trace),
        }
    }

    fn json(&self) -> Value {
        match self.refused {
            Some(why) => json!({ "outcome": "no-route", "obstacle": why.to_string(), "steps": [] }),
            None => path_json(&self.trace),
        }
    }
}

/// The kind of route for which the kernel returns this error (`fib_props`, net/ipv4/fib_semantics.c;
/// `ip6_rt_type_to_error`, net/ipv6/route.c, v6.18).
fn obstacle(refused: Errno) -> &'static str {
    match refused {
        Errno::EHOSTUNREACH => "an `unreachable` route",
        Errno::EACCES => "a `prohibit` route",
        Errno::EINVAL => "a `blackhole` route, or a source that is not an address of the namespace",
        _ => "no route",
    }
}

/// The rules of a policy or a pod.
enum DesiredRules {
    Rules { rules: Ruleset, trace: Box<LiveTrace>, policy: Policy, warnings: Vec<String> },
    None { origin: String, reason: String, hint: Option<String> },
}

impl DesiredRules {
    fn output(&self, packet: &Packet) -> CommandOutput {
        match self {
            Self::Rules { rules, trace, policy, warnings } => {
                let notes = notes(policy.families(), packet.family());
                output(rules, trace, packet).with_notes([warnings.clone(), notes].concat())
            }
            Self::None { origin, reason, hint } => {
                let text = format!("{origin} is left alone: {reason}\n");
                let json =
                    json!({ "packet": packet::as_json(packet), "outcome": "untouched", "reason": reason });
                CommandOutput::done(text, json).with_notes(hint.iter().cloned().collect())
            }
        }
    }

    fn outcome(&self) -> Outcome {
        match self {
            Self::Rules { trace, .. } => trace.outcome,
            Self::None { .. } => Outcome::Untouched,
        }
    }
}

/// Follows the packet through the rules in a pod whose only address is the packet's: the source of one that leaves, the
/// destination of one that arrives.
fn traced(rules: &Ruleset, policy: &Policy, packet: &Packet) -> Result<LiveTrace, RedirectionError> {
    let (by, own) = match &packet.direction {
        Direction::Leaves { by } => (by, packet.source.ip()),
        Direction::Arrives { by } => (by, packet.destination.ip()),
    };
    let rules = LiveRules::of_ruleset(rules)?.with_listeners_of(policy).with_interface(by.as_str(), &[own]);
    Ok(rules.trace(packet))
}

/// Returns the path through the desired rules, the path through the live ones, and whether the outcomes differ.
fn both(desired: &DesiredRules, live: &Live, packet: &Packet) -> CommandOutput {
    let desired_outcome = desired.outcome();
    let is_same = live.trace.outcome == desired_outcome && desired_outcome != Outcome::Unknown;
    let differs = live.refused.is_some() || !is_same;
    let desired = desired.output(packet);
    let headline = format!("{}\n", packet::sentence(packet));
    let mut text = format!("{headline}desired rules:\n");
    text.push_str(desired.text.strip_prefix(&headline).unwrap_or(&desired.text));
    text.push_str("rules in the namespace:\n");
    text.push_str(&live.text());
    if differs {
        let _ = writeln!(text, "{}: the outcome in the namespace is not the desired one", bad("DIFFERENT"));
    }
    let mut json = desired.json;
    insert(&mut json, "live", live.json());
    insert(&mut json, "differs", differs.into());
    insert(&mut json, "rules", "desired".into());
    let notes = [desired.notes, live.notes.clone()].concat();
    CommandOutput::done(text, json).with_notes(notes)
}

fn insert(json: &mut Value, key: &str, value: Value) {
    if let Some(members) = json.as_object_mut() {
        members.insert(key.to_owned(), value);
    }
}

fn output(rules: &Ruleset, path: &LiveTrace, packet: &Packet) -> CommandOutput {
    let mut text = format!("{}\n", packet::sentence(packet));
    for step in &path.steps {
        let rule = rules.rules().find(|(_, rule)| step.id.as_deref() == Some(rule.id.0));
        let rule = rule.map_or_else(String::new, |(_, rule)| show_rule(rule));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:<18} {rule}", step.chain);
    }
    let by = path.rule().map_or("no rule applies".to_owned(), |rule| format!("rule {rule}"));
    let _ = writeln!(text, "{} ({by})", sentence(path.outcome));
    let (outcome, port) = outcome_and_port(path.outcome);
    let steps = path.steps.iter().map(|step| json!({ "chain": step.chain, "rule": step.id }));
    let json = json!({
        "packet": packet::as_json(packet),
        "outcome": outcome,
        "port": port,
        "decided_by": path.rule(),
        "steps": steps.collect::<Vec<_>>(),
        "zone": path.zone,
        "mark": path.mark,
    });
    CommandOutput::done(text, json)
}

fn notes(redirected: Families, packet: Family) -> Vec<String> {
    match (redirected, packet) {
        (Families::V4Only, Family::V6) => vec!["note: IPv6 is left alone here".to_owned()],
        _ => Vec::new(),
    }
}

fn sentence(outcome: Outcome) -> String {
    match outcome {
        Outcome::Redirected(port) => format!("goes to the proxy's port {port}"),
        Outcome::Intercepted(port) => format!("is handed to the proxy's transparent port {port}"),
        other => other.to_string(),
    }
}

fn path_text(live: &LiveTrace) -> String {
    let mut text = String::new();
    for step in &live.steps {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {step}");
    }
    let _ = writeln!(text, "{} ({})", live.outcome, reason(live));
    text
}

fn reason(live: &LiveTrace) -> String {
    if let Some(obstacle) = &live.obstacle {
        return obstacle.clone();
    }
    match (&live.order, &live.decided_by) {
        (Some([first, second]), _) => {
            format!("the kernel does not report which of these comes first: {first}; {second}")
        }
        (None, Some(LiveStep { id: Some(id), .. })) => format!("rule {id}"),
        (None, Some(step)) if live.outcome == Outcome::Unknown => format!("it depends on {step}"),
        (None, Some(step)) => format!("by {step}"),
        (None, None) if live.outcome == Outcome::Unknown => "not all rules were evaluated".to_owned(),
        (None, None) => "no rule applies".to_owned(),
    }
}

/// The name of an outcome, and the port that it leads to.
fn outcome_and_port(outcome: Outcome) -> (&'static str, Option<u16>) {
    match outcome {
        Outcome::Untouched => ("untouched", None),
        Outcome::Redirected(port) => ("redirected", Some(port.get())),
        Outcome::Intercepted(port) => ("intercepted", Some(port.get())),
        Outcome::Translated(_) => ("translated", None),
        Outcome::Dropped => ("dropped", None),
        Outcome::RepliesLost => ("answers-lost", None),
        Outcome::Unknown => ("unknown", None),
    }
}

fn path_json(live: &LiveTrace) -> Value {
    let (outcome, port) = outcome_and_port(live.outcome);
    let translated = match live.outcome {
        Outcome::Translated(address) => Some(address),
        _ => None,
    };
    let decided_by = live.decided_by.as_ref();
    json!({
        "outcome": outcome,
        "port": port,
        "to": translated,
        "decided_by": decided_by.and_then(|step| step.id.clone()),
        "by": decided_by.map(step),
        "obstacle": live.obstacle,
        "steps": live.steps.iter().map(step).collect::<Vec<_>>(),
        "zone": live.zone,
        "mark": live.mark,
    })
}

fn step(step: &LiveStep) -> Value {
    json!({ "place": step.place, "rule": step.rule, "id": step.id, "ours": step.is_ours })
}

/// Returns notes about rules that were not evaluated, and about eBPF programs that can only pass or drop.
fn not_evaluated(rules: &LiveRules) -> Vec<String> {
    let rules_left_out = rules.not_evaluated().iter().map(|one| format!("note: not evaluated: {one}"));
    rules_left_out.chain(rules.notes().iter().map(|note| format!("note: {note}"))).collect()
}
