//! Rules to restore input: pure, and the only writer of that text.
//!
//! Each table is one transaction of the kernel, so for each table and family either everything
//! below has happened or nothing: our mark stands in every table that has a chain of ours, because
//! it is written and deleted in the same transaction. A run that is killed between two tables
//! leaves some tables as they were and some as they should be; the next apply reads all of them
//! and writes those that differ.

use super::expand::{Line, expand};
use super::holding::{Entry, Holding, Holdings};
use super::layout::{MARK, TABLES};
use super::token::{Target, Token};
use crate::policy::Families;
use crate::ruleset::{Chain, ChainName, Family, RuleId, Ruleset, Stage, Verdict};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What the tables of `family` hold of ours when `rules` stand.
pub(super) fn render(rules: &Ruleset, family: Family) -> Holdings {
    if family == Family::V6 && rules.families == Families::V4Only {
        return Holdings::new();
    }
    let diverts = marks(rules);
    let divert = |mark| divert_chain(diverts.iter().position(|other| *other == mark));
    let mut holdings = Holdings::new();
    for chain in &rules.chains {
        let lines = chain.rules.iter().flat_map(|rule| expand(rule, family, divert));
        let entries: Vec<Entry> = lines.map(Entry::from).collect();
        if entries.is_empty() && !is_continued_into(rules, chain.name) {
            continue;
        }
        let holding = holdings.entry(chain.name.stage()).or_default();
        for mark in diverts.iter().filter(|mark| diverts_to(chain, **mark)) {
            holding.chains.insert(divert(*mark), carry_out_divert(*mark));
        }
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
    Line::new(vec![name], Target::Jump(chain.iptables())).into()
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
            text.push_str(&table(stage, found, wanted));
        }
    }
    (!text.is_empty()).then_some(text)
}

fn table(stage: Stage, found: &Holding, wanted: &Holding) -> String {
    let mut lines = vec![format!("*{}", stage.table())];
    let stale = || found.chains.keys().filter(|chain| !wanted.chains.contains_key(*chain));
    // Declaring a chain makes it when it is missing and empties it when it is there.
    lines.extend(wanted.chains.keys().map(|chain| format!(":{chain} - [0:0]")));
    lines.extend(stale().map(|chain| format!("-F {chain}")));
    lines.extend(unhook(found, wanted));
    lines.extend(stale().map(|chain| format!("-X {chain}")));
    for (chain, entries) in &wanted.chains {
        lines.extend(entries.iter().map(|entry| format!("-A {chain} {}", entry.text())));
    }
    // A hook that stands as it should keeps its place among the rules of others.
    for (chain, entries) in wanted.hooks.iter().filter(|(chain, _)| !is_hooked(found, wanted, chain)) {
        lines.extend(entries.iter().map(|entry| format!("-A {chain} {}", entry.text())));
    }
    lines.push("COMMIT".to_owned());
    lines.into_iter().fold(String::new(), |mut text, line| {
        let _infallible = writeln!(text, "{line}");
        text
    })
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
