//! Each fault alone, and pairs of them.

use crate::fault::{AgentState, Expected, Fault};
use crate::fixture::{HealthyNode, with_directory_in_memory};
use crate::hidden::{HIDDEN, SOMETIMES};
use crate::table::FAULTS;
use gybe_integration::parallel::in_parallel_at_most;
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Most of a case is waiting for programs.
const THREADS: usize = 4;

/// Plants the faults on a new node, and returns what the commands do not report, and findings that none of the faults
/// explains.
fn misses(agent: AgentState, faults: &[&Fault]) -> Vec<String> {
    with_directory_in_memory(|directory| {
        let mut node = HealthyNode::new(directory, agent);
        for fault in faults {
            (fault.plant)(&mut node);
        }
        let (doctor, verify) = (node.doctor(), node.verify());
        let instead = |fault: &Fault| HIDDEN.iter().find(|it| it.applies(fault, faults)).map(|it| it.instead);
        let mut misses: Vec<String> =
            faults.iter().flat_map(|fault| fault.unreported(instead(fault), &doctor, &verify)).collect();
        let expected = faults.iter().flat_map(|fault| {
            let sometimes =
                SOMETIMES.iter().filter(|(name, _)| *name == fault.name).map(|(_, expected)| expected);
            instead(fault).unwrap_or(fault.doctor).iter().chain(sometimes)
        });
        let expected: Vec<&Expected> = expected.collect();
        let is_explained = |finding: &&Value| expected.iter().any(|expected| expected.is(finding));
        let findings = doctor["findings"].as_array().unwrap();
        let hidden = faults.iter().filter(|fault| instead(fault).is_some()).flat_map(|fault| fault.doctor);
        let reported = hidden.filter(|hidden| findings.iter().any(|finding| hidden.is(finding)));
        misses.extend(reported.map(|hidden| format!("not hidden: {hidden:?}")));
        let wrong = findings.iter().filter(|finding| finding["state"] == "wrong");
        misses.extend(wrong.filter(|finding| !is_explained(finding)).map(|it| format!("unexpected: {it}")));
        if !misses.is_empty() {
            misses.push(format!("doctor: {doctor}\nverify: {verify}"));
        }
        misses
    })
}

/// Plants each group of faults, and fails with every miss.
fn assert_reported(groups: Vec<(AgentState, Vec<&Fault>)>) {
    let found = in_parallel_at_most(THREADS, groups, |(agent, faults)| {
        let names: Vec<&str> = faults.iter().map(|fault| fault.name).collect();
        let misses = catch_unwind(AssertUnwindSafe(|| misses(agent, &faults)));
        let misses = misses.unwrap_or_else(|_| vec!["a panic".to_owned()]);
        (!misses.is_empty()).then(|| format!("{} ({agent:?}):\n{}", names.join(" + "), misses.join("\n")))
    });
    let found: Vec<String> = found.into_iter().flatten().collect();
    assert!(found.is_empty(), "{} failed:\n{}", found.len(), found.join("\n\n"));
}

/// The nodes on which all of these faults can be planted.
fn agents(faults: &[&Fault]) -> Vec<AgentState> {
    let both = [AgentState::Running, AgentState::Absent];
    both.into_iter()
        .filter(|agent| faults.iter().all(|fault| fault.agent.is_none_or(|needed| needed == *agent)))
        .collect()
}

#[test]
fn nothing_is_wrong_on_a_healthy_node() {
    for agent in [AgentState::Running, AgentState::Absent] {
        let (doctor, verify) = with_directory_in_memory(|directory| {
            let node = HealthyNode::new(directory, agent);
            (node.doctor(), node.verify())
        });
        assert!(doctor["well"] == true && verify["holds"] == true, "{doctor:#}\n{verify:#}");
        assert_eq!(verify["sandboxes"][0]["proxy_silent_on"], serde_json::json!([]), "{verify:#}");
        for fault in FAULTS {
            let found = fault
                .doctor
                .iter()
                .find(|expected| doctor["findings"].as_array().unwrap().iter().any(|it| expected.is(it)));
            assert!(found.is_none(), "{}: {doctor:#}", fault.name);
        }
    }
}

#[test]
fn each_fault_alone_is_named_with_its_remedy() {
    assert!(FAULTS.len() >= 25);
    let alone =
        FAULTS.iter().flat_map(|fault| agents(&[fault]).into_iter().map(move |agent| (agent, vec![fault])));
    assert_reported(alone.collect());
}

#[test]
fn of_two_faults_both_are_named_or_the_one_that_hides_the_other() {
    let pairs = FAULTS
        .iter()
        .enumerate()
        .flat_map(|(index, one)| FAULTS[index + 1..].iter().map(move |two| [one, two]));
    let stand_together = |[one, two]: &[&Fault; 2]| !one.parts.iter().any(|part| two.parts.contains(part));
    let groups: Vec<_> = pairs
        .filter(stand_together)
        .flat_map(|pair| agents(&pair).into_iter().take(1).map(move |agent| (agent, pair.to_vec())))
        .collect();
    assert!(groups.len() >= 300, "{} pairs", groups.len());
    assert_reported(groups);
}
