//! Runs one chain for one packet, as `nft_do_chain` and `ipt_do_table` do.

use super::bits::{Bits, Registers, Truth};
use super::choices::{Budget, UnknownFact};
use super::packet::Zone;
use super::{HookEnd, RuleAt, Walk, xt};
use crate::inspect::live::rules::expr::{Checksum, Code, Data, Expr, LoadSource, VERDICT};
use crate::inspect::live::rules::{LiveRule, Set, Statement};
use crate::kernel::uapi::{NFT_META_SKGID, NFT_META_SKUID};
use crate::model::ruleset::{Family, Hook};
use crate::xt::XtMatch;

/// Nested jumps. `NFT_JUMP_STACK_SIZE` is 16; iptables allows more.
const MAX_JUMPS: usize = 64;

/// How many rules that apply are recorded.
const MAX_STEPS: usize = 1_000;

/// The rule that is run.
pub(super) struct RunningRule {
    pub(super) at: RuleAt,
    pub(super) hook: Hook,
    pub(super) registers: Registers,
    /// A load may have ended it.
    may_have_ended: bool,
}

impl Default for RunningRule {
    fn default() -> Self {
        let at = RuleAt { base: usize::MAX, chain: usize::MAX, rule: usize::MAX };
        Self::new(at, Hook::Output)
    }
}

impl RunningRule {
    fn new(at: RuleAt, hook: Hook) -> Self {
        Self { at, hook, registers: Registers::default(), may_have_ended: false }
    }
}

/// The result of a rule for a packet.
pub(super) enum RuleEnd {
    /// It does not apply.
    DoesNotApply,
    /// It applies, and the next one is run.
    Continues,
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
    Unknown,
}

/// The result of a statement: the rule goes on, or ends.
pub(super) type StatementResult = Result<(), RuleEnd>;

impl Walk<'_> {
    /// Runs the base chain at this index.
    pub(super) fn chain(&mut self, base: usize, hook: Hook) -> HookEnd {
        let (mut chain, mut rule) = (base, 0);
        let mut returns: Vec<(usize, usize)> = Vec::new();
        loop {
            let Some((own, current)) = self.rules.chains.get(chain).map(|own| (own, own.rules.get(rule)))
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
            if !self.choices.budget.spend(1 + current.statements.len()) {
                return HookEnd::Unknown;
            }
            let at = RuleAt { base, chain, rule };
            rule += 1;
            let ended = self.rule(current, at, hook);
            if !matches!(ended, RuleEnd::DoesNotApply) && self.steps.len() < MAX_STEPS {
                self.steps.push(at);
            }
            match ended {
                RuleEnd::DoesNotApply | RuleEnd::Continues => {}
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
                RuleEnd::Jump(to) | RuleEnd::Goto(to) if self.rules.chain(&own.table, &to).is_none() => {
                    self.decided_by = Some(at);
                    return HookEnd::Unknown;
                }
                RuleEnd::Jump(to) => {
                    if returns.len() >= MAX_JUMPS {
                        return HookEnd::Unknown;
                    }
                    returns.push((chain, rule));
                    (chain, rule) = (self.index(own, &to), 0);
                }
                RuleEnd::Goto(to) => {
                    // After a jump the packet comes back, and a later rule decides.
                    if returns.is_empty() {
                        self.passed_by.get_or_insert(at);
                    }
                    (chain, rule) = (self.index(own, &to), 0);
                }
            }
        }
    }

    fn index(&self, from: &crate::inspect::live::rules::LiveChain, name: &str) -> usize {
        self.rules.chain(&from.table, name).map_or(usize::MAX, |(index, _)| index)
    }

    fn policy(&mut self, base: usize) -> HookEnd {
        let drops = self.rules.chains.get(base).and_then(|chain| chain.base).is_some_and(|base| base.drops);
        if !drops {
            return HookEnd::Passes;
        }
        self.decided_by = Some(RuleAt { base, chain: base, rule: usize::MAX });
        HookEnd::Dropped
    }

    fn rule(&mut self, rule: &LiveRule, at: RuleAt, hook: Hook) -> RuleEnd {
        // A rule that only counts or logs changes nothing.
        if !rule.statements.iter().any(Statement::acts) {
            return RuleEnd::DoesNotApply;
        }
        self.rule = RunningRule::new(at, hook);
        for statement in &rule.statements {
            if statement.acts()
                && let Err(ended) = self.test(Some(true))
            {
                return ended;
            }
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
        RuleEnd::Continues
    }

    /// Goes on when the test passes, and no load before it ended the rule.
    fn test(&mut self, truth: Truth) -> StatementResult {
        let at = self.rule.at;
        let may_have_ended = std::mem::take(&mut self.rule.may_have_ended);
        let truth = truth.filter(|passes| !passes || !may_have_ended);
        let applies = truth.unwrap_or_else(|| self.choices.assume(UnknownFact::Applies(at)));
        if applies { Ok(()) } else { Err(RuleEnd::DoesNotApply) }
    }

    fn matches(&mut self, test: &XtMatch) -> StatementResult {
        if test.acts() {
            return Err(RuleEnd::Unknown);
        }
        let truth = xt::passes(test, &self.packet, self.entries.get(self.current), self.rules);
        self.test(truth)
    }

    fn expr(&mut self, expr: &Expr) -> StatementResult {
        match expr {
            // The kernel has found the socket that receives the packet: a transparent one, or that of a known
            // connection (`tcp_v4_early_demux`, net/ipv4/tcp_ipv4.c, v6.18).
            Expr::Load { source: LoadSource::Meta(NFT_META_SKUID | NFT_META_SKGID), to }
                if self.may_have_receiver() =>
            {
                self.rule.registers.put(*to, &Bits::unknown(4));
                self.rule.may_have_ended = true;
            }
            Expr::Load { source, to } => {
                match self.packet.load(source, self.entries.get(self.current), self.rules) {
                    Some(loaded) => {
                        self.rule.registers.put(*to, &loaded.bits);
                        self.rule.may_have_ended |= loaded.may_end;
                    }
                    None => return Err(RuleEnd::DoesNotApply),
                }
            }
            Expr::Value { to, value } => self.rule.registers.put(*to, &Bits::known(value.clone())),
            Expr::Bitwise { from, to, mask, xor } => {
                let bits = self.rule.registers.get(*from, mask.len()).masked(mask, xor);
                self.rule.registers.put(*to, &bits);
            }
            Expr::ByteOrder { from, to, length, size } => {
                let bits = self.rule.registers.get(*from, *length);
                let bits = if cfg!(target_endian = "little") { bits.swapped(*size) } else { bits };
                self.rule.registers.put(*to, &bits);
            }
            Expr::Compare { op, at: from, value } => {
                return self.test(self.rule.registers.get(*from, value.len()).compare(*op, value));
            }
            Expr::Range { inverted, at: from, first, last } => {
                let inside = self.rule.registers.get(*from, first.len()).between(first, last);
                return self.test(inside.map(|inside| inside != *inverted));
            }
            Expr::Lookup { set, at: from, to, inverted } => return self.lookup(set, *from, *to, *inverted),
            Expr::SetMark { from } => self.set_mark(u32::from_ne_bytes(self.known(*from)?)),
            Expr::SetConnectionMark { from } => {
                self.set_connection_mark(u32::from_ne_bytes(self.known(*from)?));
            }
            Expr::SetZone { from, direction } => {
                let id = u16::from_ne_bytes(self.known(*from)?);
                self.set_zone(Zone { id, direction: *direction, is_by_mark: false });
            }
            Expr::Write { from, base, offset, length, updates } => {
                let is_v4 = self.packet.family() == Family::V4;
                let required = if is_v4 { Checksum::Ipv4 } else { Checksum::None };
                let written = self.rule.registers.get(*from, *length);
                if *updates != required || !self.packet.survives(*base, *offset, &written) {
                    return Err(RuleEnd::Unknown);
                }
            }
            Expr::Verdict(code) => return verdict(code),
            Expr::Nat(nat) => return self.nat(nat),
            Expr::Tproxy { is_for, port } => return self.tproxy(*is_for, *port),
            Expr::Untrack => self.untrack(),
            Expr::Reject => return Err(RuleEnd::Drop),
            Expr::Nothing(_) => {}
            Expr::Test(_) | Expr::Update(_) => return self.test(None),
            Expr::Match(test) => return self.matches(test),
            Expr::Target(target) => return self.target(target),
            Expr::Unknown(_) | Expr::ObjectOf(_) | Expr::OtherConnections(_) => return Err(RuleEnd::Unknown),
        }
        Ok(())
    }

    /// The bytes of a register; every bit of them must be known.
    pub(super) fn known<const N: usize>(&self, from: usize) -> Result<[u8; N], RuleEnd> {
        let bits = self.rule.registers.get(from, N);
        bits.whole().and_then(|bytes| bytes.try_into().ok()).ok_or(RuleEnd::Unknown)
    }

    fn may_have_receiver(&self) -> bool {
        let arrives = self.rule.hook == Hook::Input || self.packet.intercepted.is_some();
        arrives && self.packet.owner.is_none()
    }

    fn lookup(&mut self, name: &str, from: usize, to: Option<usize>, inverted: bool) -> StatementResult {
        let table = self.rules.chains.get(self.rule.at.chain).map(|chain| &chain.table);
        let Some(set) = table.and_then(|table| self.rules.set(table, name)) else {
            return Err(RuleEnd::Unknown);
        };
        let key = self.rule.registers.get(from, set.key_length);
        let found = find(set, &key, self.choices.budget);
        let Some(to) = to else {
            return self.test(found.map(|found| found.is_some() != inverted));
        };
        match found {
            Some(None) => Err(RuleEnd::DoesNotApply),
            Some(Some(Data::Verdict(code))) if to == VERDICT => verdict(code),
            Some(Some(Data::Value(value))) => {
                self.rule.registers.put(to, &Bits::known(value.clone()));
                Ok(())
            }
            None | Some(Some(_)) => Err(RuleEnd::Unknown),
        }
    }
}

fn verdict(code: &Code) -> StatementResult {
    match code {
        Code::Accept => Err(RuleEnd::Accept),
        Code::Drop => Err(RuleEnd::Drop),
        Code::Continue => Ok(()),
        Code::Break => Err(RuleEnd::DoesNotApply),
        Code::Return => Err(RuleEnd::Return),
        Code::Jump(chain) => Err(RuleEnd::Jump(chain.clone())),
        Code::Goto(chain) => Err(RuleEnd::Goto(chain.clone())),
        Code::Other(_) => Err(RuleEnd::Unknown),
    }
}

/// Returns the data of the key's element; `None` when unknown bits of the key decide.
fn find<'s>(set: &'s Set, key: &Bits, budget: &Budget) -> Option<Option<&'s Data>> {
    if set.is_dynamic {
        return None;
    }
    let elements = match key.whole().filter(|_| !set.is_interval || set.parts.len() < 2) {
        // The elements are sorted, and no two overlap.
        Some(key) => {
            let after = set.elements.partition_point(|element| element.first.as_slice() <= key);
            set.elements.get(after.saturating_sub(1)..after).unwrap_or_default()
        }
        None => set.elements.as_slice(),
    };
    if !budget.spend(elements.len()) {
        return None;
    }
    for element in elements {
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
