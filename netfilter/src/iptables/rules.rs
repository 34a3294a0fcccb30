//! Gybe's rules in the tables of iptables: the same value for rendered rules and for rules read from the kernel.

use super::expand::RuleLine;
use super::words::{quoted, words};
use crate::model::inventory::{Inventory, Item, Part, PartKind};
use crate::model::ruleset::{Family, Stage};
use crate::xt::legacy::Counters;
use std::collections::BTreeMap;

/// Gybe's rules of both families.
pub(super) type IptablesRules = BTreeMap<Family, FamilyRules>;

/// Gybe's rules of one family; a table without rules of Gybe has no entry.
pub(crate) type FamilyRules = BTreeMap<Stage, TableRules>;

/// The rules of `family`, possibly none.
pub(super) fn of_family(rules: &IptablesRules, family: Family) -> &FamilyRules {
    const NONE: &FamilyRules = &FamilyRules::new();
    rules.get(&family).unwrap_or(NONE)
}

/// Gybe's rules in one table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TableRules {
    /// Gybe's chains, the mark among them, and their rules.
    pub(crate) chains: BTreeMap<String, Vec<RuleText>>,
    /// Rules in other chains that lead into Gybe's chains, by chain.
    pub(super) hooks: BTreeMap<String, Vec<RuleText>>,
}

/// One rule: the words that follow `-A CHAIN` in restore input. One string, because there may be thousands of rules.
#[derive(Debug, Clone)]
pub(crate) struct RuleText {
    text: Box<str>,
    /// The kernel's counters, if the rule was read.
    pub(super) counters: Option<Counters>,
    /// Its number in its chain, from 1, if the rule was read.
    pub(super) number: usize,
}

/// Compares rules without counters.
impl PartialEq for RuleText {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for RuleText {}

impl From<RuleLine> for RuleText {
    fn from(line: RuleLine) -> Self {
        Self::read(&line.words(), None, 0)
    }
}

/// The options that Gybe's rules use; see `token.rs`.
const OUR_OPTIONS: &str = "! -s -d -i -o -p -m -j -g --sport --dport --sports --dports --uid-owner --gid-owner --mark \
    --ctstate --comment --to-ports --on-port --on-ip --tproxy-mark --set-xmark --save-mark --restore-mark --nfmask \
    --ctmask --zone";

impl RuleText {
    /// A rule from its words.
    pub(super) fn read(words: &[String], counters: Option<Counters>, number: usize) -> Self {
        let text = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        Self { text: text.into(), counters, number }
    }

    /// Its comment, the id of a rule of the ruleset; or empty.
    pub(super) fn comment(&self) -> String {
        self.value_of(&["--comment"]).unwrap_or_default()
    }

    /// Its target or chain, or empty.
    pub(super) fn target(&self) -> String {
        self.value_of(&["-j", "-g"]).unwrap_or_default()
    }

    fn words(&self) -> Vec<String> {
        words(&self.text).unwrap_or_default()
    }

    fn value_of(&self, options: &[&str]) -> Option<String> {
        let words = self.words();
        // A comment may look like an option.
        let is_comment = |at: usize| {
            at.checked_sub(1).and_then(|at| words.get(at)).is_some_and(|word| word == "--comment")
        };
        let mut positions = words.iter().enumerate();
        let (at, _) = positions.find(|(at, word)| options.contains(&word.as_str()) && !is_comment(*at))?;
        words.get(at + 1).cloned()
    }

    /// The rule as restore input has it.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Reports whether the rule may be written back: only with the options of Gybe's own rules and plain values. Text
    /// that a process in the pod left in a rule must not reach a program that runs as root outside of it
    /// (`--modprobe=...`, or a comment with a line break that begins a line of its own).
    pub(super) fn is_writable(&self) -> bool {
        let plain = |word: &str| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.,:/".contains(&b))
        };
        self.words().iter().all(|word| {
            OUR_OPTIONS.split(' ').any(|option| option == word) || (plain(word) && !word.starts_with('-'))
        })
    }
}

impl TableRules {
    /// The rules that may be written back, and the number of those that may not.
    pub(super) fn writable(&self) -> (Self, usize) {
        let mut kept = self.clone();
        let lists = kept.chains.values_mut().chain(kept.hooks.values_mut());
        let dropped = lists
            .map(|rules| {
                let before = rules.len();
                rules.retain(RuleText::is_writable);
                before - rules.len()
            })
            .sum();
        (kept, dropped)
    }
}

/// The inventory of both families: one part for each of Gybe's chains and for each other chain that leads into one,
/// with the name that iptables commands use (`ip nat ISTIO_OUTPUT`).
pub(super) fn inventory(rules: &IptablesRules) -> Inventory {
    let tables = rules.iter().flat_map(|(family, tables)| {
        tables.iter().flat_map(move |(stage, table)| parts(*family, *stage, table))
    });
    Inventory::of(tables.collect())
}

fn parts(family: Family, stage: Stage, table: &TableRules) -> impl Iterator<Item = Part> {
    let full_name = move |chain: &str| format!("{} {} {chain}", family.name(), stage.table());
    let part = move |(chain, rules): (&String, &Vec<RuleText>)| Part {
        kind: PartKind::Chain,
        name: full_name(chain),
        form: Vec::new(),
        items: items(rules),
    };
    table.chains.iter().chain(&table.hooks).map(part)
}

/// The rules of one chain. A rule with lists is several rules here: `id`, `id#2`, `id#3`, in order.
fn items(rules: &[RuleText]) -> Vec<Item> {
    let mut counts = BTreeMap::<String, usize>::new();
    let items = rules.iter().map(|rule| {
        // The rules that carry out a divert have no id.
        let id = Some(rule.comment()).filter(|id| !id.is_empty()).unwrap_or_else(|| rule.target());
        let count = counts.entry(id.clone()).or_default();
        *count += 1;
        Item {
            id: if *count == 1 { id } else { format!("{id}#{count}") },
            form: rule.text().as_bytes().to_vec(),
            packets: rule.counters.map(|counters| counters.packets),
            bytes: rule.counters.map(|counters| counters.bytes),
        }
    });
    items.collect()
}
