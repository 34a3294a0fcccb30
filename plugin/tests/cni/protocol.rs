//! The protocol as the reference library speaks it: 221 recorded calls, and where we answer otherwise.

use crate::pods::Pods;
use crate::program::{Outcome, run};
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Debug, serde::Deserialize)]
struct Case {
    name: String,
    env: BTreeMap<String, String>,
    stdin: String,
    exit: i32,
    stdout: Value,
}

/// Calls we answer otherwise than the reference, with what we answer and the sentence of the CNI
/// specification (or of ours) that makes it right.
const OTHERWISE: [(&str, i32, Option<u64>, &str); 4] = [
    (
        "DEL-netns-self",
        0,
        None,
        "Plugins should generally complete a DEL action without error even if some resources are missing. \
         (A recycled /proc/PID/ns/net is the host's: the container's is gone, and a failing DEL keeps its pod for ever.)",
    ),
    (
        "ADD-args-field-trick",
        0,
        None,
        "CNI_ARGS: Extra arguments passed in by the user at invocation time. Alphanumeric key-value pairs separated \
         by semicolons. (CommonArgs is a field of a Go struct, and to us an unknown key like any other.)",
    ),
    (
        "ADD-args-k8s",
        1,
        Some(7),
        "7: Invalid network config. (The recorded plugin asks nobody about pods. Ours must, and this entry names \
         nobody to ask; the test below gives it somebody.)",
    ),
    ("ADD-args-crio-dup", 1, Some(7), "The same."),
];

/// Answered with the same exit, but with prevResult as it was handed to us, where the reference reads
/// it into its own struct and adds an empty `dns` or a missing `version`. The specification (ADD): a
/// plugin that changes nothing "must output a result equivalent to the provided `prevResult`".
const UNTOUCHED: [&str; 4] = [
    "ADD-conf-0.3.1-prev-0.4.0",
    "ADD-conf-0.4.0-prev-0.3.1",
    "ADD-conf-0.4.0-prev-0.4.0",
    "ADD-conf-0.4.0-prev-None",
];

fn cases() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration/vectors/cni/protocol.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn call(case: &Case, stdin: &str) -> Outcome {
    run(case.env.iter().map(|(name, value)| (name.as_str(), value.as_str())), stdin)
}

/// Exit, CNI code, and for a success the whole result.
fn differs(case: &Case, outcome: &Outcome) -> Option<String> {
    let answer = outcome.json().unwrap_or(Value::Null);
    // Where the reference refuses after its work it prints two documents; the second is the error.
    let want_code = case.stdout["code"].as_u64().or_else(|| case.stdout.get("_raw").map(|_| 8));
    let same_body = if UNTOUCHED.contains(&case.name.as_str()) {
        answer == handed_on(case) && answer != case.stdout
    } else {
        want_code.is_some() || answer == case.stdout
    };
    let same = outcome.exit == Some(case.exit) && outcome.code() == want_code && same_body;
    (!same).then(|| format!("{}: want {} {}, got {outcome:?}", case.name, case.exit, case.stdout))
}

/// The call's prevResult in the version of its entry.
fn handed_on(case: &Case) -> Value {
    let entry: Value = serde_json::from_str(&case.stdin).unwrap();
    let mut result = entry["prevResult"].clone();
    result["cniVersion"] = entry["cniVersion"].clone();
    result
}

#[test]
fn every_recorded_call_is_answered_as_the_reference_answers_it() {
    let cases = cases();
    assert_eq!(cases.len(), 221);
    let otherwise = |case: &&Case| OTHERWISE.iter().any(|(name, ..)| *name == case.name);
    let (ours, theirs): (Vec<_>, Vec<_>) = cases.iter().partition(otherwise);
    let wrong: Vec<_> = theirs.iter().filter_map(|case| differs(case, &call(case, &case.stdin))).collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert_eq!(ours.len(), OTHERWISE.len(), "each deviation is one recorded call");
}

#[test]
fn where_we_answer_otherwise_we_answer_as_we_say() {
    for case in cases() {
        let Some((_, exit, code, why)) = OTHERWISE.iter().find(|(name, ..)| *name == case.name) else {
            continue;
        };
        let outcome = call(&case, &case.stdin);
        assert_eq!((outcome.exit, outcome.code()), (Some(*exit), *code), "{}: {why}: {outcome:?}", case.name);
        assert!(differs(&case, &outcome).is_some(), "{} is no deviation any more", case.name);
    }
}

#[test]
fn a_recorded_call_for_a_pod_is_answered_alike_when_somebody_knows_the_pod() {
    let pods = Pods::new("protocol");
    pods.holds("ns", "p", &serde_json::json!({ "spec": { "containers": [{ "name": "app" }] } }));
    for case in
        cases().iter().filter(|case| ["ADD-args-k8s", "ADD-args-crio-dup"].contains(&case.name.as_str()))
    {
        let mut entry: Value = serde_json::from_str(&case.stdin).unwrap();
        entry["facts"] = pods.facts();
        assert_eq!(differs(case, &call(case, &entry.to_string())), None);
    }
}

#[test]
fn a_person_is_told_who_it_is() {
    let outcome = run([], "");
    assert_eq!((outcome.exit, outcome.stdout.as_str()), (Some(0), ""));
    assert!(outcome.stderr.starts_with("CNI plugin gybe-cni "), "{outcome:?}");
    assert!(outcome.stderr.contains("CNI protocol versions supported: 0.1.0, 0.2.0, "), "{outcome:?}");
}
