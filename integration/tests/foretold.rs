//! Every recorded fate, foretold from the rules alone.

use gybe_installer::demo::predicted::{Control, SideEffect, follows};
use gybe_integration::foretell::{foretell, foretells};
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
            let trace = foretell(&rules, flow).unwrap();
            if !foretells(&vector.policy, flow).unwrap() {
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
            let fate = foretell(&nothing, flow).unwrap().outcome;
            assert_eq!(fate, PacketOutcome::Untouched, "{} {}", vector.name, flow.id);
            let asked = Control { to: flow.to, outcome: &flow.without_rules };
            assert!(
                follows(fate, asked, SideEffect::None, &flow.without_rules),
                "{} {}",
                vector.name,
                flow.id
            );
            missed += usize::from(!follows(fate, asked, SideEffect::None, &flow.with_rules));
        }
        assert!(missed > 0, "no flow of {} needs its rules", vector.name);
    }
}
