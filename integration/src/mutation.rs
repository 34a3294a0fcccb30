//! Selects the flows that show that a rule is missing, by tracing. Sends no packet.

use crate::failure::Failure;
use crate::predict::{in_the_pod, trace_flow};
use crate::vectors::{Flow, Vector};
use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::live::LiveRules;
use gybe_netfilter::model::ruleset::{RuleId, Ruleset};
use std::collections::BTreeMap;

/// A policy's rules without one of them, and the flows to check.
#[derive(Debug, Clone)]
pub struct Mutant {
    /// The missing rule.
    pub rule: RuleId,
    pub vector: Vector,
    /// The other rules.
    pub rules: Ruleset,
    /// Whether `vector.flows` are only those whose outcome changes in the trace. Otherwise they are all.
    pub predicted: bool,
}

/// Returns, for every rule of the policies, the mutants without it, the quickest to check first: policies where
/// the trace changes, then all others that have the rule.
///
/// # Errors
/// When the nft backend cannot write the rules.
pub fn mutants(vectors: &[Vector]) -> Result<BTreeMap<RuleId, Vec<Mutant>>, Failure> {
    let mut all: BTreeMap<RuleId, Vec<Mutant>> = BTreeMap::new();
    for vector in vectors {
        let rules = compile(&vector.policy);
        let whole = in_the_pod(&rules)?;
        for rule in rules.rules().map(|(_, rule)| rule.id) {
            let Some(rest) = rules.without(rule.0) else { continue };
            let changed = changed_flows(&whole, &in_the_pod(&rest)?, &vector.flows)?;
            let predicted = !changed.is_empty();
            let flows = if predicted { changed } else { vector.flows.clone() };
            let mutant = Mutant { rule, vector: Vector { flows, ..vector.clone() }, rules: rest, predicted };
            all.entry(rule).or_default().push(mutant);
        }
    }
    for mutants in all.values_mut() {
        mutants.sort_by_key(|mutant| !mutant.predicted);
    }
    Ok(all)
}

/// The flows whose outcome in the trace differs between `rules` and `rest`.
fn changed_flows(rules: &LiveRules, rest: &LiveRules, flows: &[Flow]) -> Result<Vec<Flow>, Failure> {
    let mut changed = Vec::new();
    for flow in flows {
        if trace_flow(rules, flow)?.first != trace_flow(rest, flow)?.first {
            changed.push(flow.clone());
        }
    }
    Ok(changed)
}
