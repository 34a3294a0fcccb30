//! Converts the tables of iptables-legacy into chains of the model.

use super::{BaseChain, ChainKind, LiveChain, LiveRule, NamespaceRules, Statement, TableName};
use crate::model::ruleset::{Engine, Family, Hook};
use crate::xt::XtTarget;
use crate::xt::legacy::{LegacyChain, LegacyError, LegacyRule, LegacyTable, tables};

/// Adds the tables of both families.
///
/// # Errors
/// When one of them cannot be read.
pub(super) fn add(found: &mut NamespaceRules) -> Result<(), LegacyError> {
    for family in Family::ALL {
        tables(family)?.into_iter().for_each(|table| add_table(found, table));
    }
    Ok(())
}

fn add_table(found: &mut NamespaceRules, table: LegacyTable) {
    let name = TableName { engine: Engine::Legacy, family: table.family.into(), name: table.name };
    for chain in table.chains {
        let base = base(&name.name, &chain);
        if let (None, Some(_)) = (base, &chain.built_in) {
            found.opaque.push(format!("{name} {} is not evaluated", chain.name));
        }
        let rules = chain.rules.into_iter().map(rule).collect();
        found.chains.push(LiveChain { table: name.clone(), name: chain.name, base, rules, age: None });
    }
}

/// Priorities: `NF_IP_PRI_*` (include/uapi/linux/netfilter_ipv4.h).
fn base(table: &str, chain: &LegacyChain) -> Option<BaseChain> {
    let built_in = chain.built_in.as_ref()?;
    let hook = built_in.hook;
    let is_source = matches!(hook, Hook::Input | Hook::Postrouting);
    let (kind, priority) = match table {
        "raw" => (ChainKind::Filter, -300),
        "mangle" if hook == Hook::Output => (ChainKind::Route, -150),
        "mangle" => (ChainKind::Filter, -150),
        "nat" => (ChainKind::Nat, if is_source { 100 } else { -100 }),
        "filter" => (ChainKind::Filter, 0),
        "security" => (ChainKind::Filter, 50),
        _ => return None,
    };
    Some(BaseChain { kind, hook, priority, drops: built_in.policy == XtTarget::Drop })
}

fn rule(rule: LegacyRule) -> LiveRule {
    let text = rule.to_string();
    let mut statements = vec![Statement::Header(rule.header)];
    statements.extend(rule.matches.into_iter().map(Statement::Match));
    statements.extend(rule.target.map(Statement::Target));
    let comment = statements.iter().find_map(Statement::comment).map(ToOwned::to_owned);
    LiveRule { text, comment, is_ours: false, statements }
}
