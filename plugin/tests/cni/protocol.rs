//! 221 calls recorded with the reference library, and the deviations from it.

use crate::call::Pods;
use crate::program::{Outcome, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::thread;

#[derive(Debug, serde::Deserialize)]
struct RecordedCall {
    name: String,
    env: BTreeMap<String, String>,
    stdin: String,
    exit: i32,
    stdout: Value,
}

/// Calls with another outcome than the reference library's: name, exit status, code, and the sentence of the
/// CNI specification, or of the project, that justifies it.
const DEVIATIONS: [(&str, i32, Option<u64>, &str); 4] = [
    (
        "DEL-netns-self",
        0,
        None,
        "Plugins should generally complete a DEL action without error even if some resources are missing. \
         (A recycled /proc/PID/ns/net is the host's: the container's no longer exists, and a failing DEL keeps its pod for ever.)",
    ),
    (
        "ADD-args-field-trick",
        0,
        None,
        "CNI_ARGS: Extra arguments passed in by the user at invocation time. Alphanumeric key-value pairs separated \
         by semicolons. (CommonArgs is a field of a Go struct, and to the plugin an unknown key like any other.)",
    ),
    (
        "ADD-args-k8s",
        1,
        Some(11),
        "11: Try again later. (The recorded plugin needs no facts about pods. gybe-cni does, and no node agent runs; \
         the test below provides a manifest.)",
    ),
    ("ADD-args-crio-dup", 1, Some(11), "The same."),
];

fn cases() -> Vec<RecordedCall> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration/vectors/cni/protocol.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn call(case: &RecordedCall, stdin: &str) -> Outcome {
    run(case.env.iter().map(|(name, value)| (name.as_str(), value.as_str())), stdin)
}

/// Compares exit status, CNI code, and for a success the whole result.
fn differs(case: &RecordedCall, outcome: &Outcome) -> Option<String> {
    let answer = outcome.json().unwrap_or(Value::Null);
    // Where the reference refuses after its work it prints two documents; the second is the error.
    let expected_code = case.stdout["code"].as_u64().or_else(|| case.stdout.get("_raw").map(|_| 8));
    let same_body = expected_code.is_some() || answer == case.stdout;
    let same = outcome.exit == Some(case.exit) && outcome.code() == expected_code && same_body;
    (!same).then(|| format!("{}: expected {} {}: {outcome:?}", case.name, case.exit, case.stdout))
}

#[test]
fn every_recorded_call_has_the_reference_librarys_outcome() {
    let cases = cases();
    assert_eq!(cases.len(), 221);
    let deviates = |case: &&RecordedCall| DEVIATIONS.iter().any(|(name, ..)| *name == case.name);
    let (deviations, equal): (Vec<_>, Vec<_>) = cases.iter().partition(deviates);
    let wrong: Vec<_> = equal.iter().filter_map(|case| differs(case, &call(case, &case.stdin))).collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert_eq!(deviations.len(), DEVIATIONS.len(), "each deviation is one recorded call");
}

#[test]
fn every_deviation_has_its_documented_outcome() {
    let cases = cases();
    // Some calls wait until their deadline.
    thread::scope(|scope| {
        for (name, exit, code, why) in DEVIATIONS {
            let case = cases.iter().find(|case| case.name == name).unwrap();
            scope.spawn(move || {
                let outcome = call(case, &case.stdin);
                assert_eq!((outcome.exit, outcome.code()), (Some(exit), code), "{name}: {why}: {outcome:?}");
                assert!(differs(case, &outcome).is_some(), "{name} is no deviation any more");
            });
        }
    });
}

#[test]
fn a_recorded_call_for_a_pod_has_the_references_outcome_if_the_pod_is_known() {
    let pods = Pods::new("protocol");
    pods.add("ns", "p", &serde_json::json!({ "spec": { "containers": [{ "name": "app" }] } }));
    for case in
        cases().iter().filter(|case| ["ADD-args-k8s", "ADD-args-crio-dup"].contains(&case.name.as_str()))
    {
        let mut entry: Value = serde_json::from_str(&case.stdin).unwrap();
        entry["facts"] = pods.facts();
        assert_eq!(differs(case, &call(case, &entry.to_string())), None);
    }
}

#[test]
fn without_cni_command_the_plugin_prints_its_name_and_versions() {
    let outcome = run([], "");
    assert_eq!((outcome.exit, outcome.stdout.as_str()), (Some(0), ""));
    assert!(outcome.stderr.starts_with("CNI plugin gybe-cni "), "{outcome:?}");
    assert!(outcome.stderr.contains("CNI protocol versions supported: 0.1.0, 0.2.0, "), "{outcome:?}");
}
