//! Runs one chain for one packet, as `nft_do_chain` and `ipt_do_table` do.

use super::bits::{Bits, Registers, Truth};
use super::choices::UnknownFact;
use super::{HookEnd, RuleAt, Walk, xt};
use crate::live::rules::expr::{Code, Data, Expr, VERDICT};
use crate::live::rules::{LiveRule, Set, Statement};
use crate::xt::XtMatch;
use crate::xt::legacy::InetHook;

/// The outcome is unknown when more rules are run from one base chain.
const MAX_RULES: usize = 100_000;
/// The budget is checked once in this many rules.
const RULES_PER_CHECK: usize = 16;
/// Nested jumps. `NFT_JUMP_STACK_SIZE` is 16; iptables allows more.
const MAX_JUMPS: usize = 64;

/// The rule that is run.
pub(super) struct RunningRule {
    pub(super) at: RuleAt,
    pub(super) hook: InetHook,
    pub(super) registers: Registers,
}

impl Default for RunningRule {
    fn default() -> Self {
        let at = RuleAt { base: usize::MAX, chain: usize::MAX, rule: usize::MAX };
        Self { at, hook: InetHook::Output, registers: Registers::default() }
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
    pub(super) fn chain(&mut self, base: usize, hook: InetHook) -> HookEnd {
        let (mut chain, mut rule) = (base, 0);
        let mut returns: Vec<(usize, usize)> = Vec::new();
        for count in 0..MAX_RULES {
            if count % RULES_PER_CHECK == 0 && self.choices.is_out_of_time() {
                return HookEnd::Unknown;
            }
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
            let at = RuleAt { base, chain, rule };
            rule += 1;
            let ended = self.rule(current, at, hook);
            if !matches!(ended, RuleEnd::DoesNotApply) {
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
                RuleEnd::Goto(to) => (chain, rule) = (self.index(own, &to), 0),
            }
        }
        HookEnd::Unknown
    }

    fn index(&self, from: &crate::live::rules::LiveChain, name: &str) -> usize {
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

    fn rule(&mut self, rule: &LiveRule, at: RuleAt, hook: InetHook) -> RuleEnd {
        // A rule that only counts or logs changes nothing.
        if !rule.statements.iter().any(Statement::acts) {
            return RuleEnd::DoesNotApply;
        }
        self.rule = RunningRule { at, hook, registers: Registers::default() };
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
        RuleEnd::Continues
    }

    fn test(&mut self, truth: Truth) -> StatementResult {
        let at = self.rule.at;
        let applies = truth.unwrap_or_else(|| self.choices.assume(UnknownFact::Applies(at)));
        if applies { Ok(()) } else { Err(RuleEnd::DoesNotApply) }
    }

    fn matches(&mut self, test: &XtMatch) -> StatementResult {
        let truth = xt::passes(test, &self.packet, self.entries.get(self.current), self.rules);
        self.test(truth)
    }

    fn expr(&mut self, expr: &Expr) -> StatementResult {
        match expr {
            Expr::Load { source, to } => {
                match self.packet.load(source, self.entries.get(self.current), self.rules) {
                    Some(bits) => self.rule.registers.put(*to, &bits),
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
            Expr::Lookup { set, at: from, to, inverted } => {
                return self.lookup((set, *inverted), *from, *to);
            }
            Expr::SetMark { from } => match self.rule.registers.get(*from, 4).number() {
                Some(mark) => self.set_mark(mark),
                None => return Err(RuleEnd::Unknown),
            },
            Expr::SetConnectionMark { from } => match self.rule.registers.get(*from, 4).number() {
                Some(mark) => self.set_connection_mark(mark),
                None => return Err(RuleEnd::Unknown),
            },
            Expr::SetZone { from } => match self.rule.registers.get(*from, 2).whole() {
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
        let table = self.rules.chains.get(self.rule.at.chain).map(|chain| &chain.table);
        let Some(set) = table.and_then(|table| self.rules.set(table, name)) else {
            return Err(RuleEnd::Unknown);
        };
        let key = self.rule.registers.get(from, set.key_length);
        let found = find(set, &key);
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
