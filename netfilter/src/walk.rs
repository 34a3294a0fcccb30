//! A connection's packets sent through all rules of a namespace, as the kernel does: what becomes of it,
//! and which rules decide. Pure.
//!
//! Hooks in order, chains by priority, connection tracking, translations decided once for a connection by
//! the first chain that sets one up, redirects on output by way of `lo`. Four packets are sent: the
//! first, its answer, and one that follows. What a rule asks and nothing here knows (a limit, a packet's
//! length, an expression without a reader) is tried both ways, and the outcome is unknown only when it
//! depends on that.

mod bits;
mod budget;
mod chain;
mod choices;
mod hooks;
mod packet;
mod xt;

use crate::live::rules::NamespaceRules;
use crate::policy::Port;
use crate::trace::{ConnectionPhase, Direction, Owner, Packet, Transport};
use crate::xt::legacy::InetHook;
pub(crate) use budget::Budget;
use choices::{Choices, UnknownFact};
use hooks::{Item, Place};
use packet::{ConntrackEntry, CurrentPacket, HookInterface, Tracking};
use std::net::SocketAddr;

/// What becomes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It goes where it would go without any rule.
    Untouched,
    /// It goes to this port of the pod.
    Redirected(Port),
    /// It is handed to the transparent socket on this port.
    Intercepted(Port),
    /// It goes to this other address.
    Translated(SocketAddr),
    /// Its first packet is dropped.
    Dropped,
    /// Its first packet arrives, and what follows does not, or not as part of it.
    AnswersLost,
    /// It depends on what cannot be known.
    Unknown,
}

/// Where a rule stands: indices into the namespace's chains and a chain's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RuleAt {
    /// The base chain that led there.
    pub(crate) base: usize,
    pub(crate) chain: usize,
    /// `usize::MAX` for the policy of the base chain.
    pub(crate) rule: usize,
}

/// A connection's way through the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WalkResult {
    pub(crate) outcome: Outcome,
    /// The rule that decided so; none when no rule did.
    pub(crate) decided_by: Option<RuleAt>,
    /// Rules that the first packet met and that applied, in order.
    pub(crate) steps: Vec<RuleAt>,
    pub(crate) mark: u32,
    pub(crate) zone: Option<u16>,
    /// Two chains of which the kernel does not tell which comes first, where the outcome depends on it.
    pub(crate) order: Option<(usize, usize)>,
}

/// Whose sockets answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listeners {
    /// At the ports that connections are redirected to, and at the proxy's own.
    pub(crate) proxy: Owner,
    /// At the pod's other ports.
    pub(crate) application: Owner,
}

/// Ports that Istio's proxy and agent listen on beside those that connections are redirected to.
const PROXY_PORTS: [u16; 6] = [15000, 15008, 15020, 15021, 15053, 15090];

/// Follows a connection whose first packet is `packet`; what is not found within the budget is unknown.
pub(crate) fn walk(ns: &NamespaceRules, packet: &Packet, listeners: Listeners, budget: Budget) -> WalkResult {
    let mut choices = Choices::within(budget);
    let mut first: Option<WalkResult> = None;
    loop {
        let mut walk = Walk::new(ns, packet, listeners, choices);
        let outcome = walk.connection(packet);
        let walked = walk.walked(outcome);
        choices = walk.choices;
        match &first {
            None => first = Some(walked),
            Some(before) if before.outcome == walked.outcome && before.mark == walked.mark => {}
            Some(before) => return depends(before, choices.last()),
        }
        if !choices.next() {
            break;
        }
        if choices.are_too_many() {
            return first
                .map_or_else(|| depends(&undecided(), None), |first| depends(&first, choices.last()));
        }
    }
    first.unwrap_or_else(undecided)
}

fn undecided() -> WalkResult {
    WalkResult {
        outcome: Outcome::Unknown,
        decided_by: None,
        steps: Vec::new(),
        mark: 0,
        zone: None,
        order: None,
    }
}

/// The outcome depends on the answer to that question.
fn depends(walked: &WalkResult, on: Option<&UnknownFact>) -> WalkResult {
    let (decided_by, order) = match on {
        Some(UnknownFact::Applies(at)) => (Some(*at), None),
        Some(UnknownFact::Order(first, second)) => (walked.decided_by, Some((*first, *second))),
        None => (walked.decided_by, None),
    };
    WalkResult { outcome: Outcome::Unknown, decided_by, order, ..walked.clone() }
}

/// How a chain or a hook ended for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HookEnd {
    Passes,
    Dropped,
    Unknown,
}

/// Where a packet ended up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PacketEnd {
    /// A socket of the namespace.
    Inside,
    /// It left by an interface.
    Outside,
    Dropped,
    Unknown,
}

/// The first packet where it ended up.
struct First {
    live: CurrentPacket,
    reached: PacketEnd,
    outcome: Outcome,
}

impl First {
    fn is_intercepted(&self) -> bool {
        matches!(self.outcome, Outcome::Intercepted(_))
    }
}

struct Walk<'n> {
    ns: &'n NamespaceRules,
    listeners: Listeners,
    choices: Choices,
    here: chain::RunningRule,
    packet: CurrentPacket,
    /// The connections that tracking knows, the packet's among them at `current`.
    entries: Vec<ConntrackEntry>,
    current: usize,
    /// The mark by which routing delivers an intercepted connection's packets here.
    delivered_by: Option<u32>,
    steps: Vec<RuleAt>,
    decided_by: Option<RuleAt>,
    passed_by: Option<RuleAt>,
    translated_by: Option<RuleAt>,
    /// The last rule that changed a mark, a zone or the tracking.
    changed_by: Option<RuleAt>,
}

/// TCP flags: synchronise and acknowledge; which of them are known. Push is the sender's affair, and so
/// are the two bits of congestion notification.
const SYN: [u8; 2] = [0x02, 0x3f];
const SYN_ACK: [u8; 2] = [0x12, 0x3f];
const ACK: [u8; 2] = [0x10, 0x37];

const LOOPBACK: &str = "lo";

impl<'n> Walk<'n> {
    fn new(ns: &'n NamespaceRules, packet: &Packet, listeners: Listeners, choices: Choices) -> Self {
        let name = |by: &crate::policy::InterfaceName| HookInterface::Name(by.as_str().to_owned());
        let (arrives, leaves) = match &packet.direction {
            Direction::Arrives { by } => (name(by), HookInterface::None),
            Direction::Leaves { by } => (HookInterface::None, name(by)),
        };
        let live = CurrentPacket {
            protocol: packet.protocol,
            source: packet.source,
            destination: packet.destination,
            arrives,
            leaves,
            mark: packet.mark,
            owner: packet.owner,
            flags: if packet.connection.phase == ConnectionPhase::New { SYN } else { ACK },
            tracking: Tracking::NotYet,
            zone: None,
            intercepted: None,
        };
        let mut entry = ConntrackEntry::new(packet.source, packet.destination, 0, packet.connection.mark);
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
            ns,
            listeners,
            choices,
            here: chain::RunningRule::default(),
            packet: live,
            entries,
            current: 0,
            delivered_by: None,
            steps: Vec::new(),
            decided_by: None,
            passed_by: None,
            translated_by: None,
            changed_by: None,
        }
    }

    fn walked(&self, outcome: (Outcome, u32, Option<u16>)) -> WalkResult {
        let (outcome, mark, zone) = outcome;
        let decided_by = match outcome {
            Outcome::Untouched => self.decided_by.or(self.passed_by),
            Outcome::Redirected(_) | Outcome::Translated(_) => self.translated_by.or(self.decided_by),
            _ => self.decided_by,
        };
        WalkResult { outcome, decided_by, steps: self.steps.clone(), mark, zone, order: None }
    }

    /// Sends the packets.
    fn connection(&mut self, packet: &Packet) -> (Outcome, u32, Option<u16>) {
        let phase = packet.connection.phase;
        if phase == ConnectionPhase::Invalid {
            self.packet.tracking = Tracking::Invalid;
        }
        let reached = self.go(&packet.direction);
        let (mark, zone) = (self.packet.mark, self.packet.zone);
        let outcome = self.outcome(packet, reached);
        let is_followed = phase == ConnectionPhase::New
            && matches!(outcome, Outcome::Untouched | Outcome::Redirected(_) | Outcome::Intercepted(_));
        if !is_followed {
            return (outcome, mark, zone);
        }
        let steps = self.steps.len();
        let outcome = self.followed(packet, reached, outcome);
        self.steps.truncate(steps);
        (outcome, mark, zone)
    }

    fn go(&mut self, direction: &Direction) -> PacketEnd {
        match direction {
            Direction::Arrives { .. } => self.arrive(),
            Direction::Leaves { .. } => self.leave(),
        }
    }

    fn outcome(&self, packet: &Packet, reached: PacketEnd) -> Outcome {
        match (reached, self.packet.intercepted.and_then(Port::new)) {
            (PacketEnd::Dropped, _) => return Outcome::Dropped,
            (PacketEnd::Unknown, _) => return Outcome::Unknown,
            // The socket has it already, whatever its addresses become.
            (_, Some(port)) => return Outcome::Intercepted(port),
            _ => {}
        }
        let now = self.packet.destination;
        match Port::new(now.port()) {
            // Also when it went to that port anyway.
            Some(port) if self.translated_by.is_some() && self.is_inside(now) => Outcome::Redirected(port),
            _ if now == packet.destination => Outcome::Untouched,
            _ => Outcome::Translated(now),
        }
    }

    fn is_inside(&self, address: SocketAddr) -> bool {
        self.ns.is_local(address.ip())
    }

    /// Sends what follows the first packet, which ended up at `reached`: its answer, a packet behind it, and
    /// one behind the answer. A packet that connection tracking cannot place may be taken for the first of
    /// another connection, and translated as such.
    fn followed(&mut self, packet: &Packet, reached: PacketEnd, outcome: Outcome) -> Outcome {
        // What only passes through comes back by an interface that routing chooses.
        if matches!(packet.direction, Direction::Arrives { .. }) && reached == PacketEnd::Outside {
            return outcome;
        }
        let first = First { live: self.packet.clone(), reached, outcome };
        if let Some(entry) = self.entries.get_mut(self.current) {
            entry.is_known = true;
        }
        self.delivered_by = first.is_intercepted().then_some(self.packet.mark);
        let kept = (self.decided_by, self.passed_by, self.translated_by);
        self.changed_by = None;
        let mut lost = self.answer(packet, &first, SYN_ACK);
        // A question and its answer are all of a UDP connection that is redirected.
        if packet.protocol == Transport::Tcp {
            lost = lost.or_else(|| self.follow(packet, &first)).or_else(|| self.answer(packet, &first, ACK));
        }
        if lost.is_none() {
            (self.decided_by, self.passed_by, self.translated_by) = kept;
        }
        lost.unwrap_or(outcome)
    }

    /// A packet of the other side; what becomes of the connection when it does not arrive as an answer.
    fn answer(&mut self, packet: &Packet, first: &First, flags: [u8; 2]) -> Option<Outcome> {
        let First { live, reached, outcome } = first;
        let owner = match (*reached, *outcome) {
            (PacketEnd::Inside, Outcome::Untouched) if !PROXY_PORTS.contains(&live.destination.port()) => {
                Some(self.listeners.application)
            }
            (PacketEnd::Inside, _) => Some(self.listeners.proxy),
            _ => None,
        };
        let is_own = packet.owner.is_some();
        let (arrives, leaves) = match *reached {
            PacketEnd::Inside if is_own => (HookInterface::None, HookInterface::Name(LOOPBACK.to_owned())),
            PacketEnd::Inside => (HookInterface::None, live.arrives.clone()),
            _ => (live.left_by(packet), HookInterface::None),
        };
        self.packet = CurrentPacket {
            source: live.destination,
            destination: live.source,
            arrives,
            leaves,
            mark: 0,
            owner,
            ..live.fresh(flags)
        };
        let came_back = if *reached == PacketEnd::Inside { self.leave() } else { self.arrive() };
        let expected = if is_own { PacketEnd::Inside } else { PacketEnd::Outside };
        let ends = (self.packet.source, self.packet.destination);
        self.lost(came_back, came_back == expected && ends == (packet.destination, packet.source))
    }

    /// Another packet behind the first; what becomes of the connection when it goes elsewhere.
    fn follow(&mut self, packet: &Packet, first: &First) -> Option<Outcome> {
        let name = |by: &crate::policy::InterfaceName| HookInterface::Name(by.as_str().to_owned());
        let (arrives, leaves) = match &packet.direction {
            Direction::Arrives { by } => (name(by), HookInterface::None),
            Direction::Leaves { by } => (HookInterface::None, name(by)),
        };
        self.packet = CurrentPacket {
            source: packet.source,
            destination: packet.destination,
            arrives,
            leaves,
            mark: packet.mark,
            owner: packet.owner,
            ..first.live.fresh(ACK)
        };
        let reached = self.go(&packet.direction);
        let is_marked = !first.is_intercepted() || self.packet.mark == first.live.mark;
        let is_same = reached == first.reached && self.packet.destination == first.live.destination;
        self.lost(reached, is_same && is_marked)
    }

    fn lost(&mut self, reached: PacketEnd, is_as_expected: bool) -> Option<Outcome> {
        match reached {
            PacketEnd::Unknown => Some(Outcome::Unknown),
            PacketEnd::Dropped => Some(Outcome::AnswersLost),
            _ if is_as_expected => None,
            _ => {
                self.decided_by = self.changed_by.or(self.decided_by);
                Some(Outcome::AnswersLost)
            }
        }
    }

    /// A socket of the namespace sends the packet.
    fn leave(&mut self) -> PacketEnd {
        let before = self.packet.destination;
        if let Some(reached) = self.hook(InetHook::Output) {
            return reached;
        }
        // Routed again when the destination is another; at the hook itself the interface stays
        // what it was (`struct nf_hook_state`).
        if self.packet.destination != before {
            self.packet.leaves = match self.is_inside(self.packet.destination) {
                true => HookInterface::Name(LOOPBACK.to_owned()),
                false if self.packet.leaves == HookInterface::Name(LOOPBACK.to_owned()) => {
                    HookInterface::Unknown
                }
                false => self.packet.leaves.clone(),
            };
        }
        if let Some(reached) = self.hook(InetHook::Postrouting) {
            return reached;
        }
        if self.packet.leaves != HookInterface::Name(LOOPBACK.to_owned()) {
            return PacketEnd::Outside;
        }
        self.packet.arrives = std::mem::replace(&mut self.packet.leaves, HookInterface::None);
        // `loopback_xmit` takes the sender's socket from it, and leaves it its connection and mark.
        self.packet.owner = None;
        self.arrive()
    }

    /// The packet comes in by an interface.
    fn arrive(&mut self) -> PacketEnd {
        if let Some(reached) = self.hook(InetHook::Prerouting) {
            return reached;
        }
        let is_by_loopback = self.packet.arrives == HookInterface::Name(LOOPBACK.to_owned());
        let stays = self.packet.intercepted.is_some()
            || is_by_loopback
            || self.delivered_by.is_some_and(|mark| mark != 0 && mark == self.packet.mark)
            || self.is_inside(self.packet.destination);
        if stays {
            return self.hook(InetHook::Input).unwrap_or(PacketEnd::Inside);
        }
        self.packet.leaves = HookInterface::Unknown;
        let forwarded = self.hook(InetHook::Forward).or_else(|| self.hook(InetHook::Postrouting));
        forwarded.unwrap_or(PacketEnd::Outside)
    }

    /// Runs what hangs on a hook; tells where the packet ended up when it goes no further.
    fn hook(&mut self, hook: InetHook) -> Option<PacketEnd> {
        let mut places = hooks::at(self.ns, hook, self.packet.is_v6());
        self.decide_order(&mut places);
        for place in places {
            let end = match place.item {
                Item::Chain(index) => self.chain(index, hook),
                Item::Tracking => {
                    self.track();
                    HookEnd::Passes
                }
                Item::Translation => self.translation(hook),
            };
            match end {
                HookEnd::Passes => {}
                HookEnd::Dropped => return Some(PacketEnd::Dropped),
                HookEnd::Unknown => return Some(PacketEnd::Unknown),
            }
        }
        // At the end of the hook without the interfaces of this one.
        if hook == InetHook::Input {
            self.packet.leaves = HookInterface::None;
        }
        None
    }

    fn decide_order(&mut self, places: &mut [Place]) {
        let chain = |place: &Place| match place.item {
            Item::Chain(index) => index,
            Item::Tracking | Item::Translation => usize::MAX,
        };
        for run in places.chunk_by_mut(|before, _| before.may_come_after_next) {
            // Which of those left comes first: every order is tried once.
            for from in 0..run.len() {
                let Some((first, rest)) = run.get_mut(from..).and_then(<[Place]>::split_first_mut) else {
                    continue;
                };
                for other in rest {
                    if self.choices.assume(UnknownFact::Order(chain(first), chain(other))) {
                        break;
                    }
                    std::mem::swap(&mut first.item, &mut other.item);
                }
            }
        }
    }

    /// `nf_conntrack_in`: a packet that has a connection, or is to have none, keeps it so.
    fn track(&mut self) {
        if self.packet.tracking != Tracking::NotYet {
            return;
        }
        let zone = self.packet.zone.unwrap_or(0);
        let tuple = (self.packet.source, self.packet.destination);
        let found = self.entries.iter().enumerate().find_map(|(index, entry)| match entry {
            entry if entry.zone != zone => None,
            entry if entry.original == tuple => Some((index, Tracking::Original)),
            entry if entry.reply == tuple => Some((index, Tracking::Reply)),
            _ => None,
        });
        self.packet.tracking = match found {
            Some((index, tracking)) => {
                self.current = index;
                tracking
            }
            // Nothing begins with an answer to nothing (`tcp_new`).
            None if self.packet.flags == SYN_ACK && self.packet.protocol == Transport::Tcp => {
                Tracking::Invalid
            }
            None => {
                self.current = self.entries.len();
                self.entries.push(ConntrackEntry::new(tuple.0, tuple.1, zone, 0));
                Tracking::Original
            }
        };
    }

    /// `nf_nat_inet_fn`: chains are asked for the first packet alone, then every packet is translated.
    fn translation(&mut self, hook: InetHook) -> HookEnd {
        let is_destination = matches!(hook, InetHook::Prerouting | InetHook::Output);
        let is_reply = match self.packet.tracking {
            Tracking::Original => false,
            Tracking::Reply => true,
            Tracking::NotYet | Tracking::Untracked | Tracking::Invalid => return HookEnd::Passes,
        };
        let half = |entry: &ConntrackEntry| if is_destination { entry.destination } else { entry.source };
        let is_decided =
            |walk: &Self| walk.entries.get(walk.current).is_none_or(|e| e.is_known || half(e).is_decided);
        if !is_decided(self) {
            let mut places = hooks::translating(self.ns, hook, self.packet.is_v6());
            self.decide_order(&mut places);
            for place in places {
                let Item::Chain(index) = place.item else { continue };
                match self.chain(index, hook) {
                    HookEnd::Passes if is_decided(self) => break,
                    HookEnd::Passes => {}
                    end => return end,
                }
            }
        }
        let Some(entry) = self.entries.get_mut(self.current) else { return HookEnd::Passes };
        let decided = if is_destination { &mut entry.destination } else { &mut entry.source };
        decided.is_decided = true;
        // An answer is turned back where a first packet's other half is translated.
        let turned = if is_destination != is_reply { entry.destination } else { entry.source };
        if turned.is_done {
            let (from, to) = if is_reply { entry.original } else { entry.reply };
            match is_destination {
                true => self.packet.destination = from,
                false => self.packet.source = to,
            }
        }
        HookEnd::Passes
    }
}

#[cfg(test)]
mod tests;
