//! Follows a connection through all rules of a namespace, as the kernel does: its outcome, and the rules that
//! decide it. Pure.
//!
//! The walk follows up to four packets: the first, its reply, and for TCP one more in each direction. A test whose
//! result the walk does not know (a limit, a packet's length, an expression without a decoder) is tried with both
//! results; the outcome is unknown only when it depends on them.
//!
//! `path` takes a packet from hook to hook, `hooks` orders the chains at a hook, `chain` runs one chain, `actions`
//! changes the packet and its connection; `choices` holds the values that are tried.

mod actions;
mod bits;
mod chain;
mod choices;
mod hooks;
mod packet;
mod path;
mod xt;

use crate::inspect::live::rules::NamespaceRules;
use crate::model::packet::{ConnectionPhase, Direction, Owner, Packet};
use crate::model::policy::{Mark, Port};
use crate::model::ruleset::Transport;
pub(crate) use choices::Budget;
use choices::{Choices, UnknownFact};
use packet::{ConntrackEntry, CurrentPacket, HookInterface, PacketTracking, Zone};
use std::net::SocketAddr;

/// The outcome of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Outcome {
    /// It keeps its destination.
    Untouched,
    /// It goes to this port of the pod.
    Redirected(Port),
    /// It is handed to the transparent socket on this port.
    Intercepted(Port),
    /// It goes to this other address.
    Translated(SocketAddr),
    /// Its first packet is dropped.
    Dropped,
    /// Its first packet arrives; its reply or a later packet does not, or not as part of the connection.
    RepliesLost,
    /// It depends on facts that are not known.
    #[default]
    Unknown,
}

/// The position of a rule: indices into the chains of the namespace and the rules of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RuleAt {
    /// The base chain that led to it.
    pub(crate) base: usize,
    pub(crate) chain: usize,
    /// `usize::MAX` for the policy of the base chain.
    pub(crate) rule: usize,
}

/// The path of a connection through the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WalkResult {
    pub(crate) outcome: Outcome,
    /// The outcome of the first packet alone.
    pub(crate) first: Outcome,
    /// The rule that decided the outcome.
    pub(crate) decided_by: Option<RuleAt>,
    /// The rules that applied to the first packet, in order, up to `MAX_STEPS`.
    pub(crate) steps: Vec<RuleAt>,
    pub(crate) mark: u32,
    pub(crate) zone: Option<u16>,
    /// Two chains whose order decides the outcome and is not known.
    pub(crate) order: Option<(usize, usize)>,
}

impl WalkResult {
    /// Reports whether the connection ends the same.
    fn is_same_as(&self, other: &Self) -> bool {
        self.outcome == other.outcome && self.has_mark_of(other)
    }

    /// Reports whether the mark of an intercepted packet is the same: routing delivers the packet by it.
    pub(crate) fn has_mark_of(&self, other: &Self) -> bool {
        self.mark == other.mark || !matches!(self.outcome, Outcome::Intercepted(_))
    }

    /// Reports whether the rules lead the first packet to the proxy.
    pub(crate) fn redirects(&self) -> bool {
        matches!(self.first, Outcome::Redirected(_) | Outcome::Intercepted(_))
    }
}

/// The owners of the listening sockets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listeners {
    /// At the ports that connections are redirected to, and at the other ports of the proxy.
    pub(crate) proxy: Owner,
    /// The mark of the proxy's sockets; 0 for a sidecar's.
    pub(crate) proxy_mark: Mark,
    /// At the pod's other ports.
    pub(crate) application: Owner,
}

/// Other ports that Istio's proxy and agent listen on.
const PROXY_PORTS: [u16; 6] = [15000, 15008, 15020, 15021, 15053, 15090];

/// Follows a connection whose first packet is `packet`; the outcome is unknown when the budget is spent.
pub(crate) fn walk<'n>(
    rules: &'n NamespaceRules,
    packet: &Packet,
    listeners: Listeners,
    budget: &'n Budget,
) -> WalkResult {
    let mut choices = Choices::within(budget);
    let mut first: Option<WalkResult> = None;
    loop {
        let (walked, tried) = Walk::new(rules, packet, listeners, choices).run(packet);
        choices = tried;
        match &first {
            None => first = Some(walked),
            Some(before) if before.is_same_as(&walked) => {}
            Some(before) => return depends(before, choices.last()),
        }
        if !choices.next() {
            break;
        }
        if choices.are_too_many() {
            return first.map_or_else(WalkResult::default, |first| depends(&first, choices.last()));
        }
    }
    first.unwrap_or_default()
}

/// The result when the outcome depends on that fact.
fn depends(walked: &WalkResult, on: Option<&UnknownFact>) -> WalkResult {
    let (decided_by, order) = match on {
        Some(UnknownFact::Applies(at)) => (Some(*at), None),
        Some(UnknownFact::Order(first, second)) => (walked.decided_by, Some((*first, *second))),
        None => (walked.decided_by, None),
    };
    WalkResult { outcome: Outcome::Unknown, first: Outcome::Unknown, decided_by, order, ..walked.clone() }
}

/// How a chain or a hook ended for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HookEnd {
    Passes,
    Dropped,
    Unknown,
}

/// Where the path of a packet ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PacketEnd {
    /// At a socket of the namespace.
    Inside,
    /// At an interface that it leaves by.
    Outside,
    Dropped,
    Unknown,
}

/// The first packet at the end of its path.
struct First {
    packet: CurrentPacket,
    end: PacketEnd,
    outcome: Outcome,
}

impl First {
    fn is_intercepted(&self) -> bool {
        matches!(self.outcome, Outcome::Intercepted(_))
    }
}

struct Walk<'n> {
    rules: &'n NamespaceRules,
    listeners: Listeners,
    choices: Choices<'n>,
    rule: chain::RunningRule,
    packet: CurrentPacket,
    /// The connections that connection tracking has; that of `packet` is at `current`.
    entries: Vec<ConntrackEntry>,
    current: usize,
    /// The mark by which routing delivers the packets of an intercepted connection to the namespace.
    delivered_by: Option<u32>,
    /// The packet goes to a socket of the namespace that has the address of another host: only the packet's mark leads
    /// it there.
    is_delivered_by_mark: bool,
    /// A chain of type route has changed the mark of the packet.
    is_routed_again: bool,
    steps: Vec<RuleAt>,
    decided_by: Option<RuleAt>,
    passed_by: Option<RuleAt>,
    translated_by: Option<RuleAt>,
    /// The last rule that changed a mark, a zone or the tracking.
    changed_by: Option<RuleAt>,
}

/// TCP flags, and which of them are known: the sender chooses push and the two bits of congestion notification.
const SYN: [u8; 2] = [0x02, 0x3f];
const SYN_ACK: [u8; 2] = [0x12, 0x3f];
const ACK: [u8; 2] = [0x10, 0x37];

impl<'n> Walk<'n> {
    fn new(rules: &'n NamespaceRules, packet: &Packet, listeners: Listeners, choices: Choices<'n>) -> Self {
        let flags = if packet.connection.phase == ConnectionPhase::New { SYN } else { ACK };
        let mut entry =
            ConntrackEntry::new(packet.source, packet.destination, Zone::default(), packet.connection.mark);
        let entries = match packet.connection.phase {
            ConnectionPhase::New | ConnectionPhase::Invalid => Vec::new(),
            ConnectionPhase::Established => {
                entry.is_known = true;
                entry.destination.is_decided = true;
                entry.source.is_decided = true;
                vec![entry]
            }
        };
        Self {
            rules,
            listeners,
            choices,
            rule: chain::RunningRule::default(),
            packet: CurrentPacket::of(packet, flags),
            entries,
            current: 0,
            delivered_by: None,
            is_delivered_by_mark: false,
            is_routed_again: false,
            steps: Vec::new(),
            decided_by: None,
            passed_by: None,
            translated_by: None,
            changed_by: None,
        }
    }

    /// Follows the connection.
    fn run(mut self, packet: &Packet) -> (WalkResult, Choices<'n>) {
        let phase = packet.connection.phase;
        if phase == ConnectionPhase::Invalid {
            self.packet.tracking = PacketTracking::Invalid;
        }
        let end = self.send(&packet.direction);
        let (mark, zone) = (self.packet.mark, self.packet.zone.map(|zone| zone.id));
        let steps = std::mem::take(&mut self.steps);
        let first = self.outcome(packet, end);
        let mut outcome = first;
        let goes_on =
            matches!(outcome, Outcome::Untouched | Outcome::Redirected(_) | Outcome::Intercepted(_));
        if phase == ConnectionPhase::New && goes_on {
            outcome = self.outcome_of_the_rest(packet, end, outcome);
        }
        let decided_by = match outcome {
            Outcome::Untouched => self.decided_by.or(self.passed_by),
            Outcome::Redirected(_) | Outcome::Translated(_) => self.translated_by.or(self.decided_by),
            _ => self.decided_by,
        };
        (WalkResult { outcome, first, decided_by, steps, mark, zone, order: None }, self.choices)
    }

    fn send(&mut self, direction: &Direction) -> PacketEnd {
        match direction {
            Direction::Arrives { .. } => self.arrive(),
            Direction::Leaves { .. } => self.leave(),
        }
    }

    /// The outcome for the first packet.
    fn outcome(&self, packet: &Packet, end: PacketEnd) -> Outcome {
        match (end, self.packet.intercepted.and_then(Port::new)) {
            (PacketEnd::Dropped, _) => return Outcome::Dropped,
            (PacketEnd::Unknown, _) => return Outcome::Unknown,
            // The socket was chosen before any translation.
            (_, Some(port)) => return Outcome::Intercepted(port),
            _ => {}
        }
        let now = self.packet.destination;
        match Port::new(now.port()) {
            // Also a connection to the port that it is redirected to.
            Some(port) if self.translated_by.is_some() && self.is_inside(now) => Outcome::Redirected(port),
            _ if now == packet.destination => Outcome::Untouched,
            _ => Outcome::Translated(now),
        }
    }

    fn is_inside(&self, address: SocketAddr) -> bool {
        self.rules.is_local(address.ip())
    }

    /// Sends the packets after the first: its reply, a second packet, and a second reply. Connection tracking may take
    /// a packet that it cannot assign for the first of another connection, and translate it as such.
    fn outcome_of_the_rest(&mut self, packet: &Packet, end: PacketEnd, outcome: Outcome) -> Outcome {
        // The reply to a forwarded packet comes back by an interface that routing chooses.
        if matches!(packet.direction, Direction::Arrives { .. }) && end == PacketEnd::Outside {
            return outcome;
        }
        let first = First { packet: self.packet.clone(), end, outcome };
        if let Some(entry) = self.entries.get_mut(self.current) {
            entry.is_known = true;
        }
        self.delivered_by = first.is_intercepted().then_some(self.packet.mark);
        let decisive = (self.decided_by, self.passed_by, self.translated_by);
        self.changed_by = None;
        let mut lost = self.reply(packet, &first, SYN_ACK);
        // A redirected UDP connection is a query and its reply.
        if packet.protocol == Transport::Tcp {
            lost = lost.or_else(|| self.follow(packet, &first)).or_else(|| self.reply(packet, &first, ACK));
        }
        if lost.is_none() {
            (self.decided_by, self.passed_by, self.translated_by) = decisive;
        }
        lost.unwrap_or(outcome)
    }

    /// Sends a packet of the other side; returns the outcome when it does not arrive as a reply.
    fn reply(&mut self, packet: &Packet, first: &First, flags: [u8; 2]) -> Option<Outcome> {
        let to_proxy = PROXY_PORTS.contains(&first.packet.destination.port());
        let (owner, mark) = match (first.end, first.outcome) {
            (PacketEnd::Inside, Outcome::Untouched) if !to_proxy => (Some(self.listeners.application), 0),
            (PacketEnd::Inside, _) => (Some(self.listeners.proxy), self.listeners.proxy_mark),
            _ => (None, 0),
        };
        let is_own = packet.owner.is_some();
        self.packet = CurrentPacket {
            source: first.packet.destination,
            destination: first.packet.source,
            arrives: HookInterface::None,
            leaves: HookInterface::None,
            mark,
            owner,
            ..CurrentPacket::of(packet, flags)
        };
        let has_ztunnel = self.listeners.proxy_mark != 0;
        self.is_delivered_by_mark = has_ztunnel && is_own && !self.is_inside(first.packet.source);
        let end = if first.end == PacketEnd::Inside {
            self.packet.leaves = match is_own {
                true if self.is_delivered_by_mark => HookInterface::Unknown,
                true => HookInterface::loopback(),
                false => first.packet.arrives.clone(),
            };
            self.leave()
        } else {
            self.packet.arrives = first.packet.left_by(packet);
            self.arrive()
        };
        let expected = if is_own { PacketEnd::Inside } else { PacketEnd::Outside };
        let ends = (self.packet.source, self.packet.destination);
        self.lost(end, end == expected && ends == (packet.destination, packet.source))
    }

    /// Sends a second packet; returns the outcome when it goes elsewhere.
    fn follow(&mut self, packet: &Packet, first: &First) -> Option<Outcome> {
        self.packet = CurrentPacket::of(packet, ACK);
        self.is_delivered_by_mark = false;
        let end = self.send(&packet.direction);
        let is_marked = !first.is_intercepted() || self.packet.mark == first.packet.mark;
        let is_same = end == first.end && self.packet.destination == first.packet.destination;
        self.lost(end, is_same && is_marked)
    }

    fn lost(&mut self, end: PacketEnd, is_as_expected: bool) -> Option<Outcome> {
        match end {
            PacketEnd::Unknown => Some(Outcome::Unknown),
            PacketEnd::Dropped => Some(Outcome::RepliesLost),
            _ if is_as_expected => None,
            _ => {
                self.decided_by = self.changed_by.or(self.decided_by);
                Some(Outcome::RepliesLost)
            }
        }
    }
}

#[cfg(test)]
mod tests;
