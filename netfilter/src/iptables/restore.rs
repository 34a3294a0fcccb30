//! Rules to restore input: pure, and the only writer of that text.
//!
//! Each table is one transaction of the kernel, so for each table and family either everything
//! below has happened or nothing: our mark stands in every table that has a chain of ours, because
//! it is written and deleted in the same transaction. A run that is killed between two tables
//! leaves some tables as they were and some as they should be; the next apply reads all of them
//! and writes those that differ.

use super::expand::{Excess, Expansion, Line, Names, expand};
use super::holding::{Entry, Holding, Holdings};
use super::layout::{FAMILIES, MARK, TABLES};
use super::session::PerFamily;
use super::token::{Target, Token};
use crate::policy::Families;
use crate::ruleset::{Chain, ChainName, Family, Rule, RuleId, Ruleset, Stage, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// So many rules one namespace gets at most, both families together: what the programs need for them stays
/// below 16 MB (docs/BENCHMARKS.md). The nft backend has no such limit, as a list is one rule there.
pub(super) const MOST_RULES: usize = 6000;

/// What the tables hold of ours when rules stand.
#[derive(Debug, Default)]
pub(super) struct Rendered {
    /// Both families; without the rest when it is too much.
    pub holdings: PerFamily,
    /// The rule that was too much.
    pub excess: Option<TooManyRules>,
}

/// A policy comes to more rules than are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyRules {
    /// The rule with the longest lists so far.
    pub rule: RuleId,
    /// How many rules that one comes to.
    pub rules: usize,
}

/// What the tables of both families hold of ours when `rules` stand.
pub(super) fn render(rules: &Ruleset) -> Rendered {
    let mut rendered = Rendered::default();
    let mut written = Written::default();
    for family in FAMILIES {
        rendered.holdings.insert(family, render_family(rules, family, &mut written));
    }
    rendered.excess = written.excess;
    rendered
}

/// What was written so far.
#[derive(Default)]
struct Written {
    rules: usize,
    longest: Option<TooManyRules>,
    excess: Option<TooManyRules>,
}

impl Written {
    /// The rule's lines, unless they are too many.
    fn expansion(&mut self, rule: &Rule, family: Family, names: &Names<'_>) -> Expansion {
        let left = MOST_RULES.saturating_sub(self.rules);
        let (expansion, rules) = match expand(rule, family, names, left) {
            Ok(expansion) => {
                let called: usize = expansion.lists.iter().map(|(_, lines)| lines.len()).sum();
                let rules = expansion.lines.len() + called;
                self.rules += rules;
                (Some(expansion), rules)
            }
            Err(Excess { rules }) => (None, rules),
        };
        if self.longest.is_none_or(|longest| longest.rules < rules) {
            self.longest = Some(TooManyRules { rule: rule.id, rules });
        }
        if expansion.is_none() && self.excess.is_none() {
            self.excess = self.longest;
        }
        expansion.unwrap_or_default()
    }
}

fn render_family(rules: &Ruleset, family: Family, written: &mut Written) -> Holdings {
    if family == Family::V6 && rules.families == Families::V4Only {
        return Holdings::new();
    }
    let diverts = marks(rules);
    let divert = |mark| divert_chain(diverts.iter().position(|other| *other == mark));
    let mut holdings = Holdings::new();
    let mut lists = BTreeMap::<Stage, usize>::new();
    for chain in &rules.chains {
        let stage = chain.name.stage();
        let (mut entries, mut called) = (Vec::new(), BTreeMap::new());
        for rule in &chain.rules {
            let lists = lists.entry(stage).or_default();
            let expansion = written.expansion(rule, family, &Names { divert: &divert, lists: *lists });
            *lists += expansion.lists.len();
            entries.extend(expansion.lines.into_iter().map(Entry::from));
            let chains = expansion.lists.into_iter();
            called.extend(chains.map(|(name, lines)| (name, lines.into_iter().map(Entry::from).collect())));
        }
        if entries.is_empty() && !is_continued_into(rules, chain.name) {
            continue;
        }
        let holding = holdings.entry(stage).or_default();
        for mark in diverts.iter().filter(|mark| diverts_to(chain, **mark)) {
            holding.chains.insert(divert(*mark), carry_out_divert(*mark));
        }
        holding.chains.append(&mut called);
        holding.chains.insert(MARK.to_owned(), Vec::new());
        holding.chains.insert(chain.name.iptables().to_owned(), entries);
        if let Some(hook) = chain.name.hook() {
            holding.hooks.insert(hook.built_in().to_owned(), vec![jump_to(chain.name)]);
        }
    }
    holdings
}

/// Called, not continued into: what comes back meets the rules that others wrote after ours.
fn jump_to(chain: ChainName) -> Entry {
    let name = Token::Comment(RuleId(chain.as_str()));
    Line::new(vec![name], Target::Jump(chain.iptables().to_owned())).into()
}

/// A mark and an end of the stage are two targets, and a rule has one.
fn carry_out_divert(mark: u32) -> Vec<Entry> {
    [Target::SetMark(mark), Target::Accept].map(|target| Line::new(Vec::new(), target).into()).to_vec()
}

fn marks(rules: &Ruleset) -> Vec<u32> {
    let marks = rules.rules().filter_map(|(_, rule)| match rule.verdict {
        Verdict::Divert(mark) => Some(mark),
        _ => None,
    });
    marks.collect::<BTreeSet<_>>().into_iter().collect()
}

fn diverts_to(chain: &Chain, mark: u32) -> bool {
    chain.rules.iter().any(|rule| rule.verdict == Verdict::Divert(mark))
}

fn divert_chain(position: Option<usize>) -> String {
    match position {
        None | Some(0) => "ISTIO_DIVERT".to_owned(),
        Some(n) => format!("ISTIO_DIVERT_{}", n + 1),
    }
}

fn is_continued_into(rules: &Ruleset, name: ChainName) -> bool {
    rules.rules().any(|(_, rule)| rule.verdict == Verdict::Goto(name))
}

/// Restore input (for `--noflush`) that makes `wanted` of `found`; `None` when nothing is to do.
pub(super) fn transaction(found: &Holdings, wanted: &Holdings) -> Option<String> {
    let nothing = Holding::default();
    let mut text = String::new();
    for stage in TABLES {
        let found = found.get(&stage).unwrap_or(&nothing);
        let wanted = wanted.get(&stage).unwrap_or(&nothing);
        if found != wanted {
            table(&mut text, stage, found, wanted);
        }
    }
    (!text.is_empty()).then_some(text)
}

fn table(text: &mut String, stage: Stage, found: &Holding, wanted: &Holding) {
    let mut line = |words: &[&str]| {
        words.iter().for_each(|word| text.push_str(word));
        text.push('\n');
    };
    line(&["*", stage.table()]);
    let stale = || found.chains.keys().filter(|chain| !wanted.chains.contains_key(*chain));
    // Declaring a chain makes it when it is missing and empties it when it is there.
    wanted.chains.keys().for_each(|chain| line(&[":", chain, " - [0:0]"]));
    stale().for_each(|chain| line(&["-F ", chain]));
    unhook(found, wanted).iter().for_each(|unhooking| line(&[unhooking]));
    stale().for_each(|chain| line(&["-X ", chain]));
    // A hook that stands as it should keeps its place among the rules of others.
    let hooks = wanted.hooks.iter().filter(|(chain, _)| !is_hooked(found, wanted, chain));
    for (chain, entries) in wanted.chains.iter().chain(hooks) {
        entries.iter().for_each(|entry| line(&["-A ", chain, " ", entry.text()]));
    }
    line(&["COMMIT"]);
}

fn is_hooked(found: &Holding, wanted: &Holding, chain: &str) -> bool {
    found.hooks.get(chain) == wanted.hooks.get(chain)
}

/// Takes out what leads into our chains. By words where they are plain: a number would name the
/// wrong rule if somebody inserted one meanwhile. What is left goes by number, last first.
fn unhook(found: &Holding, wanted: &Holding) -> Vec<String> {
    let mut lines = Vec::new();
    for (chain, entries) in found.hooks.iter().filter(|(chain, _)| !is_hooked(found, wanted, chain)) {
        let strange = entries.iter().rev().filter(|entry| !entry.is_writable());
        lines.extend(strange.map(|entry| format!("-D {chain} {}", entry.number)));
        let plain = entries.iter().filter(|entry| entry.is_writable());
        lines.extend(plain.map(|entry| format!("-D {chain} {}", entry.text())));
    }
    lines
}

#[cfg(test)]
mod tests;
