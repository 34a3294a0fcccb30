//! Evaluates a Ruleset for one packet, as the kernel would. Pure.
//!
//! The order is the kernel's: raw, mangle, NAT on output; a packet that leaves by `lo` arrives there again with its
//! conntrack entry, so that zone and NAT are decided once.

mod packet;
mod walk;

pub use packet::{Connection, ConnectionPhase, Direction, Owner, Packet, Transport};

use crate::policy::{InterfaceName, Port};
use crate::ruleset::{ChainName, Hook, RuleId, Ruleset, Stage};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use walk::{ChainEnd, walk};

/// The outcome of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketOutcome {
    /// It keeps its destination.
    Untouched,
    /// It goes to this port of the pod; the listener sees the original target by `SO_ORIGINAL_DST`.
    Redirected(Port),
    /// It is handed to the transparent socket on this port, addresses unchanged.
    Intercepted(Port),
    /// It is dropped.
    Dropped,
}

/// A rule that applied to the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Its chain.
    pub chain: ChainName,
    /// Its id.
    pub rule: RuleId,
}

/// The path of a packet through the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Its outcome.
    pub outcome: PacketOutcome,
    /// The rule that decided the outcome; `None` when no rule ended the evaluation.
    pub decided_by: Option<RuleId>,
    /// Every rule that applied, in order.
    pub steps: Vec<Step>,
    /// The conntrack zone chosen for it, if any.
    pub zone: Option<u16>,
    /// Its mark at the end.
    pub mark: u32,
}

/// Follows `packet` through `rules`.
pub fn trace(rules: &Ruleset, packet: &Packet) -> Trace {
    let mut tracer = Tracer {
        rules,
        packet: packet.clone(),
        trace: Trace {
            outcome: PacketOutcome::Untouched,
            decided_by: None,
            steps: Vec::new(),
            zone: None,
            mark: 0,
        },
    };
    match &packet.direction {
        Direction::Arrives { .. } => tracer.arrives(&[Stage::Raw, Stage::Mangle, Stage::Nat]),
        Direction::Leaves { .. } => tracer.leaves(),
    }
    tracer.trace.mark = tracer.packet.mark;
    tracer.trace
}

struct Tracer<'a> {
    rules: &'a Ruleset,
    packet: Packet,
    trace: Trace,
}

impl Tracer<'_> {
    fn leaves(&mut self) {
        for stage in [Stage::Raw, Stage::Mangle, Stage::Nat] {
            if !self.stage(Hook::Output, stage) {
                return;
            }
        }
        if self.packet.leaves_by_loopback() {
            self.packet.direction = Direction::Arrives { by: InterfaceName::loopback() };
            // It keeps its conntrack entry: `nf_conntrack_in` ignores it (net/netfilter/
            // nf_conntrack_core.c, v6.18) and its destination is translated already.
            self.arrives(&[Stage::Mangle]);
        }
    }

    fn arrives(&mut self, stages: &[Stage]) {
        for stage in stages {
            if !self.stage(Hook::Prerouting, *stage) {
                return;
            }
        }
    }

    /// Runs the chain at one hook and stage; reports whether the packet goes on to the next.
    fn stage(&mut self, hook: Hook, stage: Stage) -> bool {
        let is_evaluated = stage != Stage::Nat || self.packet.connection.phase == ConnectionPhase::New;
        let base = self
            .rules
            .chains
            .iter()
            .find(|chain| chain.name.hook() == Some(hook) && chain.name.stage() == stage);
        let Some(base) = base.filter(|_| is_evaluated) else { return true };
        let outcome = walk(self.rules, base, &mut self.packet, &mut self.trace);
        match outcome {
            ChainEnd::Passes(rule) => {
                if self.trace.outcome == PacketOutcome::Untouched {
                    self.trace.decided_by = rule.or(self.trace.decided_by);
                }
                true
            }
            ChainEnd::Redirected(rule, port) => {
                self.decide(PacketOutcome::Redirected(port), rule);
                self.turn_to(port, hook);
                true
            }
            ChainEnd::Intercepted(rule, port) => {
                self.decide(PacketOutcome::Intercepted(port), rule);
                false
            }
            ChainEnd::Dropped(rule) => {
                self.decide(PacketOutcome::Dropped, rule);
                false
            }
        }
    }

    fn decide(&mut self, outcome: PacketOutcome, rule: RuleId) {
        self.trace.outcome = outcome;
        self.trace.decided_by = Some(rule);
    }

    /// At output the kernel redirects to loopback (net/netfilter/nf_nat_redirect.c, v6.18).
    fn turn_to(&mut self, port: Port, hook: Hook) {
        if hook == Hook::Output {
            let loopback: IpAddr = match self.packet.destination {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            self.packet.destination = SocketAddr::new(loopback, port.get());
            self.packet.direction = Direction::Leaves { by: InterfaceName::loopback() };
        }
    }
}
