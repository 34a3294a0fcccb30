//! Renders rules as restore input. Pure; the only writer of that text.
//!
//! Each table is one transaction of the kernel, so the rules of a table and family change all at once or not at all.
//! Every table with a chain of Gybe has Gybe's mark, because one transaction writes and deletes both. A process
//! killed between two tables leaves some tables changed and some unchanged; the next apply reads all of them and
//! writes those that differ.

use super::error::IptablesError;
use super::expand::{ChainNames, Excess, Expansion, RuleLine, expand};
use super::layout::{MARK, MAX_RULES, TABLES};
use super::rules::{FamilyRules, IptablesRules, RuleText, TableRules};
use super::token::{RuleTarget, Token};
use crate::model::policy::Families;
use crate::model::ruleset::{Chain, ChainName, Family, Rule, RuleId, Ruleset, Stage, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// Renders the rules of a policy for both families.
///
/// # Errors
/// When there are more than [`MAX_RULES`] rules.
pub(super) fn render(rules: &Ruleset) -> Result<IptablesRules, IptablesError> {
    let mut budget = RuleBudget::default();
    Family::ALL.into_iter().map(|family| Ok((family, render_family(rules, family, &mut budget)?))).collect()
}

/// Counts rules up to [`MAX_RULES`].
#[derive(Default)]
struct RuleBudget {
    rendered: usize,
    /// The rule with the longest lists so far, and its number of iptables rules.
    longest: Option<(RuleId, usize)>,
}

impl RuleBudget {
    fn expand(
        &mut self,
        rule: &Rule,
        family: Family,
        names: &ChainNames<'_>,
    ) -> Result<Expansion, IptablesError> {
        let expansion = expand(rule, family, names, MAX_RULES.saturating_sub(self.rendered));
        let count = match &expansion {
            Ok(expansion) => {
                expansion.lines.len() + expansion.lists.iter().map(|(_, lines)| lines.len()).sum::<usize>()
            }
            Err(Excess { rules }) => *rules,
        };
        let (longest, most) = self.longest.filter(|(_, most)| *most >= count).unwrap_or((rule.id, count));
        self.longest = Some((longest, most));
        self.rendered += count;
        expansion.map_err(|Excess { .. }| IptablesError::TooManyRules { rule: longest, rules: most })
    }
}

fn render_family(
    rules: &Ruleset,
    family: Family,
    budget: &mut RuleBudget,
) -> Result<FamilyRules, IptablesError> {
    if family == Family::V6 && rules.families == Families::V4Only {
        return Ok(FamilyRules::new());
    }
    let diverts = marks(rules);
    let divert = |mark| divert_chain(diverts.iter().position(|other| *other == mark));
    let mut tables = FamilyRules::new();
    let mut lists = BTreeMap::<Stage, usize>::new();
    for chain in &rules.chains {
        let stage = chain.name.stage();
        let (mut entries, mut called) = (Vec::new(), BTreeMap::new());
        for rule in &chain.rules {
            let lists = lists.entry(stage).or_default();
            let expansion = budget.expand(rule, family, &ChainNames { divert: &divert, lists: *lists })?;
            *lists += expansion.lists.len();
            entries.extend(expansion.lines.into_iter().map(RuleText::from));
            let chains = expansion.lists.into_iter();
            called
                .extend(chains.map(|(name, lines)| (name, lines.into_iter().map(RuleText::from).collect())));
        }
        if entries.is_empty() && !is_continued_into(rules, chain.name) {
            continue;
        }
        let table = tables.entry(stage).or_default();
        for mark in diverts.iter().filter(|mark| diverts_to(chain, **mark)) {
            table.chains.insert(divert(*mark), carry_out_divert(*mark));
        }
        table.chains.append(&mut called);
        table.chains.insert(MARK.to_owned(), Vec::new());
        table.chains.insert(chain.name.iptables().to_owned(), entries);
        if let Some(hook) = chain.name.hook() {
            table.hooks.insert(hook.chain().to_owned(), vec![jump_to(chain.name)]);
        }
    }
    Ok(tables)
}

/// The rule at the hook jumps, so that packets that return continue with other owners' rules after it.
fn jump_to(chain: ChainName) -> RuleText {
    let name = Token::Comment(RuleId(chain.as_str()));
    RuleLine::new(vec![name], RuleTarget::Jump(chain.iptables().to_owned())).into()
}

/// The chain of a divert: an iptables rule has one target, and a divert needs two, `MARK` and `ACCEPT`.
fn carry_out_divert(mark: u32) -> Vec<RuleText> {
    [RuleTarget::SetMark(mark), RuleTarget::Accept]
        .map(|target| RuleLine::new(Vec::new(), target).into())
        .to_vec()
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

/// Returns input for `iptables-restore --noflush` that changes `found` to `desired`, or `None` if they are equal.
pub(super) fn transaction(found: &FamilyRules, desired: &FamilyRules) -> Option<String> {
    let nothing = TableRules::default();
    let mut text = String::new();
    for stage in TABLES {
        let found = found.get(&stage).unwrap_or(&nothing);
        let desired = desired.get(&stage).unwrap_or(&nothing);
        if found != desired {
            table(&mut text, stage, found, desired);
        }
    }
    (!text.is_empty()).then_some(text)
}

fn table(text: &mut String, stage: Stage, found: &TableRules, desired: &TableRules) {
    let mut line = |words: &[&str]| {
        words.iter().for_each(|word| text.push_str(word));
        text.push('\n');
    };
    line(&["*", stage.table()]);
    let stale = || found.chains.keys().filter(|chain| !desired.chains.contains_key(*chain));
    // The declaration of a chain creates it, or flushes it if it exists.
    desired.chains.keys().for_each(|chain| line(&[":", chain, " - [0:0]"]));
    stale().for_each(|chain| line(&["-F ", chain]));
    unhook(found, desired).iter().for_each(|unhooking| line(&[unhooking]));
    stale().for_each(|chain| line(&["-X ", chain]));
    // A hook that is as desired keeps its position among other owners' rules.
    let hooks = desired.hooks.iter().filter(|(chain, _)| !is_hooked(found, desired, chain));
    for (chain, entries) in desired.chains.iter().chain(hooks) {
        entries.iter().for_each(|entry| line(&["-A ", chain, " ", entry.text()]));
    }
    line(&["COMMIT"]);
}

fn is_hooked(found: &TableRules, desired: &TableRules, chain: &str) -> bool {
    found.hooks.get(chain) == desired.hooks.get(chain)
}

/// Returns lines that delete the rules that lead into Gybe's chains: by specification where it can be written, because
/// a rule that another program inserts meanwhile changes the numbers; the others by number, the last first.
fn unhook(found: &TableRules, desired: &TableRules) -> Vec<String> {
    let mut lines = Vec::new();
    for (chain, entries) in found.hooks.iter().filter(|(chain, _)| !is_hooked(found, desired, chain)) {
        let strange = entries.iter().rev().filter(|entry| !entry.is_writable());
        lines.extend(strange.map(|entry| format!("-D {chain} {}", entry.number)));
        let plain = entries.iter().filter(|entry| entry.is_writable());
        lines.extend(plain.map(|entry| format!("-D {chain} {}", entry.text())));
    }
    lines
}

#[cfg(test)]
mod tests;
