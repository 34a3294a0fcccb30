//! What `iptables-save -c` prints to what of ours is there: pure, and wary of what it does not know.
//!
//! Comments are free text that somebody in the pod may have written, line breaks included; they are
//! read as quoted words, so that none is taken for a rule. Lines of others are passed over.

mod lines;

use super::holding::{Counters, Entry, Holding, Holdings};
use super::layout::{MARK, PREFIX, TABLES};
use super::neighbours::Found;
use crate::backend::Foreign;
use crate::ruleset::{Family, Hook, Stage};
use crate::xt::legacy::{LegacyRule, LegacyTable};
use lines::logical_lines;
pub(super) use lines::words;
use std::collections::{BTreeMap, BTreeSet};

/// One family's tables, as far as they concern us.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Saved {
    /// What of ours is there.
    pub ours: Holdings,
    /// `ISTIO_*` chains in tables without our mark: somebody else's.
    pub foreign: Vec<(Stage, String)>,
    /// Does somebody else translate destinations, where we do?
    pub translates: bool,
}

impl Saved {
    /// What it shows to somebody who wants to write.
    pub(super) fn found(&self, family: Family) -> Found {
        let chain = |(stage, chain): &(Stage, String)| Foreign::Chain {
            family,
            table: stage.table(),
            chain: chain.clone(),
        };
        Found {
            ours: !self.ours.is_empty(),
            foreign: self.foreign.iter().map(chain).collect(),
            translates: self.translates,
        }
    }
}

/// Why the text cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    /// It ends in the middle of a table.
    #[error("its output ends in the middle of a table")]
    Unfinished,
    /// A table has rules that only `nft` can read.
    #[error("table {0} has rules that only nft can show")]
    Incompatible(&'static str),
    /// A line that should be a rule and is not.
    #[error("its output has a line that is no rule: {0:?}")]
    NoRule(String),
}

/// Reads the whole output.
pub(super) fn parse(text: &str) -> Result<Saved, SaveError> {
    let mut tables = BTreeMap::<Stage, Table>::new();
    let mut open: Option<Table> = None;
    let mut stage = None;
    for line in logical_lines(text).ok_or(SaveError::Unfinished)? {
        if let Some(name) = line.strip_prefix('*') {
            stage = TABLES.into_iter().find(|stage| stage.table() == name.trim());
            open = Some(Table::default());
        } else if line.starts_with("COMMIT") {
            tables.extend(stage.take().zip(open.take()));
        } else if line.starts_with('#') {
            refuse_incompatible(line)?;
        } else if let Some(table) = open.as_mut().filter(|_| stage.is_some()) {
            table.take(line)?;
        }
    }
    if open.is_some() {
        return Err(SaveError::Unfinished);
    }
    Ok(judge(tables))
}

/// The same from tables that the kernel returned.
pub(super) fn of_legacy(tables: &BTreeMap<Stage, LegacyTable>) -> Saved {
    judge(tables.iter().map(|(stage, table)| (*stage, Table::from(table))).collect())
}

/// iptables-nft passes over a table it cannot show, with a remark, and succeeds.
fn refuse_incompatible(remark: &str) -> Result<(), SaveError> {
    let hidden = |stage: &Stage| remark.contains(&format!("Table `{}' is incompatible", stage.table()));
    match TABLES.iter().find(|stage| hidden(stage)) {
        Some(stage) => Err(SaveError::Incompatible(stage.table())),
        None => Ok(()),
    }
}

fn judge(tables: BTreeMap<Stage, Table>) -> Saved {
    let mut saved = Saved::default();
    for (stage, table) in tables {
        let redirects = table.chains.iter().filter(|chain| chain.starts_with(PREFIX));
        saved.translates |= stage == Stage::Nat && table.has_others();
        if table.chains.contains(MARK) {
            saved.ours.insert(stage, table.ours());
        } else {
            saved.foreign.extend(redirects.map(|chain| (stage, chain.clone())));
        }
    }
    saved
}

#[derive(Default)]
struct Table {
    /// Chains that are not built in.
    chains: BTreeSet<String>,
    rules: BTreeMap<String, Vec<Entry>>,
}

impl From<&LegacyTable> for Table {
    fn from(table: &LegacyTable) -> Self {
        let user_chains = table.chains.iter().filter(|chain| chain.built_in.is_none());
        let rules = table.chains.iter().map(|chain| {
            let entries = chain.rules.iter().zip(1..).map(|(rule, number)| legacy_entry(rule, number));
            (chain.name.clone(), entries.collect())
        });
        Self { chains: user_chains.map(|chain| chain.name.clone()).collect(), rules: rules.collect() }
    }
}

fn legacy_entry(rule: &LegacyRule, number: usize) -> Entry {
    let text = rule.to_string();
    let counters = Counters { packets: rule.counted.packets, bytes: rule.counted.bytes };
    Entry::read(&words(&text).unwrap_or_else(|| vec![text]), Some(counters), number)
}

impl Table {
    fn take(&mut self, line: &str) -> Result<(), SaveError> {
        let no_rule = || SaveError::NoRule(line.chars().take(80).collect());
        if let Some(declared) = line.strip_prefix(':') {
            // `:NAME - [0:0]`; a built-in chain has a policy in place of the dash.
            let mut parts = declared.rsplitn(3, ' ');
            let (_, policy, name) = (parts.next(), parts.next(), parts.next());
            match (name, policy) {
                (Some(name), Some("-")) => drop(self.chains.insert(name.to_owned())),
                (Some(_), Some(_)) => {}
                _ => return Err(no_rule()),
            }
            return Ok(());
        }
        let (counters, rule) = counted(line);
        let rule = rule.strip_prefix("-A ").ok_or_else(no_rule)?;
        let (chain, spec) = rule.split_once(' ').unwrap_or((rule, ""));
        let rules = self.rules.entry(chain.to_owned()).or_default();
        let number = rules.len() + 1;
        let mut words = words(spec).ok_or_else(no_rule)?;
        name_protocol(&mut words);
        rules.push(Entry::read(&words, counters, number));
        Ok(())
    }

    /// Are there rules at our hooks that do not lead into chains of ours?
    fn has_others(&self) -> bool {
        let is_ours = |rule: &Entry| self.chains.contains(MARK) && rule.target().starts_with(PREFIX);
        let hooks = [Hook::Prerouting, Hook::Output].map(Hook::built_in);
        let rules = hooks.iter().filter_map(|hook| self.rules.get(*hook));
        rules.flatten().any(|rule| !is_ours(rule))
    }

    fn ours(mut self) -> Holding {
        let is_ours = |chain: &str| chain == MARK || chain.starts_with(PREFIX);
        let mut holding = Holding::default();
        for chain in self.chains.iter().filter(|chain| is_ours(chain)) {
            holding.chains.insert(chain.clone(), self.rules.remove(chain).unwrap_or_default());
        }
        for (chain, rules) in self.rules {
            let hooks: Vec<Entry> =
                rules.into_iter().filter(|rule| holding.chains.contains_key(&rule.target())).collect();
            if !hooks.is_empty() {
                holding.hooks.insert(chain, hooks);
            }
        }
        holding
    }
}

/// iptables-nft 1.8.7 prints a protocol's number where /etc/protocols does not name it. A rule has one `-p`,
/// ahead of its matches and so of its comment.
fn name_protocol(words: &mut [String]) {
    let at = words.iter().take_while(|word| *word != "-m").position(|word| word == "-p");
    if let Some(protocol) = at.and_then(|at| words.get_mut(at + 1)) {
        match protocol.as_str() {
            "6" => *protocol = "tcp".to_owned(),
            "17" => *protocol = "udp".to_owned(),
            _ => {}
        }
    }
}

/// `[packets:bytes] -A ...`, or without the brackets when `-c` was not understood.
fn counted(line: &str) -> (Option<Counters>, &str) {
    let split = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    let Some((counts, rule)) = split else { return (None, line) };
    let numbers = counts.split_once(':').and_then(|(p, b)| Some((p.parse().ok()?, b.parse().ok()?)));
    (numbers.map(|(packets, bytes)| Counters { packets, bytes }), rule)
}

#[cfg(test)]
mod tests;
