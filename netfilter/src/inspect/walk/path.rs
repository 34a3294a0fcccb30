//! The path of one packet: from a socket or an interface through the hooks, with connection tracking and address
//! translation, by way of `lo` where routing says so.

use super::hooks::{self, HookFunction, HookPosition};
use super::packet::{ConntrackEntry, HookInterface, ORIGINAL, PacketTracking, REPLY};
use super::{HookEnd, PacketEnd, SYN_ACK, UnknownFact, Walk};
use crate::inspect::live::rules::ChainKind;
use crate::model::ruleset::{Hook, Transport};

impl Walk<'_> {
    /// A socket of the namespace sends the packet.
    pub(super) fn leave(&mut self) -> PacketEnd {
        let before = self.packet.destination;
        self.is_routed_again = false;
        if let Some(end) = self.hook(Hook::Output) {
            return end;
        }
        // Our own route delivers what has the mark of an intercepted connection, or of ztunnel's, to this namespace.
        let is_delivered = self.delivered_by == Some(self.packet.mark)
            || self.is_delivered_by_mark
                && self.rules.delivers_to_ztunnel(self.packet.family(), self.packet.mark);
        if self.is_routed_again && is_delivered {
            self.packet.leaves = HookInterface::loopback();
        }
        // The kernel routes again when the destination changed; the rest of the hook has the interface of before
        // (`struct nf_hook_state`).
        if self.packet.destination != before {
            self.packet.leaves = match self.is_inside(self.packet.destination) {
                true => HookInterface::loopback(),
                false if self.packet.leaves == HookInterface::loopback() => HookInterface::Unknown,
                false => self.packet.leaves.clone(),
            };
        }
        if let Some(end) = self.hook(Hook::Postrouting) {
            return end;
        }
        if self.packet.leaves != HookInterface::loopback() {
            return PacketEnd::Outside;
        }
        self.packet.arrives = std::mem::replace(&mut self.packet.leaves, HookInterface::None);
        // `loopback_xmit` removes the socket; connection and mark stay.
        self.packet.owner = None;
        self.arrive()
    }

    /// The packet arrives by an interface.
    pub(super) fn arrive(&mut self) -> PacketEnd {
        if let Some(end) = self.hook(Hook::Prerouting) {
            return end;
        }
        let is_by_loopback = self.packet.arrives == HookInterface::loopback();
        let stays = self.packet.intercepted.is_some()
            || is_by_loopback
            || self.delivered_by.is_some_and(|mark| mark != 0 && mark == self.packet.mark)
            || self.is_inside(self.packet.destination);
        if stays {
            return self.hook(Hook::Input).unwrap_or(PacketEnd::Inside);
        }
        self.packet.leaves = HookInterface::Unknown;
        let forwarded = self.hook(Hook::Forward).or_else(|| self.hook(Hook::Postrouting));
        forwarded.unwrap_or(PacketEnd::Outside)
    }

    /// Runs a hook; returns the end of the path when the packet goes no further.
    fn hook(&mut self, hook: Hook) -> Option<PacketEnd> {
        if !self.choices.budget.spend(1 + self.rules.chains.len()) {
            return Some(PacketEnd::Unknown);
        }
        let mut positions = hooks::at(self.rules, hook, self.packet.family());
        self.decide_order(&mut positions);
        for position in positions {
            let end = match position.function {
                HookFunction::Chain(index) => {
                    let mark = self.packet.mark;
                    let end = self.chain(index, hook);
                    let base = self.rules.chains.get(index).and_then(|chain| chain.base);
                    let is_route = base.is_some_and(|base| base.kind == ChainKind::Route);
                    self.is_routed_again |= is_route && self.packet.mark != mark;
                    end
                }
                HookFunction::Tracking => self.track(),
                HookFunction::Translation => self.translation(hook),
            };
            match end {
                HookEnd::Passes => {}
                HookEnd::Dropped => return Some(PacketEnd::Dropped),
                HookEnd::Unknown => return Some(PacketEnd::Unknown),
            }
        }
        // The next hook has another pair of interfaces.
        if hook == Hook::Input {
            self.packet.leaves = HookInterface::None;
        }
        None
    }

    fn decide_order(&mut self, positions: &mut [HookPosition]) {
        let chain = |position: &HookPosition| match position.function {
            HookFunction::Chain(index) => index,
            HookFunction::Tracking | HookFunction::Translation => usize::MAX,
        };
        for run in positions.chunk_by_mut(|before, _| before.may_come_after_next) {
            // Selects the first of the remaining chains: every order is tried once.
            for from in 0..run.len() {
                let Some((first, rest)) = run.get_mut(from..).and_then(<[HookPosition]>::split_first_mut)
                else {
                    continue;
                };
                for other in rest {
                    if self.choices.assume(UnknownFact::Order(chain(first), chain(other))) {
                        break;
                    }
                    std::mem::swap(&mut first.function, &mut other.function);
                }
            }
        }
    }

    /// `nf_conntrack_in`: leaves a packet that already has a connection, or was taken out of tracking.
    fn track(&mut self) -> HookEnd {
        if self.packet.tracking != PacketTracking::NotYet {
            return HookEnd::Passes;
        }
        // `nf_ct_zone_tmpl`, include/net/netfilter/nf_conntrack_zones.h, v6.18.
        if let Some(zone) = self.packet.zone.as_mut().filter(|zone| zone.is_by_mark) {
            zone.id = u16::try_from(self.packet.mark & u32::from(u16::MAX)).unwrap_or_default();
        }
        let zone = self.packet.zone.unwrap_or_default();
        let tuple = (self.packet.source, self.packet.destination);
        let found = self.entries.iter().enumerate().find_map(|(index, entry)| match entry {
            entry if entry.original == tuple && entry.zone.of(ORIGINAL) == zone.of(ORIGINAL) => {
                Some((index, PacketTracking::Original))
            }
            entry if entry.reply == tuple && entry.zone.of(REPLY) == zone.of(REPLY) => {
                Some((index, PacketTracking::Reply))
            }
            _ => None,
        });
        self.packet.tracking = match found {
            Some((index, tracking)) => {
                self.current = index;
                tracking
            }
            // A reply without a first packet begins no connection (`tcp_new`).
            None if self.packet.flags == SYN_ACK && self.packet.protocol == Transport::Tcp => {
                PacketTracking::Invalid
            }
            None => {
                self.current = self.entries.len();
                self.entries.push(ConntrackEntry::new(tuple.0, tuple.1, zone, 0));
                PacketTracking::Original
            }
        };
        HookEnd::Passes
    }

    /// `nf_nat_inet_fn`: the chains run for the first packet only; every packet is translated.
    fn translation(&mut self, hook: Hook) -> HookEnd {
        let is_destination = matches!(hook, Hook::Prerouting | Hook::Output);
        let is_reply = match self.packet.tracking {
            PacketTracking::Original => false,
            PacketTracking::Reply => true,
            PacketTracking::NotYet | PacketTracking::Untracked | PacketTracking::Invalid => {
                return HookEnd::Passes;
            }
        };
        let half = |entry: &ConntrackEntry| if is_destination { entry.destination } else { entry.source };
        let is_decided =
            |walk: &Self| walk.entries.get(walk.current).is_none_or(|e| e.is_known || half(e).is_decided);
        if !is_decided(self) {
            let mut positions = hooks::translating(self.rules, hook, self.packet.family());
            self.decide_order(&mut positions);
            for position in positions {
                let HookFunction::Chain(index) = position.function else { continue };
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
        // A reply is translated back at the hook of the other half.
        let turned = if is_destination != is_reply { entry.destination } else { entry.source };
        if turned.is_done {
            let (from, to) = if is_reply { entry.original } else { entry.reply };
            match is_destination {
                true => self.packet.destination = from,
                false => self.packet.source = to,
            }
        }
        if !is_destination && !is_reply && self.is_taken() {
            self.decided_by = self.changed_by.or(self.decided_by);
            return HookEnd::Dropped;
        }
        HookEnd::Passes
    }

    /// Reports whether another connection has the reply tuple of a new one (`nf_conntrack_tuple_taken`,
    /// net/netfilter/nf_conntrack_core.c, v6.18). The kernel then changes the source port, or drops the packet at its
    /// confirmation; either way no socket gets an answer. That is so where packets of one connection are in zones that
    /// differ in one direction only.
    fn is_taken(&self) -> bool {
        let Some((new, others)) = self.entries.split_last().filter(|(new, _)| !new.is_known) else {
            return false;
        };
        let is_same_zone = |other: &ConntrackEntry, found: u8| other.zone.of(found) == new.zone.of(REPLY);
        others.iter().any(|other| {
            let is_original = other.original == new.reply && is_same_zone(other, ORIGINAL);
            let is_reply = other.reply == new.reply && is_same_zone(other, REPLY);
            is_original && other.zone.of(ORIGINAL) == new.zone.of(ORIGINAL) || is_reply
        })
    }
}
