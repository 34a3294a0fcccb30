//! Every recorded fate, foretold from the rules alone.

use gybe_installer::demo::predicted::{SideEffect, follows};
use gybe_integration::predict::{agrees_with_trace, trace_flow};
use gybe_integration::vectors;
use gybe_netfilter::compile::compile;
use gybe_netfilter::ruleset::Ruleset;
use gybe_netfilter::trace::PacketOutcome;

#[test]
fn trace_foretells_every_recorded_flow() {
    let mut wrong = Vec::new();
    for vector in vectors::all().unwrap() {
        let rules = compile(&vector.policy);
        for flow in &vector.flows {
            let trace = trace_flow(&rules, flow).unwrap();
            if !agrees_with_trace(&vector.policy, flow).unwrap() {
                wrong.push(format!(
                    "{} {}: {} foretold {:?} by {:?}",
                    vector.name, flow.id, flow.with_rules, trace.outcome, trace.decided_by
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} flows:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn without_rules_trace_foretells_the_control_and_not_the_policy() {
    for vector in vectors::all().unwrap() {
        let nothing = Ruleset { families: vector.policy.families, chains: Vec::new() };
        let mut missed = 0;
        for flow in &vector.flows {
            let fate = trace_flow(&nothing, flow).unwrap().outcome;
            assert_eq!(fate, PacketOutcome::Untouched, "{} {}", vector.name, flow.id);
            let asked = (flow.to, &flow.without_rules);
            assert!(
                follows(fate, asked, SideEffect::Nothing, &flow.without_rules),
                "{} {}",
                vector.name,
                flow.id
            );
            missed += usize::from(!follows(fate, asked, SideEffect::Nothing, &flow.with_rules));
        }
        assert!(missed > 0, "no flow of {} needs its rules", vector.name);
    }
}
