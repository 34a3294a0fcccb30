//! Compares two inventories: returns each chain, set, rule and element that differs, by its name.

use super::{Inventory, Item, Part, PartKind};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// One difference between the desired and the observed inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub(crate) kind: DifferenceKind,
    /// What differs, or contains what differs.
    pub(crate) of: PartKind,
    /// Its name.
    part: String,
    /// The rule or element in it; `None` when the chain or set itself differs.
    pub(crate) item: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DifferenceKind {
    /// It is desired and absent.
    Missing,
    /// It is there with another content.
    Changed,
    /// It is there and not desired.
    Extra,
    /// A rule is there, in another order.
    Moved,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, of, part, item } = self;
        let fact = match kind {
            DifferenceKind::Missing => "is missing",
            DifferenceKind::Changed => "is not as it was written",
            DifferenceKind::Extra => "should not be there",
            DifferenceKind::Moved => "is out of order",
        };
        match (of, item) {
            (PartKind::Chain, None) => write!(f, "chain {part} {fact}"),
            (PartKind::Set, None) => write!(f, "set {part} {fact}"),
            (PartKind::Chain, Some(item)) => write!(f, "rule {item:?} in chain {part} {fact}"),
            (PartKind::Set, Some(item)) => write!(f, "element {item} of set {part} {fact}"),
            (PartKind::TableFlag, _) => write!(f, "the table's flag {part} {fact}"),
        }
    }
}

impl Part {
    fn differs(&self, kind: DifferenceKind, item: Option<&Item>) -> Difference {
        let item = item.map(|item| item.id.clone());
        Difference { kind, of: self.kind, part: self.name.clone(), item }
    }
}

/// Returns the differences of `found` from `desired`.
pub(super) fn between(desired: &Inventory, found: &Inventory) -> Vec<Difference> {
    let key = |part: &Part| (part.kind, part.name.clone());
    let there: HashMap<_, &Part> = found.parts.iter().map(|part| (key(part), part)).collect();
    let names: HashSet<_> = desired.parts.iter().map(key).collect();
    let mut all = Vec::new();
    for part in &desired.parts {
        match there.get(&key(part)) {
            Some(other) => compare(part, other, &mut all),
            None => all.push(part.differs(DifferenceKind::Missing, None)),
        }
    }
    let extra = found.parts.iter().filter(|part| !names.contains(&key(part)));
    all.extend(extra.map(|part| part.differs(DifferenceKind::Extra, None)));
    all
}

pub(super) fn compare(desired: &Part, found: &Part, all: &mut Vec<Difference>) {
    if desired.form != found.form {
        all.push(desired.differs(DifferenceKind::Changed, None));
    }
    if desired.items.len() == found.items.len()
        && desired.items.iter().zip(&found.items).all(|(desired, found)| is_same(desired, found))
    {
        return;
    }
    // Of several found items with one id the first is compared; the others are extra.
    let mut first_found: HashMap<&str, (usize, &Item)> = HashMap::with_capacity(found.items.len());
    for (position, item) in found.items.iter().enumerate().rev() {
        first_found.insert(&item.id, (position, item));
    }
    let mut positions = Vec::new();
    let mut kept = HashSet::new();
    for item in &desired.items {
        match first_found.get(item.id.as_str()) {
            None => all.push(desired.differs(DifferenceKind::Missing, Some(item))),
            Some((position, other)) => {
                kept.insert(*position);
                positions.push((*position, item));
                if !is_same(item, other) {
                    all.push(desired.differs(DifferenceKind::Changed, Some(item)));
                }
            }
        }
    }
    if desired.kind == PartKind::Chain {
        let moved = out_of_order(&positions);
        all.extend(moved.map(|item| desired.differs(DifferenceKind::Moved, Some(item))));
    }
    let extra = found.items.iter().enumerate().filter(|(position, _)| !kept.contains(position));
    all.extend(extra.map(|(_, item)| desired.differs(DifferenceKind::Extra, Some(item))));
}

fn is_same(desired: &Item, found: &Item) -> bool {
    desired.id == found.id && desired.form == found.form
}

/// The fewest items that have to move to be in order: those outside the longest ascending subsequence of positions. A
/// chain may have thousands of rules, so the search keeps, for each length, only the subsequence with the lowest end:
/// its last item, and for each item the one before it.
fn out_of_order<'i>(positions: &[(usize, &'i Item)]) -> impl Iterator<Item = &'i Item> {
    let position = |at: usize| positions.get(at).map(|(position, _)| *position);
    let (mut ends, mut before) = (Vec::<usize>::new(), Vec::with_capacity(positions.len()));
    for (at, (found_at, _)) in positions.iter().enumerate() {
        let length = ends.partition_point(|end| position(*end) < Some(*found_at));
        before.push(length.checked_sub(1).and_then(|shorter| ends.get(shorter)).copied());
        match ends.get_mut(length) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let last = ends.last().copied();
    let stay: HashSet<usize> = std::iter::successors(last, |at| before.get(*at).copied().flatten()).collect();
    let moved: Vec<_> = positions
        .iter()
        .enumerate()
        .filter(|(at, _)| !stay.contains(at))
        .map(|(_, (_, item))| *item)
        .collect();
    moved.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: PartKind, name: &str, ids: &[&str]) -> Part {
        let items = ids.iter().map(|id| Item {
            id: (*id).to_owned(),
            form: id.as_bytes().to_vec(),
            packets: None,
            bytes: None,
        });
        Part { kind, name: name.to_owned(), form: vec![1], items: items.collect() }
    }

    fn chain(ids: &[&str]) -> Inventory {
        Inventory::of(vec![part(PartKind::Chain, "nat-output", ids)])
    }

    fn sentences(desired: &Inventory, found: &Inventory) -> Vec<String> {
        desired.differences(found).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn equal_inventories_have_no_difference_whatever_was_counted() {
        let mut found = chain(&["a", "b"]);
        found.parts[0].items[0].packets = Some(7);
        assert!(sentences(&chain(&["a", "b"]), &found).is_empty());
    }

    #[test]
    fn f21_a_rule_that_is_gone_new_or_another_is_named() {
        let mut found = chain(&["a", "c", "x"]);
        found.parts[0].items[1].form = vec![9];
        let all = sentences(&chain(&["a", "b", "c"]), &found);
        let desired = [
            r#"rule "b" in chain nat-output is missing"#,
            r#"rule "c" in chain nat-output is not as it was written"#,
            r#"rule "x" in chain nat-output should not be there"#,
        ];
        assert_eq!(all, desired);
    }

    #[test]
    fn only_the_rule_that_was_moved_is_out_of_order() {
        let all = sentences(&chain(&["a", "b", "c", "d"]), &chain(&["d", "a", "b", "c"]));
        assert_eq!(all, [r#"rule "d" in chain nat-output is out of order"#]);
    }

    #[test]
    fn of_many_rules_the_one_that_was_moved_is_found() {
        let ids: Vec<String> = (0..50_000).map(|n| n.to_string()).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let moved = [&ids[1..40_000], &ids[..1], &ids[40_000..]].concat();
        assert_eq!(
            sentences(&chain(&ids), &chain(&moved)),
            [r#"rule "0" in chain nat-output is out of order"#]
        );
    }

    #[test]
    fn a_rule_that_is_there_twice_is_once_too_many() {
        let all = sentences(&chain(&["a", "b"]), &chain(&["a", "b", "a"]));
        assert_eq!(all, [r#"rule "a" in chain nat-output should not be there"#]);
    }

    #[test]
    fn chains_and_sets_are_told_apart_and_elements_named() {
        let desired =
            Inventory::of(vec![part(PartKind::Set, "ports", &["80"]), part(PartKind::Chain, "c", &[])]);
        let mut found =
            Inventory::of(vec![part(PartKind::Set, "ports", &["81"]), part(PartKind::Chain, "ports", &[])]);
        found.parts[1].form = vec![2];
        let all = sentences(&desired, &found);
        let sentences = [
            "chain c is missing",
            "set ports is not as it was written",
            "element 80 of set ports is missing",
            "element 81 of set ports should not be there",
            "chain ports should not be there",
        ];
        assert_eq!(all, sentences);
    }
}
