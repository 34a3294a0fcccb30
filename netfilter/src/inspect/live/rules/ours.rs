//! Which rules are Gybe's: all of table `inet gybe`; in the tables of iptables that have our mark, the chains with
//! our prefix and the rules that lead there.

use super::expr::{Code, Expr};
use super::{LiveChain, NamespaceRules, Statement, TableName};
use crate::iptables::{MARK, PREFIX, TABLES};
use crate::model::ruleset::{Engine, TableFamily};
use crate::nft::TABLE;
use crate::xt::XtTarget;
use std::collections::HashSet;

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

fn tables_with_our_mark(rules: &NamespaceRules) -> HashSet<TableName> {
    let is_of_iptables = |table: &TableName| {
        table.family != TableFamily::Inet && TABLES.iter().any(|stage| stage.table() == table.name)
    };
    let marked = rules.chains.iter().filter(|chain| chain.name == MARK && is_of_iptables(&chain.table));
    marked.map(|chain| chain.table.clone()).collect()
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
        let led_to: HashSet<(&TableName, &str)> = self
            .chains
            .iter()
            .flat_map(|chain| chain.rules.iter().map(move |rule| (&chain.table, rule)))
            .flat_map(|(table, rule)| rule.statements.iter().map(move |one| (table, one)))
            .filter_map(|(table, one)| Some((table, next_chain(one)?)))
            .collect();
        let is_reached =
            |chain: &LiveChain| chain.base.is_some() || led_to.contains(&(&chain.table, chain.name.as_str()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::live::rules::ChainKind;
    use crate::inspect::live::rules::constructed::{chain, namespace, redirect_tcp};
    use crate::model::ruleset::Hook;

    #[test]
    fn our_mark_counts_in_the_tables_of_iptables_that_we_write() {
        for (family, table, is_ours) in [
            (TableFamily::Ip, "nat", true),
            (TableFamily::Ip6, "raw", true),
            (TableFamily::Ip, "filter", false),
            (TableFamily::Ip6, "other", false),
            (TableFamily::Inet, "nat", false),
            (TableFamily::Inet, TABLE, true),
        ] {
            let of = |name: &str| {
                let mut chain = chain(table, ChainKind::Nat, (Hook::Output, 0), vec![redirect_tcp(15001)]);
                (chain.table.family, chain.name) = (family, name.to_owned());
                chain
            };
            let mut found = namespace(vec![of(&format!("{PREFIX}OUTPUT")), of(MARK)]);
            mark(&mut found);
            let rules = found.chains.first().map(|chain| &chain.rules).unwrap();
            assert!(rules.iter().all(|rule| rule.is_ours == is_ours), "{family:?} {table}");
        }
    }
}
