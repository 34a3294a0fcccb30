//! What of ours is in a namespace: chains and sets by name, their rules and elements in order.
//!
//! Comparing two inventories is in `difference`.

use super::difference::{self, Difference};

/// All of it. Empty when there is nothing of ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Chains, sets and table flags, ordered by name.
    pub parts: Vec<Part>,
}

/// A chain, a set or a flag of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Which of them.
    pub kind: PartKind,
    /// Its name.
    pub name: String,
    /// What it is (type, hook, priority, ...) as bytes that are equal when it is the same.
    pub form: Vec<u8>,
    /// A chain's rules in order, or a set's elements sorted.
    pub items: Vec<Item>,
}

/// What a [`Part`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartKind {
    /// A chain; its items are rules, and their order is meaning.
    Chain,
    /// A set; its items are elements, and their order is none.
    Set,
    /// A flag of the table that holds them all, which none of ours ever has: `dormant` turns every
    /// rule in it off.
    TableFlag,
}

/// A rule or an element of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The rule's id, or the element as text.
    pub id: String,
    /// What it is, as bytes that are equal when it is the same; counters count as zero.
    pub form: Vec<u8>,
    /// Packets that met the rule, where that is counted.
    pub packets: Option<u64>,
    /// Bytes of those packets.
    pub bytes: Option<u64>,
}

impl Inventory {
    /// These parts, put in order.
    pub fn of(mut parts: Vec<Part>) -> Self {
        parts.sort_by(|left, right| (&left.name, left.kind).cmp(&(&right.name, right.kind)));
        Self { parts }
    }

    /// Is there nothing of ours?
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Does it hold two parts of one kind and name, as no namespace can?
    pub(crate) fn has_twins(&self) -> bool {
        self.parts.windows(2).any(|pair| matches!(pair, [a, b] if (&a.name, a.kind) == (&b.name, b.kind)))
    }

    /// Reports whether this part is in it, but for counters.
    pub(crate) fn holds(&self, wanted: &Part) -> bool {
        let found = self.parts.iter().find(|part| (part.kind, &part.name) == (wanted.kind, &wanted.name));
        found.is_some_and(|found| {
            let mut differences = Vec::new();
            difference::compare(wanted, found, &mut differences);
            differences.is_empty()
        })
    }

    /// What has to change in `found` to be as `self`; empty when they are the same but for counters.
    pub fn differences(&self, found: &Self) -> Vec<Difference> {
        difference::between(self, found)
    }
}
