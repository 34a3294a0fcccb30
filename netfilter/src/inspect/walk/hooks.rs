//! The order in which the kernel runs the chains at a hook.

use crate::inspect::live::rules::{BaseChain, ChainKind, LiveChain, NamespaceRules};
use crate::model::ruleset::{Family, Hook};
use std::cmp::Reverse;

/// `NF_IP_PRI_CONNTRACK`: connection tracking at prerouting and output.
const CONNTRACK: i32 = -200;
/// `NF_IP_PRI_NAT_DST`: the kernel runs every chain of type nat at prerouting and output there, whatever
/// its own priority (`nf_nat_register_fn`, net/netfilter/nf_nat_core.c, v6.18).
const NAT_DESTINATION: i32 = -100;
/// `NF_IP_PRI_NAT_SRC`: the same at input and postrouting.
const NAT_SOURCE: i32 = 100;

/// What the kernel runs at a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HookFunction {
    Chain(usize),
    Tracking,
    Translation,
}

/// A function of a hook, in the order of the kernel. The order of two chains of one priority is not always known.
#[derive(Debug, Clone, Copy)]
pub(super) struct HookPosition {
    pub(super) function: HookFunction,
    pub(super) may_come_after_next: bool,
}

/// What the kernel runs at `hook`, in order.
pub(super) fn at(ns: &NamespaceRules, hook: Hook, family: Family) -> Vec<HookPosition> {
    let mut functions: Vec<(i32, HookFunction)> = based(ns, family)
        .filter(|(_, _, base)| base.hook == hook && base.kind != ChainKind::Nat)
        .map(|(index, _, base)| (base.priority, HookFunction::Chain(index)))
        .collect();
    if matches!(hook, Hook::Prerouting | Hook::Output) {
        functions.push((CONNTRACK, HookFunction::Tracking));
    }
    if based(ns, family).any(|(_, _, base)| base.kind == ChainKind::Nat) {
        match hook {
            Hook::Prerouting | Hook::Output => {
                functions.push((NAT_DESTINATION, HookFunction::Translation));
            }
            Hook::Input | Hook::Postrouting => {
                functions.push((NAT_SOURCE, HookFunction::Translation));
            }
            Hook::Forward => {}
        }
    }
    ordered(ns, functions)
}

/// The chains of type nat at `hook`, in order: the first that translates decides.
pub(super) fn translating(ns: &NamespaceRules, hook: Hook, family: Family) -> Vec<HookPosition> {
    let chains = based(ns, family).filter(|(_, _, base)| base.hook == hook && base.kind == ChainKind::Nat);
    ordered(ns, chains.map(|(index, _, base)| (base.priority, HookFunction::Chain(index))).collect())
}

fn based(ns: &NamespaceRules, family: Family) -> impl Iterator<Item = (usize, &LiveChain, BaseChain)> {
    let chains = ns.chains.iter().enumerate().filter(move |(_, chain)| chain.table.family.applies_to(family));
    chains.filter_map(|(index, chain)| Some((index, chain, chain.base?)))
}

/// Sorts by priority; of one priority the chain that was registered last comes first (`nf_hook_entries_grow`,
/// net/netfilter/core.c, v6.18).
fn ordered(ns: &NamespaceRules, mut functions: Vec<(i32, HookFunction)>) -> Vec<HookPosition> {
    let chain = |function: HookFunction| match function {
        HookFunction::Chain(index) => ns.chains.get(index),
        HookFunction::Tracking | HookFunction::Translation => None,
    };
    // A chain of unknown age is most likely younger than the others.
    let age = |function: HookFunction| {
        chain(function).and_then(|chain| chain.age).map_or((u64::MAX, 0), |age| (age.table, age.chain))
    };
    functions.sort_by_key(|(priority, function)| (*priority, Reverse(age(*function))));
    let mut positions: Vec<HookPosition> = functions
        .iter()
        .map(|(_, function)| HookPosition { function: *function, may_come_after_next: false })
        .collect();
    let matters = |function: HookFunction| chain(function).is_none_or(|chain| !chain.rules.is_empty());
    let is_known = |first: HookFunction, second: HookFunction| match (chain(first), chain(second)) {
        (Some(first), Some(second)) => is_younger(first, second),
        _ => false,
    };
    // A pair of unknown order makes the order of all between them unknown.
    for (at, (priority, first)) in
        functions.iter().enumerate().filter(|(_, (_, function))| matters(*function))
    {
        let same = functions.iter().enumerate().skip(at + 1).filter(|(_, (other, _))| other == priority);
        let mut unknown = same.filter(|(_, (_, second))| matters(*second) && !is_known(*first, *second));
        if let Some((last, _)) = unknown.next_back() {
            positions.iter_mut().take(last).skip(at).for_each(|position| position.may_come_after_next = true);
        }
    }
    positions
}

/// Reports whether the first was certainly registered after the second. Handles of tables grow within a namespace,
/// handles of chains within a table.
fn is_younger(first: &LiveChain, second: &LiveChain) -> bool {
    let (Some(first_age), Some(second_age)) = (first.age, second.age) else { return false };
    match first.table == second.table {
        true => first_age.chain > second_age.chain,
        false => first_age.table > second_age.table && second_age.is_of_one_transaction,
    }
}
