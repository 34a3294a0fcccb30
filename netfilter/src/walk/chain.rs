//! One chain, run for one packet: what `nft_do_chain` and `ipt_do_table` do.

use super::bits::{Bits, Registers, Truth};
use super::choices::UnknownFact;
use super::packet::{ConntrackEntry, CurrentPacket, HookInterface, Tracking};
use super::{HookEnd, RuleAt, Walk, xt};
use crate::live::rules::expr::{Code, Data, Expr, Nat, NatKind, VERDICT};
use crate::live::rules::{LiveRule, Set, Statement};
use crate::policy::PortRange;
use crate::ruleset::Family;
use crate::trace::Transport;
use crate::xt::legacy::InetHook;
use crate::xt::{ConnectionMarkChange, NatRange, XtTarget};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How many rules one chain and those it leads to may run.
const MOST_RULES: usize = 100_000;
/// After so many rules the clock is looked at.
const RULES_PER_LOOK: usize = 16;
/// `NFT_JUMP_STACK_SIZE` is 16; iptables allows more.
const MOST_JUMPS: usize = 64;

/// The rule that is run.
pub(super) struct RunningRule {
    at: RuleAt,
    hook: InetHook,
    registers: Registers,
}

impl Default for RunningRule {
    fn default() -> Self {
        let at = RuleAt { base: usize::MAX, chain: usize::MAX, rule: usize::MAX };
        Self { at, hook: InetHook::Output, registers: Registers::default() }
    }
}

/// How a rule ended.
enum RuleEnd {
    /// It did not apply.
    NotForThis,
    /// It applied, and the next one is run.
    GoesOn,
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
    Unknown,
}

/// How a statement ended: the rule goes on, or this is its end.
type StatementResult = Result<(), RuleEnd>;

impl Walk<'_> {
    /// Runs the base chain at this index.
    pub(super) fn chain(&mut self, base: usize, hook: InetHook) -> HookEnd {
        let (mut chain, mut rule) = (base, 0);
        let mut returns: Vec<(usize, usize)> = Vec::new();
        for count in 0..MOST_RULES {
            if count % RULES_PER_LOOK == 0 && self.choices.is_out_of_time() {
                return HookEnd::Unknown;
            }
            let Some((home, current)) = self.ns.chains.get(chain).map(|home| (home, home.rules.get(rule)))
            else {
                return HookEnd::Unknown;
            };
            let Some(current) = current else {
                match returns.pop() {
                    Some(back) => (chain, rule) = back,
                    None => return self.policy(base),
                }
                continue;
            };
            let at = RuleAt { base, chain, rule };
            rule += 1;
            let ended = self.rule(current, at, hook);
            if !matches!(ended, RuleEnd::NotForThis) {
                self.steps.push(at);
            }
            match ended {
                RuleEnd::NotForThis | RuleEnd::GoesOn => {}
                RuleEnd::Accept => {
                    self.decided_by.get_or_insert(at);
                    return HookEnd::Passes;
                }
                RuleEnd::Drop => {
                    self.decided_by = Some(at);
                    return HookEnd::Dropped;
                }
                RuleEnd::Unknown => {
                    self.decided_by = Some(at);
                    return HookEnd::Unknown;
                }
                RuleEnd::Return => match returns.pop() {
                    Some(back) => (chain, rule) = back,
                    None => {
                        self.passed_by = Some(at);
                        return self.policy(base);
                    }
                },
                RuleEnd::Jump(to) | RuleEnd::Goto(to) if self.ns.chain(&home.table, &to).is_none() => {
                    self.decided_by = Some(at);
                    return HookEnd::Unknown;
                }
                RuleEnd::Jump(to) => {
                    if returns.len() >= MOST_JUMPS {
                        return HookEnd::Unknown;
                    }
                    returns.push((chain, rule));
                    (chain, rule) = (self.index(home, &to), 0);
                }
                RuleEnd::Goto(to) => (chain, rule) = (self.index(home, &to), 0),
            }
        }
        HookEnd::Unknown
    }

    fn index(&self, home: &crate::live::rules::LiveChain, name: &str) -> usize {
        self.ns.chain(&home.table, name).map_or(usize::MAX, |(index, _)| index)
    }

    fn policy(&mut self, base: usize) -> HookEnd {
        let drops = self.ns.chains.get(base).and_then(|chain| chain.base).is_some_and(|base| base.drops);
        if !drops {
            return HookEnd::Passes;
        }
        self.decided_by = Some(RuleAt { base, chain: base, rule: usize::MAX });
        HookEnd::Dropped
    }

    fn rule(&mut self, rule: &LiveRule, at: RuleAt, hook: InetHook) -> RuleEnd {
        // Whether a rule that only counts or logs applies makes no difference.
        if !rule.statements.iter().any(Statement::acts) {
            return RuleEnd::NotForThis;
        }
        self.here = RunningRule { at, hook, registers: Registers::default() };
        for statement in &rule.statements {
            let step = match statement {
                Statement::Expr(expr) => self.expr(expr),
                Statement::Header(header) => self.test(xt::header(header, &self.packet)),
                Statement::Match(test) => self.matches(test),
                Statement::Target(target) => self.target(target),
            };
            if let Err(ended) = step {
                return ended;
            }
        }
        RuleEnd::GoesOn
    }

    fn test(&mut self, truth: Truth) -> StatementResult {
        let at = self.here.at;
        let applies = truth.unwrap_or_else(|| self.choices.assume(UnknownFact::Applies(at)));
        if applies { Ok(()) } else { Err(RuleEnd::NotForThis) }
    }

    fn matches(&mut self, test: &crate::xt::XtMatch) -> StatementResult {
        let truth = xt::passes(test, &self.packet, self.entries.get(self.current), self.ns);
        self.test(truth)
    }

    fn expr(&mut self, expr: &Expr) -> StatementResult {
        match expr {
            Expr::Load { source, to } => {
                match self.packet.load(source, self.entries.get(self.current), self.ns) {
                    Some(bits) => self.here.registers.put(*to, &bits),
                    None => return Err(RuleEnd::NotForThis),
                }
            }
            Expr::Value { to, value } => self.here.registers.put(*to, &Bits::known(value.clone())),
            Expr::Bitwise { from, to, mask, xor } => {
                let bits = self.here.registers.get(*from, mask.len()).masked(mask, xor);
                self.here.registers.put(*to, &bits);
            }
            Expr::ByteOrder { from, to, length, size } => {
                let bits = self.here.registers.get(*from, *length);
                let bits = if cfg!(target_endian = "little") { bits.swapped(*size) } else { bits };
                self.here.registers.put(*to, &bits);
            }
            Expr::Compare { op, at: from, value } => {
                return self.test(self.here.registers.get(*from, value.len()).compare(*op, value));
            }
            Expr::Range { inverted, at: from, first, last } => {
                let inside = self.here.registers.get(*from, first.len()).between(first, last);
                return self.test(inside.map(|inside| inside != *inverted));
            }
            Expr::Lookup { set, at: from, to, inverted } => {
                return self.lookup((set, *inverted), *from, *to);
            }
            Expr::SetMark { from } => match number(&self.here.registers.get(*from, 4)) {
                Some(mark) => self.set_mark(mark),
                None => return Err(RuleEnd::Unknown),
            },
            Expr::SetConnectionMark { from } => match number(&self.here.registers.get(*from, 4)) {
                Some(mark) => self.set_connection_mark(mark),
                None => return Err(RuleEnd::Unknown),
            },
            Expr::SetZone { from } => match self.here.registers.get(*from, 2).whole() {
                Some(&[a, b]) => self.set_zone(u16::from_ne_bytes([a, b])),
                _ => return Err(RuleEnd::Unknown),
            },
            Expr::Verdict(code) => return verdict(code),
            Expr::Nat(nat) => return self.nat(nat),
            Expr::Tproxy { is_for, port } => return self.tproxy(*is_for, *port),
            Expr::Untrack => self.untrack(),
            Expr::Reject => return Err(RuleEnd::Drop),
            Expr::Nothing(_) => {}
            Expr::Test(_) => return self.test(None),
            Expr::Match(test) => return self.matches(test),
            Expr::Target(target) => return self.target(target),
            Expr::Unknown(_) => return Err(RuleEnd::Unknown),
        }
        Ok(())
    }

    fn lookup(&mut self, (name, inverted): (&str, bool), from: usize, to: Option<usize>) -> StatementResult {
        let table = self.ns.chains.get(self.here.at.chain).map(|chain| &chain.table);
        let Some(set) = table.and_then(|table| self.ns.set(table, name)) else {
            return Err(RuleEnd::Unknown);
        };
        let key = self.here.registers.get(from, set.key_length);
        let found = find(set, &key);
        let Some(to) = to else {
            return self.test(found.map(|found| found.is_some() != inverted));
        };
        match found {
            Some(None) => Err(RuleEnd::NotForThis),
            Some(Some(Data::Verdict(code))) if to == VERDICT => verdict(code),
            Some(Some(Data::Value(value))) => {
                self.here.registers.put(to, &Bits::known(value.clone()));
                Ok(())
            }
            None | Some(Some(_)) => Err(RuleEnd::Unknown),
        }
    }

    fn nat(&mut self, nat: &Nat) -> StatementResult {
        let length = if self.packet.is_v6() { 16 } else { 4 };
        let address = |from: Option<usize>| from.map(|from| self.here.registers.get(from, length));
        let port = |from: Option<usize>| from.map(|from| self.here.registers.get(from, 2));
        let is_one = |first: &Option<Bits>, last: &Option<Bits>| last.is_none() || first == last;
        let (first, port_first) = (address(nat.address), port(nat.port));
        if !is_one(&first, &address(nat.last_address)) || !is_one(&port_first, &port(nat.last_port)) {
            return Err(RuleEnd::Unknown);
        }
        let read = |bits: Option<Bits>| match bits {
            None => Ok(None),
            Some(bits) => bits.whole().map(|bytes| Some(bytes.to_vec())).ok_or(RuleEnd::Unknown),
        };
        let address = read(first)?.and_then(|bytes| self::address(&bytes));
        let port = read(port_first)?.and_then(|bytes| Some(u16::from_be_bytes(bytes.try_into().ok()?)));
        self.translate(nat.kind, address, port)
    }

    /// Sets a translation up (`nf_nat_setup_info`) and ends the rule.
    fn translate(&mut self, kind: NatKind, address: Option<IpAddr>, port: Option<u16>) -> StatementResult {
        let RunningRule { at, hook, .. } = self.here;
        let is_v6 = self.packet.is_v6();
        let address = match (kind, hook) {
            (NatKind::Redirect, InetHook::Output) => Some(loopback(is_v6)),
            (NatKind::Redirect, _) => Some(self.redirected_to()),
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

    /// The first address of the interface that the packet came in by. For an interface that is not there
    /// an address of the namespace stands for it.
    fn redirected_to(&self) -> IpAddr {
        let is_v6 = self.packet.is_v6();
        let named = match &self.packet.arrives {
            HookInterface::Name(name) => self.ns.primary(name, is_v6),
            HookInterface::None | HookInterface::Unknown => None,
        };
        named.unwrap_or_else(|| loopback(is_v6))
    }

    fn tproxy(&mut self, is_for: Option<Family>, port: Option<usize>) -> StatementResult {
        let is_v6 = self.packet.is_v6();
        if is_for.is_some_and(|family| (family == Family::V6) != is_v6) {
            return Err(RuleEnd::NotForThis);
        }
        let port = match port.map(|from| self.here.registers.get(from, 2)) {
            None => self.packet.destination.port(),
            Some(bits) => match bits.whole() {
                Some(&[a, b]) => u16::from_be_bytes([a, b]),
                _ => return Err(RuleEnd::Unknown),
            },
        };
        self.packet.intercepted = Some(port);
        self.decided_by = Some(self.here.at);
        Ok(())
    }

    fn target(&mut self, target: &XtTarget) -> StatementResult {
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
                self.decided_by = Some(self.here.at);
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
            XtTarget::Tracking(tracking) => {
                self.set_zone(tracking.zone);
                Ok(())
            }
            XtTarget::Log { .. } | XtTarget::NfLog { .. } => Ok(()),
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
        let is_part = matches!(self.packet.tracking, Tracking::Original | Tracking::Reply);
        self.entries.get_mut(self.current).filter(|_| is_part)
    }

    fn set_connection_mark(&mut self, mark: u32) {
        if let Some(entry) = self.connected() {
            entry.mark = mark;
        }
    }

    fn set_mark(&mut self, mark: u32) {
        self.packet.mark = mark;
        self.changed_by = Some(self.here.at);
    }

    /// A packet that has a connection or a zone keeps it (`nft_notrack_eval`, `xt_ct_target`).
    fn untrack(&mut self) {
        if is_open(&self.packet) {
            self.packet.tracking = Tracking::Untracked;
            self.changed_by = Some(self.here.at);
        }
    }

    fn set_zone(&mut self, zone: u16) {
        if is_open(&self.packet) {
            self.packet.zone = Some(zone);
            self.changed_by = Some(self.here.at);
        }
    }
}

fn loopback(is_v6: bool) -> IpAddr {
    if is_v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() }
}

fn is_open(packet: &CurrentPacket) -> bool {
    packet.tracking == Tracking::NotYet && packet.zone.is_none()
}

fn verdict(code: &Code) -> StatementResult {
    match code {
        Code::Accept => Err(RuleEnd::Accept),
        Code::Drop => Err(RuleEnd::Drop),
        Code::Continue => Ok(()),
        Code::Break => Err(RuleEnd::NotForThis),
        Code::Return => Err(RuleEnd::Return),
        Code::Jump(chain) => Err(RuleEnd::Jump(chain.clone())),
        Code::Goto(chain) => Err(RuleEnd::Goto(chain.clone())),
        Code::Other(_) => Err(RuleEnd::Unknown),
    }
}

fn number(bits: &Bits) -> Option<u32> {
    Some(u32::from_ne_bytes(bits.whole()?.try_into().ok()?))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        _ => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    }
}

/// The data of the key's element; `None` when it cannot be told whether there is one.
fn find<'s>(set: &'s Set, key: &Bits) -> Option<Option<&'s Data>> {
    if set.is_dynamic {
        return None;
    }
    for element in &set.elements {
        if holds(set, key, &element.first, &element.last)? {
            return Some(Some(&element.data));
        }
    }
    Some(set.catch_all.as_ref())
}

fn holds(set: &Set, key: &Bits, first: &[u8], last: &[u8]) -> Truth {
    if !set.is_interval {
        return key.equals(first);
    }
    if set.parts.len() < 2 {
        return key.between(first, last);
    }
    let mut at = 0;
    let parts = set.parts.iter().map(|length| {
        let part = key.slice(at, *length);
        let bound = |bytes: &[u8]| bytes.get(at..at + length).unwrap_or_default().to_vec();
        let truth = part.between(&bound(first), &bound(last));
        at += length.next_multiple_of(4);
        truth
    });
    xt::all(parts.collect::<Vec<_>>())
}
