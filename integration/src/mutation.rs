//! Which flows would tell that a rule is missing. Asked of the rules; no packet is sent here.

use crate::foretell::foretell;
use crate::vectors::{Flow, Vector};
use gybe_netfilter::compile::compile;
use gybe_netfilter::policy::InterfaceNameError;
use gybe_netfilter::ruleset::{RuleId, Ruleset};
use std::collections::BTreeMap;

/// A policy's rules less one, and the flows to look at.
#[derive(Debug, Clone)]
pub struct Mutant {
    /// The rule that is missing.
    pub rule: RuleId,
    /// The policy.
    pub vector: Vector,
    /// What is left of its rules.
    pub rules: Ruleset,
    /// Do `vector.flows` hold only those whose fate `trace` sees change? Otherwise they hold all.
    pub foretold: bool,
}

/// For every rule the policies' rules have, the mutants that may betray that it is missing, the
/// quickest first: policies where `trace` foretells another fate, then all others that have the rule.
///
/// # Errors
/// Never, as long as the flows name real interfaces.
pub fn mutants(vectors: &[Vector]) -> Result<BTreeMap<RuleId, Vec<Mutant>>, InterfaceNameError> {
    let mut all: BTreeMap<RuleId, Vec<Mutant>> = BTreeMap::new();
    for vector in vectors {
        let rules = compile(&vector.policy);
        for rule in rules.rules().map(|(_, rule)| rule.id) {
            let Some(rest) = rules.without(rule.0) else { continue };
            let told = telling(&rules, &rest, &vector.flows)?;
            let foretold = !told.is_empty();
            let flows = if foretold { told } else { vector.flows.clone() };
            let mutant = Mutant { rule, vector: Vector { flows, ..vector.clone() }, rules: rest, foretold };
            all.entry(rule).or_default().push(mutant);
        }
    }
    for mutants in all.values_mut() {
        mutants.sort_by_key(|mutant| !mutant.foretold);
    }
    Ok(all)
}

/// The flows whose fate changes from `rules` to `rest`.
fn telling(rules: &Ruleset, rest: &Ruleset, flows: &[Flow]) -> Result<Vec<Flow>, InterfaceNameError> {
    let mut told = Vec::new();
    for flow in flows {
        if foretell(rules, flow)?.outcome != foretell(rest, flow)?.outcome {
            told.push(flow.clone());
        }
    }
    Ok(told)
}
