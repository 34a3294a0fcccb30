//! What `trace` says of a recorded flow, held against what became of it. No packet is sent here.

use crate::vectors::{Flow, Location};
use gybe_installer::demo::predicted::{Control, SideEffect, follows};
use gybe_installer::testnet::outcome::ConnectionOutcome;
use gybe_netfilter::compile::{PASSTHROUGH_V6, compile};
use gybe_netfilter::policy::{Families, InterfaceName, InterfaceNameError, Mode, RedirectPolicy};
use gybe_netfilter::ruleset::Ruleset;
use gybe_netfilter::trace::{self, Connection, ConnectionPhase, Direction, Packet, trace};
use ipnet::IpNet;
use std::net::SocketAddr;

impl Flow {
    /// Its first packet, as the pod's rules see it.
    ///
    /// # Errors
    /// Never, as long as this file names real interfaces.
    pub fn packet(&self) -> Result<Packet, InterfaceNameError> {
        let (name, [v4, v6]) = match self.from {
            Location::Pod => self.leaves_by(),
            Location::Peer => ("eth0", ["10.244.0.1", "fd00:10::1"]),
            Location::Vm => ("eth1", ["192.168.77.2", "fd00:77::2"]),
            Location::Sec => ("net1", ["172.30.0.1", "fd00:30::1"]),
        };
        let by = InterfaceName::parse(name)?;
        let text = if self.to.is_ipv4() { v4 } else { v6 };
        // An address bound first stays; to itself the pod speaks from the address it asks for.
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

    /// The interface routing chooses in the pod, and the addresses it gives a packet there.
    fn leaves_by(&self) -> (&'static str, [&'static str; 2]) {
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

/// The pod's own addresses beside loopback.
const OWN: [&str; 6] =
    ["10.244.0.10", "fd00:10::10", "192.168.77.1", "fd00:77::1", "172.30.0.10", "fd00:30::10"];

/// Does what became of the flow under `policy` follow from what `trace` says of its first packet?
///
/// # Errors
/// Never, as long as this file names real interfaces.
pub fn foretells(policy: &RedirectPolicy, flow: &Flow) -> Result<bool, InterfaceNameError> {
    let rules = compile(policy);
    let fate = foretell(&rules, flow)?.outcome;
    let beside = flow.beside(policy, &rules)?;
    let follows =
        follows(fate, Control { to: flow.to, outcome: &flow.without_rules }, beside, &flow.with_rules);
    Ok(follows && flow.is_taken_as(policy, fate))
}

impl Flow {
    /// Turned by address translation or taken by TPROXY: the answers look the same, and the mode
    /// says which it must be for what arrives and for what only passes through `lo`.
    fn is_taken_as(&self, policy: &RedirectPolicy, fate: trace::PacketOutcome) -> bool {
        match (policy.mode, fate) {
            (Mode::Redirect, trace::PacketOutcome::Intercepted(_)) => false,
            (Mode::Tproxy { .. }, trace::PacketOutcome::Intercepted(port)) => port == policy.inbound_port,
            (Mode::Tproxy { .. }, trace::PacketOutcome::Redirected(port)) => {
                self.from == Location::Pod || port != policy.inbound_port
            }
            _ => true,
        }
    }

    /// What the redirect does to it beside the rules its first packet meets.
    fn beside(&self, policy: &RedirectPolicy, rules: &Ruleset) -> Result<SideEffect, InterfaceNameError> {
        let both = policy.families == Families::V4AndV6;
        Ok(match (self.source, policy.mode) {
            (Some(source), _) if source == PASSTHROUGH_V6 && both => SideEffect::AddsSource,
            // A foreign address: its answers find the way back by marks alone, and only TPROXY has any.
            (Some(_), Mode::Tproxy { .. }) if self.mark.is_some() => SideEffect::MayLoseReplies,
            (Some(_), Mode::Redirect) if self.mark.is_some() => SideEffect::LosesReplies,
            _ if self.answer_is_taken(rules)? => SideEffect::LosesReplies,
            _ => SideEffect::None,
        })
    }

    /// A machine behind the pod calls the world through it, and the rules leave that alone; are its
    /// answers left alone too, as they come in by `eth0`?
    fn answer_is_taken(&self, rules: &Ruleset) -> Result<bool, InterfaceNameError> {
        let first = self.packet()?;
        let through =
            matches!(&self.without_rules, ConnectionOutcome::Answered(answer) if answer.by == "ext-peer");
        if self.from != Location::Vm
            || !through
            || trace(rules, &first).outcome != trace::PacketOutcome::Untouched
        {
            return Ok(false);
        }
        let by = InterfaceName::parse("eth0")?;
        let connection = Connection { phase: ConnectionPhase::Established, mark: 0 };
        let answer = Packet::first(Direction::Arrives { by }, self.transport, self.to, first.source);
        let answer = trace(rules, &Packet { connection, ..answer });
        Ok(answer.outcome != trace::PacketOutcome::Untouched || answer.mark != 0)
    }
}

/// What `trace` says of the flow under these rules.
///
/// # Errors
/// Never, as long as this file names real interfaces.
pub fn foretell(rules: &Ruleset, flow: &Flow) -> Result<trace::Trace, InterfaceNameError> {
    Ok(trace(rules, &flow.packet()?))
}
