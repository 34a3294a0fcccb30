//! What the statements of a rule do to a packet and its connection: translation, marks, zones, tracking, and
//! the targets of iptables.

use super::Walk;
use super::bits::Bits;
use super::chain::{RuleEnd, RunningRule, StatementResult};
use super::packet::{ConntrackEntry, CurrentPacket, HookInterface, PacketTracking, Zone};
use crate::inspect::live::rules::expr::{Nat, NatKind};
use crate::kernel::netlink::attr;
use crate::model::policy::PortRange;
use crate::model::ruleset::{Family, Hook, Transport};
use crate::xt::{ConnectionMarkChange, NatRange, XtTarget};
use std::net::{IpAddr, SocketAddr};

impl Walk<'_> {
    pub(super) fn nat(&mut self, nat: &Nat) -> StatementResult {
        let family = self.packet.family();
        if nat.is_for.is_some_and(|only| only != family) {
            return Ok(());
        }
        let length = if family == Family::V4 { 4 } else { 16 };
        let address = |from: Option<usize>| from.map(|from| self.rule.registers.get(from, length));
        let port = |from: Option<usize>| from.map(|from| self.rule.registers.get(from, 2));
        let is_one = |first: &Option<Bits>, last: &Option<Bits>| last.is_none() || first == last;
        let (first, port_first) = (address(nat.address), port(nat.port));
        if !is_one(&first, &address(nat.last_address)) || !is_one(&port_first, &port(nat.last_port)) {
            return Err(RuleEnd::Unknown);
        }
        let read = |bits: Option<Bits>| match bits {
            None => Ok(None),
            Some(bits) => bits.whole().map(|bytes| Some(bytes.to_vec())).ok_or(RuleEnd::Unknown),
        };
        let address = read(first)?.and_then(|bytes| attr::address(&bytes));
        let port = read(port_first)?.and_then(|bytes| Some(u16::from_be_bytes(bytes.try_into().ok()?)));
        self.translate(nat.kind, address, port)
    }

    /// Sets a translation up (`nf_nat_setup_info`) and ends the rule.
    fn translate(&mut self, kind: NatKind, address: Option<IpAddr>, port: Option<u16>) -> StatementResult {
        let RunningRule { at, hook, .. } = self.rule;
        let address = match (kind, hook) {
            (NatKind::Redirect, Hook::Output) => Some(self.packet.family().loopback()),
            (NatKind::Redirect, _) => Some(self.redirected_to().ok_or(RuleEnd::Drop)?),
            (NatKind::Masquerade, _) => None,
            (NatKind::Destination | NatKind::Source, _) => address,
        };
        let Some(entry) = self.entries.get_mut(self.current) else { return Err(RuleEnd::Accept) };
        let moved =
            |from: SocketAddr| SocketAddr::new(address.unwrap_or(from.ip()), port.unwrap_or(from.port()));
        match kind {
            NatKind::Redirect | NatKind::Destination if !entry.destination.is_decided => {
                entry.reply.0 = moved(self.packet.destination);
                entry.destination.is_decided = true;
                entry.destination.is_done = entry.reply.0 != self.packet.destination;
                self.translated_by = Some(at);
                self.decided_by = Some(at);
            }
            NatKind::Source | NatKind::Masquerade if !entry.source.is_decided => {
                entry.reply.1 = moved(self.packet.source);
                entry.source.is_decided = true;
                entry.source.is_done = entry.reply.1 != self.packet.source;
            }
            _ => {}
        }
        Err(RuleEnd::Accept)
    }

    /// The first address of the interface that the packet arrived by; without one the kernel drops the packet
    /// (`nf_nat_redirect_ipv4`, net/netfilter/nf_nat_redirect.c, v6.18). Loopback where the namespace has no such
    /// interface.
    fn redirected_to(&self) -> Option<IpAddr> {
        match &self.packet.arrives {
            HookInterface::Name(name) if self.rules.interface(name).is_some() => {
                self.rules.primary(name, self.packet.destination.ip())
            }
            _ => Some(self.packet.family().loopback()),
        }
    }

    pub(super) fn tproxy(&mut self, is_for: Option<Family>, port: Option<usize>) -> StatementResult {
        if is_for.is_some_and(|only| only != self.packet.family()) {
            return Err(RuleEnd::DoesNotApply);
        }
        let port = match port {
            None => self.packet.destination.port(),
            Some(from) => u16::from_be_bytes(self.known(from)?),
        };
        self.packet.intercepted = Some(port);
        self.decided_by = Some(self.rule.at);
        Ok(())
    }

    pub(super) fn target(&mut self, target: &XtTarget) -> StatementResult {
        match target {
            XtTarget::Accept => Err(RuleEnd::Accept),
            XtTarget::Drop | XtTarget::Reject { .. } => Err(RuleEnd::Drop),
            XtTarget::Return => Err(RuleEnd::Return),
            XtTarget::Jump(chain) => Err(RuleEnd::Jump(chain.clone())),
            XtTarget::Goto(chain) => Err(RuleEnd::Goto(chain.clone())),
            XtTarget::Redirect(nat) => self.xt_nat(NatKind::Redirect, nat),
            XtTarget::Dnat(nat) => self.xt_nat(NatKind::Destination, nat),
            XtTarget::Snat(nat) => self.xt_nat(NatKind::Source, nat),
            XtTarget::Masquerade(_) => self.translate(NatKind::Masquerade, None, None),
            XtTarget::Tproxy { address, port, value, mask } => {
                if !address.is_unspecified() && *address != self.packet.destination.ip() {
                    return Err(RuleEnd::Unknown);
                }
                if self.packet.protocol != Transport::Tcp && self.packet.protocol != Transport::Udp {
                    return Err(RuleEnd::Drop);
                }
                let own = self.packet.destination.port();
                self.packet.intercepted = Some(if *port == 0 { own } else { *port });
                self.set_mark((self.packet.mark & !mask) ^ value);
                self.decided_by = Some(self.rule.at);
                Err(RuleEnd::Accept)
            }
            XtTarget::SetMark { value, mask } => {
                self.set_mark((self.packet.mark & !mask) ^ value);
                Ok(())
            }
            XtTarget::ConnectionMark(change) => {
                self.connection_mark(*change);
                Ok(())
            }
            XtTarget::Tracking(tracking) if tracking.is_untracked() => {
                self.untrack();
                Ok(())
            }
            XtTarget::Tracking(tracking) if !tracking.helper.is_empty() || !tracking.timeout.is_empty() => {
                Err(RuleEnd::Unknown)
            }
            XtTarget::Tracking(tracking) => {
                let (direction, is_by_mark) = (tracking.zone_direction(), tracking.is_by_mark());
                self.set_zone(Zone { id: tracking.zone, direction, is_by_mark });
                Ok(())
            }
            XtTarget::Log { .. } | XtTarget::NfLog { .. } | XtTarget::Nothing(_) => Ok(()),
            XtTarget::Queue | XtTarget::NfQueue { .. } | XtTarget::Unknown(_) => Err(RuleEnd::Unknown),
        }
    }

    fn xt_nat(&mut self, kind: NatKind, nat: &NatRange) -> StatementResult {
        let address = match nat.addresses {
            Some([first, last]) if first != last => return Err(RuleEnd::Unknown),
            addresses => addresses.map(|[first, _]| first),
        };
        let port = match nat.ports.map(PortRange::bounds) {
            Some((first, last)) if first != last => return Err(RuleEnd::Unknown),
            ports => ports.map(|(first, _)| first),
        };
        self.translate(kind, address, port)
    }

    /// `connmark_tg`: without a connection nothing happens.
    fn connection_mark(&mut self, change: ConnectionMarkChange) {
        let Some(mark) = self.connected().map(|entry| entry.mark) else { return };
        match change {
            ConnectionMarkChange::Set { value, mask } => self.set_connection_mark((mark & !mask) ^ value),
            ConnectionMarkChange::Save { packet, connection } => {
                self.set_connection_mark((mark & !connection) ^ (self.packet.mark & packet));
            }
            ConnectionMarkChange::Restore { packet, connection } => {
                self.set_mark((self.packet.mark & !packet) ^ (mark & connection));
            }
        }
    }

    fn connected(&mut self) -> Option<&mut ConntrackEntry> {
        let is_part = matches!(self.packet.tracking, PacketTracking::Original | PacketTracking::Reply);
        self.entries.get_mut(self.current).filter(|_| is_part)
    }

    pub(super) fn set_connection_mark(&mut self, mark: u32) {
        if let Some(entry) = self.connected() {
            entry.mark = mark;
        }
    }

    pub(super) fn set_mark(&mut self, mark: u32) {
        self.packet.mark = mark;
        self.changed_by = Some(self.rule.at);
    }

    /// A packet with a connection or a zone keeps it (`nft_notrack_eval`, `xt_ct_target`).
    pub(super) fn untrack(&mut self) {
        if is_open(&self.packet) {
            self.packet.tracking = PacketTracking::Untracked;
            self.changed_by = Some(self.rule.at);
        }
    }

    pub(super) fn set_zone(&mut self, zone: Zone) {
        if is_open(&self.packet) {
            self.packet.zone = Some(zone);
            self.changed_by = Some(self.rule.at);
        }
    }
}

fn is_open(packet: &CurrentPacket) -> bool {
    packet.tracking == PacketTracking::NotYet && packet.zone.is_none()
}
