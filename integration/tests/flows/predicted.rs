//! Every recorded outcome follows from the prediction of `trace`.

use gybe_installer::demo::predicted::{Control, SideEffect, follows};
use gybe_integration::predict::{agrees_with_trace, trace_flow};
use gybe_integration::vectors;
use gybe_netfilter::compile::compile;
use gybe_netfilter::ruleset::Ruleset;
use gybe_netfilter::trace::PacketOutcome;

#[test]
fn trace_predicts_every_recorded_flow() {
    let mut wrong = Vec::new();
    for vector in vectors::all().unwrap() {
        let rules = compile(&vector.policy);
        for flow in &vector.flows {
            let trace = trace_flow(&rules, flow).unwrap();
            if !agrees_with_trace(&vector.policy, flow).unwrap() {
                wrong.push(format!(
                    "{} {}: {} predicted {:?} by {:?}",
                    vector.name, flow.id, flow.with_rules, trace.outcome, trace.decided_by
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} flows:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn without_rules_trace_predicts_the_control_and_not_the_policy() {
    for vector in vectors::all().unwrap() {
        let no_rules = Ruleset { families: vector.policy.families, chains: Vec::new() };
        let mut missed = 0;
        for flow in &vector.flows {
            let predicted = trace_flow(&no_rules, flow).unwrap().outcome;
            assert_eq!(predicted, PacketOutcome::Untouched, "{} {}", vector.name, flow.id);
            let control = Control { to: flow.to, outcome: &flow.without_rules };
            assert!(
                follows(predicted, control, SideEffect::None, &flow.without_rules),
                "{} {}",
                vector.name,
                flow.id
            );
            missed += usize::from(!follows(predicted, control, SideEffect::None, &flow.with_rules));
        }
        assert!(missed > 0, "no flow of {} needs its rules", vector.name);
    }
}
