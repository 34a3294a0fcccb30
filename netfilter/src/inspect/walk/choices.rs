//! What a walk does not know, and the values it tries: each walk assumes values, and is repeated with others until all
//! were tried or the budget is spent.

use super::RuleAt;
use std::cell::Cell;

/// How many walks of one connection are tried.
const MOST: usize = 256;

/// What a walk does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UnknownFact {
    /// Whether a rule applies.
    Applies(RuleAt),
    /// Whether the first of two chains runs before the second.
    Order(usize, usize),
}

/// The values that one walk assumes.
#[derive(Debug)]
pub(super) struct Choices<'b> {
    pub(super) budget: &'b Budget,
    /// Each value with what it is about.
    values: Vec<(bool, UnknownFact)>,
    /// How many of them the walk has used.
    used: usize,
    walks: usize,
}

impl<'b> Choices<'b> {
    pub(super) fn within(budget: &'b Budget) -> Self {
        Self { budget, values: Vec::new(), used: 0, walks: 0 }
    }

    /// The value that this walk assumes; true for a fact that no walk before met.
    pub(super) fn assume(&mut self, fact: UnknownFact) -> bool {
        let value = match self.values.get_mut(self.used) {
            Some((value, about)) => {
                *about = fact;
                *value
            }
            None => {
                self.values.push((true, fact));
                true
            }
        };
        self.used += 1;
        value
    }

    /// Begins the walk with the next values; false when all were tried.
    pub(super) fn next(&mut self) -> bool {
        self.values.truncate(self.used);
        self.used = 0;
        self.walks += 1;
        while self.values.last().is_some_and(|(value, _)| !value) {
            self.values.pop();
        }
        let Some((value, _)) = self.values.last_mut() else { return false };
        *value = false;
        true
    }

    /// Reports whether more walks or more steps would be needed than there are.
    pub(super) fn are_too_many(&self) -> bool {
        self.walks >= MOST || self.budget.is_spent()
    }

    /// The fact that differs between this walk and the one before.
    pub(super) fn last(&self) -> Option<&UnknownFact> {
        self.values.iter().rev().find(|(value, _)| !value).map(|(_, fact)| fact)
    }
}

/// A limit of work: a pod that may write rules can make them long. It counts steps (packets at hooks, statements of
/// rules, elements of sets that are compared) and not time, so that a busy machine changes no outcome.
#[derive(Debug)]
pub(crate) struct Budget(Cell<usize>);

impl Budget {
    pub(crate) fn of(steps: usize) -> Self {
        Self(Cell::new(steps))
    }

    /// Counts steps; false when there are not as many left.
    pub(crate) fn spend(&self, steps: usize) -> bool {
        let left = self.0.get().checked_sub(steps);
        self.0.set(left.unwrap_or_default());
        left.is_some() && !self.is_spent()
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}
