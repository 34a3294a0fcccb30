//! Predicts the outcome of a connection in the recorded network from the rules and from which sockets listen
//! where. Sends no packet.

pub mod ambient;

use crate::failure::Failure;
use crate::vectors::{Flow, Location, Vector};
use gybe_demo::connections::{Control, SideEffect, follows};
use gybe_demo::testnet::outcome::{ConnectionOutcome, Reply};
use gybe_netfilter::apply::redirection::RedirectionError;
use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::live::{LiveRules, LiveTrace, Outcome};
use gybe_netfilter::model::packet::{Connection, ConnectionPhase, Direction, Packet};
use gybe_netfilter::model::policy::istio::PASSTHROUGH_V6;
use gybe_netfilter::model::policy::{
    Families, InterfaceName, InterfaceNameError, Mode, Port, RedirectPolicy,
};
use gybe_netfilter::model::ruleset::{RuleId, Ruleset, Transport};
use ipnet::IpNet;
use nix::errno::Errno;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

impl Flow {
    /// Returns its first packet, as the pod's rules see it.
    ///
    /// # Errors
    /// Never, as long as this file names valid interfaces.
    pub fn packet(&self) -> Result<Packet, InterfaceNameError> {
        let (name, [v4, v6]) = match self.from {
            Location::Pod => self.route(),
            Location::Peer => ("eth0", ["10.244.0.1", "fd00:10::1"]),
            Location::Vm => ("eth1", ["192.168.77.2", "fd00:77::2"]),
            Location::Sec => ("net1", ["172.30.0.1", "fd00:30::1"]),
        };
        let by = InterfaceName::parse(name)?;
        let text = if self.to.is_ipv4() { v4 } else { v6 };
        // A bound source address stays; a connection of the pod to itself comes from its destination address.
        let chosen = self.source.or_else(|| text.parse().ok()).unwrap_or(self.to.ip());
        let source = SocketAddr::new(chosen, self.source_port.unwrap_or(40000));
        let mark = self.mark.unwrap_or(0);
        Ok(match self.from {
            Location::Pod => Packet::first(Direction::Leaves { by }, self.transport, source, self.to)
                .owned_by(self.owner)
                .marked(mark),
            _ => Packet::first(Direction::Arrives { by }, self.transport, source, self.to),
        })
    }

    /// The interface that routing selects in the pod, and the IPv4 and IPv6 source addresses there.
    fn route(&self) -> (&'static str, [&'static str; 2]) {
        let to = self.to.ip();
        let inside = |nets: [&str; 2]| {
            nets.iter().filter_map(|net| net.parse::<IpNet>().ok()).any(|net| net.contains(&to))
        };
        if to.is_loopback() {
            ("lo", ["127.0.0.1", "::1"])
        } else if OWN.iter().any(|own| own.parse() == Ok(to)) {
            ("lo", ["", ""])
        } else if inside(["172.30.0.0/24", "fd00:30::/64"]) {
            ("net1", ["172.30.0.10", "fd00:30::10"])
        } else if inside(["192.168.77.0/24", "fd00:77::/64"]) {
            ("eth1", ["192.168.77.1", "fd00:77::1"])
        } else {
            ("eth0", ["10.244.0.10", "fd00:10::10"])
        }
    }
}

/// The pod's addresses besides loopback.
const OWN: [&str; 6] =
    ["10.244.0.10", "fd00:10::10", "192.168.77.1", "fd00:77::1", "172.30.0.10", "fd00:30::10"];

/// The rules in the recorded pod.
///
/// # Errors
/// When the nft backend cannot write them.
pub fn in_the_pod(rules: &Ruleset) -> Result<LiveRules, RedirectionError> {
    let addresses: Vec<IpAddr> = OWN.iter().filter_map(|own| own.parse().ok()).collect();
    let interfaces = ["eth0", "eth1", "net1"].into_iter().zip(addresses.chunks(2));
    let live = LiveRules::of_ruleset(rules)?;
    Ok(interfaces.fold(live, |live, (name, own)| live.with_interface(name, own)))
}

/// Reports whether the recorded outcome under `policy`, whose rules are `rules`, follows from the trace of the flow's
/// first packet.
///
/// # Errors
/// Never, as long as this file names valid interfaces.
pub fn agrees_with_trace(
    policy: &RedirectPolicy,
    rules: &LiveRules,
    flow: &Flow,
) -> Result<bool, InterfaceNameError> {
    let outcome = trace_flow(rules, flow)?.first;
    let side_effect = flow.side_effect(policy, rules)?;
    let follows = follows(
        outcome,
        Control { to: flow.to, outcome: &flow.without_rules },
        side_effect,
        &flow.with_rules,
    );
    Ok(follows && flow.has_redirection_of(policy, outcome))
}

impl Flow {
    /// Reports whether the trace has the kind of redirection that the mode requires: address translation or
    /// TPROXY. Replies look the same.
    fn has_redirection_of(&self, policy: &RedirectPolicy, outcome: Outcome) -> bool {
        match (policy.mode, outcome) {
            (Mode::Redirect, Outcome::Intercepted(_)) => false,
            (Mode::Tproxy { .. }, Outcome::Intercepted(port)) => port == policy.inbound_port,
            (Mode::Tproxy { .. }, Outcome::Redirected(port)) => {
                self.from == Location::Pod || port != policy.inbound_port
            }
            _ => true,
        }
    }

    /// What the redirection changes besides the first packet.
    fn side_effect(
        &self,
        policy: &RedirectPolicy,
        rules: &LiveRules,
    ) -> Result<SideEffect, InterfaceNameError> {
        let both = policy.families == Families::V4AndV6;
        Ok(match (self.source, policy.mode) {
            (Some(source), _) if source == PASSTHROUGH_V6 && both => SideEffect::AddsSource,
            // The source is not the pod's: only the marks of TPROXY route replies back to the socket.
            (Some(_), Mode::Tproxy { .. }) if self.mark.is_some() => SideEffect::MayLoseReplies,
            (Some(_), Mode::Redirect) if self.mark.is_some() => SideEffect::LosesReplies,
            _ if self.reply_is_captured(rules)? => SideEffect::LosesReplies,
            _ => SideEffect::None,
        })
    }

    /// Reports whether the rules capture the replies to a connection that a virtual machine makes through the pod
    /// and whose first packet they pass. The replies arrive by `eth0`.
    fn reply_is_captured(&self, rules: &LiveRules) -> Result<bool, InterfaceNameError> {
        let first = self.packet()?;
        let through =
            matches!(&self.without_rules, ConnectionOutcome::Replied(answer) if answer.by == "ext-peer");
        if self.from != Location::Vm || !through || rules.trace(&first).first != Outcome::Untouched {
            return Ok(false);
        }
        let by = InterfaceName::parse("eth0")?;
        let connection = Connection { phase: ConnectionPhase::Established, mark: 0 };
        let answer = Packet::first(Direction::Arrives { by }, self.transport, self.to, first.source);
        let answer = rules.trace(&Packet { connection, ..answer });
        Ok(answer.first != Outcome::Untouched || answer.mark != 0)
    }
}

/// Traces the flow's first packet through the rules.
///
/// # Errors
/// Never, as long as this file names valid interfaces.
pub fn trace_flow(rules: &LiveRules, flow: &Flow) -> Result<LiveTrace, InterfaceNameError> {
    Ok(rules.trace(&flow.packet()?))
}

impl Flow {
    /// Returns the flow with the predicted outcome under `policy`, whose rules are `rules`.
    ///
    /// # Errors
    /// Never, as long as this file names valid interfaces.
    pub fn with_predicted_outcome(
        self,
        policy: &RedirectPolicy,
        rules: &LiveRules,
    ) -> Result<Self, InterfaceNameError> {
        let with_rules = self.predicted_outcome(policy, rules)?;
        Ok(Self { with_rules, ..self })
    }

    fn predicted_outcome(
        &self,
        policy: &RedirectPolicy,
        rules: &LiveRules,
    ) -> Result<ConnectionOutcome, InterfaceNameError> {
        // `::6` is on lo only when IPv6 is redirected.
        if policy.families == Families::V4Only && self.source == Some(PASSTHROUGH_V6.into()) {
            return Ok(ConnectionOutcome::Failed(Errno::EADDRNOTAVAIL));
        }
        Ok(match trace_flow(rules, self)?.first {
            Outcome::Dropped => ConnectionOutcome::Timeout,
            Outcome::Intercepted(port) if !TRANSPARENT.contains(&port.get()) => ConnectionOutcome::Timeout,
            Outcome::Intercepted(port) | Outcome::Redirected(port) => self.redirected_to(port),
            Outcome::Untouched if self.loses_its_replies(policy, rules)? => ConnectionOutcome::Timeout,
            _ => self.outcome_without_rules(),
        })
    }

    fn redirected_to(&self, port: Port) -> ConnectionOutcome {
        let loopback = match self.to {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        self.in_the_pod(SocketAddr::new(loopback, port.get()))
    }

    /// With TPROXY, later packets of every connection are delivered to the pod itself: also the replies to a
    /// forwarded connection whose first packet came by an interface that is not captured (recorded: random-030).
    fn loses_its_replies(
        &self,
        policy: &RedirectPolicy,
        rules: &LiveRules,
    ) -> Result<bool, InterfaceNameError> {
        let Mode::Tproxy { mark, .. } = policy.mode else { return Ok(false) };
        if !self.is_forwarded() {
            return Ok(false);
        }
        let first = self.packet()?;
        let by = InterfaceName::parse(if self.from == Location::Vm { "eth0" } else { "eth1" })?;
        let answer =
            Packet::first(Direction::Arrives { by }, self.transport, first.destination, first.source);
        let connection = Connection { phase: ConnectionPhase::Established, ..answer.connection };
        Ok(rules.trace(&Packet { connection, ..answer }).mark == mark)
    }
}

impl Flow {
    /// Returns its outcome without rules.
    pub fn outcome_without_rules(&self) -> ConnectionOutcome {
        let to = self.to;
        let is_one_of = |addresses: [&str; 2]| addresses.contains(&to.ip().to_string().as_str());
        if is_own(to.ip()) {
            self.in_the_pod(to)
        } else if self.is_forwarded() && is_one_of(VM) {
            ConnectionOutcome::Refused
        } else {
            let by = if self.from == Location::Pod && is_one_of(SEC) { "ext-sec" } else { "ext-peer" };
            self.answered_by(by.into(), None)
        }
    }

    /// The outcome of a connection to the pod's address `to`: the listener there, or refused.
    pub fn in_the_pod(&self, to: SocketAddr) -> ConnectionOutcome {
        let port = to.port();
        let is_dns_proxy = port == 15053 && ["127.0.0.1", "::1"].contains(&to.ip().to_string().as_str());
        let by = match self.transport {
            Transport::Tcp if PROXY_PORTS.contains(&port) || is_dns_proxy => "envoy",
            Transport::Tcp if APP_PORTS.contains(&port) => "app",
            Transport::Udp if is_dns_proxy => "envoy",
            Transport::Udp if [53, 8080].contains(&port) => "app",
            _ => return ConnectionOutcome::Refused,
        };
        let original = (self.transport == Transport::Tcp).then_some(self.to);
        self.answered_by(format!("{by}:{port}"), original)
    }

    fn answered_by(&self, by: String, original: Option<SocketAddr>) -> ConnectionOutcome {
        let source = self.packet().map_or(self.to.ip(), |packet| packet.source.ip());
        ConnectionOutcome::Replied(Reply { by, original, source })
    }

    /// Reports whether the pod forwards it.
    pub fn is_forwarded(&self) -> bool {
        self.from != Location::Pod && !is_own(self.to.ip())
    }
}

const VM: [&str; 2] = ["192.168.77.2", "fd00:77::2"];
const SEC: [&str; 2] = ["172.30.0.1", "fd00:30::1"];
const PROXY_PORTS: [u16; 7] = [15000, 15001, 15006, 15008, 15020, 15021, 15090];
const APP_PORTS: [u16; 6] = [22, 53, 4000, 5000, 8080, 9000];

/// The pod's ports with transparent listeners.
pub const TRANSPARENT: [u16; 2] = [15001, 15006];

/// Reports whether the pod has this address.
pub(crate) fn is_own(ip: IpAddr) -> bool {
    const OWN: [&str; 6] =
        ["10.244.0.10", "192.168.77.1", "172.30.0.10", "fd00:10::10", "fd00:77::1", "fd00:30::10"];
    ip.is_loopback() || OWN.contains(&ip.to_string().as_str())
}

/// A policy's rules without one of them, and the flows to check.
#[derive(Debug, Clone)]
pub struct Mutant {
    /// The missing rule.
    pub rule: RuleId,
    pub vector: Vector,
    /// The other rules.
    pub rules: Ruleset,
    /// Whether `vector.flows` are only those whose outcome changes in the trace. Otherwise they are all.
    pub predicted: bool,
}

/// Returns, for every rule of the policies, the mutants without it, the quickest to check first: policies where
/// the trace changes, then all others that have the rule.
///
/// # Errors
/// When the nft backend cannot write the rules.
pub fn mutants(vectors: &[Vector]) -> Result<BTreeMap<RuleId, Vec<Mutant>>, Failure> {
    let mut all: BTreeMap<RuleId, Vec<Mutant>> = BTreeMap::new();
    for vector in vectors {
        let rules = compile(&vector.policy);
        let whole = in_the_pod(&rules)?;
        for rule in rules.rules().map(|(_, rule)| rule.id) {
            let Some(rest) = rules.without(rule.0) else { continue };
            let changed = changed_flows(&whole, &in_the_pod(&rest)?, &vector.flows)?;
            let predicted = !changed.is_empty();
            let flows = if predicted { changed } else { vector.flows.clone() };
            let mutant = Mutant { rule, vector: Vector { flows, ..vector.clone() }, rules: rest, predicted };
            all.entry(rule).or_default().push(mutant);
        }
    }
    for mutants in all.values_mut() {
        mutants.sort_by_key(|mutant| !mutant.predicted);
    }
    Ok(all)
}

/// The flows whose outcome in the trace differs between `rules` and `rest`.
fn changed_flows(rules: &LiveRules, rest: &LiveRules, flows: &[Flow]) -> Result<Vec<Flow>, Failure> {
    let mut changed = Vec::new();
    for flow in flows {
        if trace_flow(rules, flow)?.first != trace_flow(rest, flow)?.first {
            changed.push(flow.clone());
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;
    use compile;

    #[test]
    fn trace_predicts_every_recorded_flow() {
        let mut wrong = Vec::new();
        for vector in vectors::all().unwrap() {
            let rules = in_the_pod(&compile(&vector.policy)).unwrap();
            for flow in &vector.flows {
                let trace = trace_flow(&rules, flow).unwrap();
                if !agrees_with_trace(&vector.policy, &rules, flow).unwrap() {
                    wrong.push(format!(
                        "{} {}: {} predicted {:?} by {:?}",
                        vector.name, flow.id, flow.with_rules, trace.first, trace.decided_by
                    ));
                }
            }
        }
        assert!(wrong.is_empty(), "{} flows:\n{}", wrong.len(), wrong.join("\n"));
    }

    #[test]
    fn without_rules_trace_predicts_the_control_and_not_the_policy() {
        for vector in vectors::all().unwrap() {
            let no_rules = Ruleset { families: vector.policy.families, chains: Vec::new() };
            let no_rules = in_the_pod(&no_rules).unwrap();
            let mut missed = 0;
            for flow in &vector.flows {
                let predicted = trace_flow(&no_rules, flow).unwrap().first;
                assert_eq!(predicted, Outcome::Untouched, "{} {}", vector.name, flow.id);
                let control = Control { to: flow.to, outcome: &flow.without_rules };
                assert!(
                    follows(predicted, control, SideEffect::None, &flow.without_rules),
                    "{} {}",
                    vector.name,
                    flow.id
                );
                missed += usize::from(!follows(predicted, control, SideEffect::None, &flow.with_rules));
            }
            assert!(missed > 0, "no flow of {} needs its rules", vector.name);
        }
    }
}
