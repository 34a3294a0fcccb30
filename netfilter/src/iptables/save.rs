//! Parses the output of `iptables-save -c`, strictly and without effects.
//!
//! Comments are free text, line breaks included, that a process in the pod may have written; they are parsed as
//! quoted words, so that no comment is taken for a rule. Other owners' rules are skipped.

use super::layout::{MARK, PREFIX, TABLES};
use super::rules::{FamilyRules, RuleText, TableRules};
use super::words::{logical_lines, words};
use crate::model::ruleset::{Hook, Stage, Transport};
use crate::xt::legacy::{Counters, LegacyRule, LegacyTable};
use std::collections::{BTreeMap, BTreeSet};

/// The rules in one family's tables that matter to Gybe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SavedRules {
    /// Gybe's rules.
    pub(crate) ours: FamilyRules,
    /// The `ISTIO_*` chains of tables without Gybe's mark, and the rules that lead to them: other meshes'.
    pub(crate) others: FamilyRules,
    /// Whether table nat has rules of other owners at the hooks that Gybe uses.
    pub(crate) has_other_nat: bool,
}

/// The error of parsing the output of iptables-save.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    /// The output ends within a table.
    #[error("its output ends within a table")]
    Unfinished,
    /// A table has rules that only `nft` can read.
    #[error("table {0} has rules that only nft can show")]
    Incompatible(&'static str),
    /// A line that is not a rule.
    #[error("its output has a line that is not a rule: {0:?}")]
    NotARule(String),
}

/// Parses the whole output.
pub(super) fn parse(text: &str) -> Result<SavedRules, SaveError> {
    let mut tables = BTreeMap::<Stage, SavedTable>::new();
    let mut open: Option<SavedTable> = None;
    let mut stage = None;
    for line in logical_lines(text).ok_or(SaveError::Unfinished)? {
        if let Some(name) = line.strip_prefix('*') {
            stage = TABLES.into_iter().find(|stage| stage.table() == name.trim());
            open = Some(SavedTable::default());
        } else if line.starts_with("COMMIT") {
            tables.extend(stage.take().zip(open.take()));
        } else if line.starts_with('#') {
            refuse_incompatible(line)?;
        } else if let Some(table) = open.as_mut().filter(|_| stage.is_some()) {
            table.add_line(line)?;
        }
    }
    if open.is_some() {
        return Err(SaveError::Unfinished);
    }
    Ok(classify(tables))
}

/// Converts tables that the kernel returned.
pub(super) fn of_legacy(tables: &BTreeMap<Stage, LegacyTable>) -> SavedRules {
    classify(tables.iter().map(|(stage, table)| (*stage, SavedTable::from(table))).collect())
}

/// iptables-nft skips a table that it cannot show, prints a remark, and succeeds.
fn refuse_incompatible(remark: &str) -> Result<(), SaveError> {
    let hidden = |stage: &Stage| remark.contains(&format!("Table `{}' is incompatible", stage.table()));
    match TABLES.iter().find(|stage| hidden(stage)) {
        Some(stage) => Err(SaveError::Incompatible(stage.table())),
        None => Ok(()),
    }
}

fn classify(tables: BTreeMap<Stage, SavedTable>) -> SavedRules {
    let mut saved = SavedRules::default();
    for (stage, table) in tables {
        let has_redirects = table.chains.iter().any(|chain| chain.starts_with(PREFIX));
        saved.has_other_nat |= stage == Stage::Nat && table.has_others();
        if table.chains.contains(MARK) {
            saved.ours.insert(stage, table.ours());
        } else if has_redirects {
            saved.others.insert(stage, table.ours());
        }
    }
    saved
}

#[derive(Default)]
struct SavedTable {
    /// Chains that are not built in.
    chains: BTreeSet<String>,
    rules: BTreeMap<String, Vec<RuleText>>,
}

impl From<&LegacyTable> for SavedTable {
    fn from(table: &LegacyTable) -> Self {
        let user_chains = table.chains.iter().filter(|chain| chain.built_in.is_none());
        let rules = table.chains.iter().map(|chain| {
            let rules = chain.rules.iter().zip(1..).map(|(rule, number)| legacy_rule(rule, number));
            (chain.name.clone(), rules.collect())
        });
        Self { chains: user_chains.map(|chain| chain.name.clone()).collect(), rules: rules.collect() }
    }
}

fn legacy_rule(rule: &LegacyRule, number: usize) -> RuleText {
    let text = rule.to_string();
    RuleText::read(&words(&text).unwrap_or_else(|| vec![text]), Some(rule.counted), number)
}

impl SavedTable {
    fn add_line(&mut self, line: &str) -> Result<(), SaveError> {
        let not_a_rule = || SaveError::NotARule(line.chars().take(80).collect());
        if let Some(declared) = line.strip_prefix(':') {
            // `:NAME - [0:0]`; a built-in chain has a policy in place of the dash.
            let mut parts = declared.rsplitn(3, ' ');
            let (_, policy, name) = (parts.next(), parts.next(), parts.next());
            match (name, policy) {
                (Some(name), Some("-")) => drop(self.chains.insert(name.to_owned())),
                (Some(_), Some(_)) => {}
                _ => return Err(not_a_rule()),
            }
            return Ok(());
        }
        let (counters, rule) = counted(line);
        let rule = rule.strip_prefix("-A ").ok_or_else(not_a_rule)?;
        let (chain, spec) = rule.split_once(' ').unwrap_or((rule, ""));
        let rules = self.rules.entry(chain.to_owned()).or_default();
        let number = rules.len() + 1;
        let mut words = words(spec).ok_or_else(not_a_rule)?;
        name_protocol(&mut words);
        rules.push(RuleText::read(&words, counters, number));
        Ok(())
    }

    /// Reports whether rules at these hooks do not lead into Gybe's chains.
    fn has_others(&self) -> bool {
        let is_ours = |rule: &RuleText| self.chains.contains(MARK) && rule.target().starts_with(PREFIX);
        let hooks = [Hook::Prerouting, Hook::Output].map(Hook::chain);
        let rules = hooks.iter().filter_map(|hook| self.rules.get(*hook));
        rules.flatten().any(|rule| !is_ours(rule))
    }

    fn ours(mut self) -> TableRules {
        let is_ours = |chain: &str| chain == MARK || chain.starts_with(PREFIX);
        let mut table = TableRules::default();
        for chain in self.chains.iter().filter(|chain| is_ours(chain)) {
            table.chains.insert(chain.clone(), self.rules.remove(chain).unwrap_or_default());
        }
        for (chain, rules) in self.rules {
            let hooks: Vec<RuleText> =
                rules.into_iter().filter(|rule| table.chains.contains_key(&rule.target())).collect();
            if !hooks.is_empty() {
                table.hooks.insert(chain, hooks);
            }
        }
        table
    }
}

/// Replaces protocol numbers by names: iptables-nft 1.8.7 prints the number of a protocol that /etc/protocols lacks.
/// A rule has one `-p`, before its matches and so before its comment.
fn name_protocol(words: &mut [String]) {
    let at = words.iter().take_while(|word| *word != "-m").position(|word| word == "-p");
    if let Some(protocol) = at.and_then(|at| words.get_mut(at + 1))
        && let Some(transport) = protocol.parse().ok().and_then(Transport::numbered)
    {
        *protocol = transport.name().to_owned();
    }
}

/// Splits `[packets:bytes] -A ...`; a program that does not know `-c` prints no brackets.
fn counted(line: &str) -> (Option<Counters>, &str) {
    let split = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    let Some((counts, rule)) = split else { return (None, line) };
    let numbers = counts.split_once(':').and_then(|(p, b)| Some((p.parse().ok()?, b.parse().ok()?)));
    (numbers.map(|(packets, bytes)| Counters { packets, bytes }), rule)
}

#[cfg(test)]
mod tests;
