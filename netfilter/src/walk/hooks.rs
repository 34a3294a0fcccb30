//! The order in which the kernel runs the chains at a hook.

use crate::live::rules::{BaseChain, ChainKind, LiveChain, NamespaceRules};
use crate::xt::legacy::InetHook;
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
pub(super) enum Item {
    Chain(usize),
    Tracking,
    Translation,
}

/// A position in the order. The order of two chains of one priority is not always known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) item: Item,
    pub(super) may_come_after_next: bool,
}

/// What the kernel runs at `hook`, in order.
pub(super) fn at(ns: &NamespaceRules, hook: InetHook, is_v6: bool) -> Vec<Place> {
    let mut items: Vec<(i32, Item)> = based(ns, is_v6)
        .filter(|(_, _, base)| base.hook == hook && base.kind != ChainKind::Nat)
        .map(|(index, _, base)| (base.priority, Item::Chain(index)))
        .collect();
    if matches!(hook, InetHook::Prerouting | InetHook::Output) {
        items.push((CONNTRACK, Item::Tracking));
    }
    if based(ns, is_v6).any(|(_, _, base)| base.kind == ChainKind::Nat) {
        match hook {
            InetHook::Prerouting | InetHook::Output => items.push((NAT_DESTINATION, Item::Translation)),
            InetHook::Input | InetHook::Postrouting => items.push((NAT_SOURCE, Item::Translation)),
            InetHook::Forward => {}
        }
    }
    ordered(ns, items)
}

/// The chains of type nat at `hook`, in order: the first that translates decides.
pub(super) fn translating(ns: &NamespaceRules, hook: InetHook, is_v6: bool) -> Vec<Place> {
    let chains = based(ns, is_v6).filter(|(_, _, base)| base.hook == hook && base.kind == ChainKind::Nat);
    ordered(ns, chains.map(|(index, _, base)| (base.priority, Item::Chain(index))).collect())
}

fn based(ns: &NamespaceRules, is_v6: bool) -> impl Iterator<Item = (usize, &LiveChain, BaseChain)> {
    let chains = ns.chains.iter().enumerate().filter(move |(_, chain)| chain.table.family.applies_to(is_v6));
    chains.filter_map(|(index, chain)| Some((index, chain, chain.base?)))
}

/// Sorts by priority; of one priority the chain that was registered last comes first (`nf_hook_entries_grow`,
/// net/netfilter/core.c, v6.18).
fn ordered(ns: &NamespaceRules, mut items: Vec<(i32, Item)>) -> Vec<Place> {
    let chain = |item: Item| match item {
        Item::Chain(index) => ns.chains.get(index),
        Item::Tracking | Item::Translation => None,
    };
    // A chain of unknown age is most likely younger than the others.
    let age = |item: Item| {
        chain(item).and_then(|chain| chain.age).map_or((u64::MAX, 0), |age| (age.table, age.chain))
    };
    items.sort_by_key(|(priority, item)| (*priority, Reverse(age(*item))));
    let mut places: Vec<Place> =
        items.iter().map(|(_, item)| Place { item: *item, may_come_after_next: false }).collect();
    let matters = |item: Item| chain(item).is_none_or(|chain| !chain.rules.is_empty());
    let is_known = |first: Item, second: Item| match (chain(first), chain(second)) {
        (Some(first), Some(second)) => is_younger(first, second),
        _ => false,
    };
    // A pair of unknown order makes the order of all between them unknown.
    for (at, (priority, first)) in items.iter().enumerate().filter(|(_, (_, item))| matters(*item)) {
        let same = items.iter().enumerate().skip(at + 1).filter(|(_, (other, _))| other == priority);
        let mut unknown = same.filter(|(_, (_, second))| matters(*second) && !is_known(*first, *second));
        if let Some((last, _)) = unknown.next_back() {
            places.iter_mut().take(last).skip(at).for_each(|place| place.may_come_after_next = true);
        }
    }
    places
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
