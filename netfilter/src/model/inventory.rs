//! Gybe's rules in a namespace as names and comparable bytes: chains with their rules in order, sets with their
//! elements.

mod difference;

pub use difference::Difference;
pub(crate) use difference::DifferenceKind;

/// The rules that a write replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviousRules {
    /// The namespace had no rules of Gybe.
    None,
    /// It had exactly these rules; nothing was written.
    Same,
    /// It had other rules of Gybe, which are gone.
    Different,
}

/// Gybe's rules in one namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Chains, sets and table flags, ordered by name.
    pub parts: Vec<Part>,
}

/// A chain, a set or a flag of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Its name.
    pub name: String,
    /// Its properties (type, hook, priority, ...) as bytes, for comparison.
    pub form: Vec<u8>,
    /// A chain's rules in order, or a set's elements sorted.
    pub items: Vec<Item>,
}

/// The kinds of [`Part`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartKind {
    /// A chain; its items are rules, whose order matters.
    Chain,
    /// A set; its items are elements, without order.
    Set,
    /// A flag of the table. Gybe sets none; `dormant` disables all rules of the table.
    TableFlag,
}

/// A rule or an element of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The rule's id, or the element as text.
    pub id: String,
    /// Its content as bytes, for comparison, with counters at zero.
    pub form: Vec<u8>,
    /// Packets that matched the rule, where the backend counts them.
    pub packets: Option<u64>,
    /// Bytes of those packets.
    pub bytes: Option<u64>,
}

impl Inventory {
    /// An inventory of these parts, which are sorted.
    pub fn of(mut parts: Vec<Part>) -> Self {
        parts.sort_by(|left, right| (&left.name, left.kind).cmp(&(&right.name, right.kind)));
        Self { parts }
    }

    /// Reports whether there are no rules of Gybe.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Reports whether two parts have one kind and name, which no namespace can have.
    pub(crate) fn has_duplicate_names(&self) -> bool {
        self.parts.windows(2).any(|pair| matches!(pair, [a, b] if (&a.name, a.kind) == (&b.name, b.kind)))
    }

    /// Reports whether the inventory has exactly this part, without regard to counters.
    pub(crate) fn holds(&self, desired: &Part) -> bool {
        let found = self.parts.iter().find(|part| (part.kind, &part.name) == (desired.kind, &desired.name));
        found.is_some_and(|found| {
            let mut differences = Vec::new();
            difference::compare(desired, found, &mut differences);
            differences.is_empty()
        })
    }

    /// The changes that would make `found` equal to `self`, without regard to counters.
    pub fn differences(&self, found: &Self) -> Vec<Difference> {
        difference::between(self, found)
    }
}
