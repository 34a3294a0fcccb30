//! What a walk does not know, and the values it tries: each walk assumes values, and is repeated with others until all
//! were tried or the budget is spent.

use super::RuleAt;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

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
pub(super) struct Choices {
    budget: Budget,
    /// Each value with what it is about.
    values: Vec<(bool, UnknownFact)>,
    /// How many of them the walk has used.
    used: usize,
    walks: usize,
}

impl Choices {
    pub(super) fn within(budget: Budget) -> Self {
        Self { budget, values: Vec::new(), used: 0, walks: 0 }
    }

    pub(super) fn is_out_of_time(&self) -> bool {
        self.budget.is_spent()
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

    /// Reports whether more walks or more time would be needed than there are.
    pub(super) fn are_too_many(&self) -> bool {
        self.walks >= MOST || self.is_out_of_time()
    }

    /// The fact that differs between this walk and the one before.
    pub(super) fn last(&self) -> Option<&UnknownFact> {
        self.values.iter().rev().find(|(value, _)| !value).map(|(_, fact)| fact)
    }
}

/// A limit of computing time: a pod that may write rules can make them long. It is the time of the calling thread,
/// which other processes on a loaded node do not use up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    until: Option<Duration>,
}

impl Budget {
    pub(crate) fn of(time: Duration) -> Self {
        Self { until: thread_time().map(|used| used.saturating_add(time)) }
    }

    pub(crate) fn is_spent(self) -> bool {
        match (thread_time(), self.until) {
            (Some(used), Some(until)) => used >= until,
            _ => true,
        }
    }
}

fn thread_time() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from)
}
