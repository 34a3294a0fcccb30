//! Which rules are Gybe's: all of table `inet gybe`; in the tables of iptables that have our mark, the chains with
//! our prefix and the rules that lead there.

use super::expr::{Code, Expr};
use super::{Engine, LiveChain, NamespaceRules, Statement, TableFamily, TableName};
use crate::iptables::{MARK, PREFIX};
use crate::nft::TABLE;
use crate::xt::XtTarget;

/// Sets `is_ours` of every rule.
pub(super) fn mark(rules: &mut NamespaceRules) {
    let tables = tables_with_our_mark(rules);
    for chain in &mut rules.chains {
        let has_mark = tables.contains(&chain.table);
        let is_our_chain = chain.table.is_ours() || has_mark && chain.name.starts_with(PREFIX);
        for rule in &mut chain.rules {
            let mut targets = rule.statements.iter().filter_map(next_chain);
            rule.is_ours = is_our_chain || has_mark && targets.any(|to| to.starts_with(PREFIX));
        }
    }
}

fn tables_with_our_mark(rules: &NamespaceRules) -> Vec<TableName> {
    rules.chains.iter().filter(|chain| chain.name == MARK).map(|chain| chain.table.clone()).collect()
}

impl TableName {
    /// Reports whether every rule of the table is ours.
    pub(crate) fn is_ours(&self) -> bool {
        (self.engine, self.family, self.name.as_str()) == (Engine::NfTables, TableFamily::Inet, TABLE)
    }
}

impl NamespaceRules {
    /// Chains of ours in a state that no policy compiles to, one sentence each: without a rule, or with no rule that
    /// leads to them.
    pub(crate) fn broken_chains(&self) -> Vec<String> {
        let tables = tables_with_our_mark(self);
        let ours = self.chains.iter().filter(|chain| {
            chain.table.is_ours() || chain.name.starts_with(PREFIX) && tables.contains(&chain.table)
        });
        let is_reached = |chain: &LiveChain| {
            let same_table = self.chains.iter().filter(|other| other.table == chain.table);
            let mut statements = same_table.flat_map(|other| &other.rules).flat_map(|rule| &rule.statements);
            chain.base.is_some() || statements.any(|one| next_chain(one) == Some(chain.name.as_str()))
        };
        ours.filter_map(|chain| match (chain.rules.is_empty(), is_reached(chain)) {
            (true, _) => Some(format!("chain {} of table {} has no rule", chain.name, chain.table)),
            (false, false) => Some(format!("no rule leads to chain {} of table {}", chain.name, chain.table)),
            (false, true) => None,
        })
        .collect()
    }
}

/// The chain that a statement jumps or goes to.
fn next_chain(statement: &Statement) -> Option<&str> {
    match statement {
        Statement::Expr(Expr::Verdict(Code::Jump(to) | Code::Goto(to)))
        | Statement::Target(XtTarget::Jump(to) | XtTarget::Goto(to)) => Some(to),
        _ => None,
    }
}
