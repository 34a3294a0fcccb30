//! Recorded calls, all of them replayed: from containerd, the kubelet and libcni, and 221 of the reference library
//! with the deviations from it.

use crate::{Outcome, Pods, meshed, run, run_with_own_run_directory};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::{fs, thread};

#[derive(Debug, serde::Deserialize)]
struct Recording {
    calls: Vec<RuntimeCall>,
}

#[derive(Debug, serde::Deserialize)]
struct RuntimeCall {
    #[serde(alias = "command")]
    verb: String,
    env: BTreeMap<String, String>,
    stdin: Value,
}

/// The recordings and the number of their calls, so that a lost or unreadable one is noticed.
const RECORDINGS: [(&str, usize); 10] = [
    ("containerd-1.6.20-crictl.json", 3),
    ("containerd-1.6.20-sandbox.json", 4),
    ("containerd-1.7.24-crictl.json", 3),
    ("containerd-2.1.9-crictl.json", 3),
    ("containerd-2.1.9-status.json", 1),
    ("kubelet-1.20.2-containerd-1.6.20.json", 6),
    ("kubelet-1.36.2-add-failure.json", 4),
    ("kubelet-1.36.2-containerd-2.1.9-updown.json", 5),
    ("kubelet-1.36.2-containerd-2.1.9.json", 3),
    ("libcni-1.3.0.json", 9),
];

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration/vectors/runtime");

/// Returns every recorded call, with its file and position.
fn calls() -> Vec<(String, RuntimeCall)> {
    let mut all = Vec::new();
    for (name, count) in RECORDINGS {
        let text = fs::read(format!("{DIRECTORY}/{name}")).unwrap();
        let recording: Recording =
            serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(recording.calls.len(), count, "{name}");
        let locate = |(at, call): (usize, RuntimeCall)| (format!("{name}, call {at}, {}", call.verb), call);
        all.extend(recording.calls.into_iter().enumerate().map(locate));
    }
    all
}

impl RuntimeCall {
    fn arg(&self, key: &str) -> Option<&str> {
        let args = self.env.get("CNI_ARGS")?;
        args.split(';').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
    }

    /// Replays the call, with this manifest for its pod.
    fn make(&self, pods: &Pods, mut manifest: Value) -> Outcome {
        if let (Some(namespace), Some(name)) = (self.arg("K8S_POD_NAMESPACE"), self.arg("K8S_POD_NAME")) {
            manifest["metadata"]["uid"] = self.arg("K8S_POD_UID").into();
            pods.add(namespace, name, &manifest);
        }
        let mut entry = self.stdin.clone();
        match self.verb.as_str() {
            "ADD" | "CHECK" => entry["facts"] = pods.facts(),
            _ => {}
        }
        run_with_own_run_directory(
            self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())),
            &entry.to_string(),
        )
    }

    /// Returns the call for a pod in the mesh, if the runtime passes annotations.
    fn annotated(mut self) -> Self {
        if let Some(annotations) = self.stdin.pointer_mut("/runtimeConfig/io.kubernetes.cri.pod-annotations")
        {
            *annotations = json!({ "sidecar.istio.io/status": "{}" });
        }
        self
    }
}

#[test]
fn every_recording_is_replayed() {
    let mut files: Vec<String> = fs::read_dir(DIRECTORY)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, RECORDINGS.map(|(name, _)| name));
}

#[test]
fn every_recorded_call_for_an_unmeshed_pod_succeeds_and_passes_the_result_on() {
    let pods = Pods::new("recorded");
    let mut replayed = BTreeMap::<String, usize>::new();
    for (position, call) in calls() {
        let outcome = call.make(&pods, json!({ "spec": { "containers": [{ "name": "app" }] } }));
        assert_eq!(outcome.exit, Some(0), "{position}: {outcome:?}");
        match call.verb.as_str() {
            "ADD" => assert_eq!(outcome.json().as_ref(), call.stdin.get("prevResult"), "{position}"),
            "VERSION" => assert!(outcome.json().unwrap()["supportedVersions"].is_array(), "{position}"),
            _ => assert_eq!(outcome.stdout, "", "{position}"),
        }
        *replayed.entry(call.verb).or_default() += 1;
    }
    println!("recorded calls replayed: {} ({replayed:?})", replayed.values().sum::<usize>());
    let verbs: Vec<&str> = replayed.keys().map(String::as_str).collect();
    assert_eq!(verbs, ["ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION"]);
}

/// The recorded namespaces no longer exist, so a meshed pod must be refused for its namespace, and not for
/// anything before it.
#[test]
fn every_recorded_add_of_a_meshed_pod_fails_only_at_its_namespace() {
    let pods = Pods::new("recorded-meshed");
    let (mut refused, mut passed) = (0, 0);
    for (position, call) in calls().into_iter().filter(|(_, call)| call.verb == "ADD") {
        let call = call.annotated();
        let outcome = call.make(&pods, meshed(&[]));
        if call.arg("K8S_POD_NAME").is_none() {
            assert_eq!(outcome.json().as_ref(), call.stdin.get("prevResult"), "{position}");
            passed += 1;
        } else {
            assert_eq!(outcome.code(), Some(8), "{position}: {outcome:?}");
            assert!(outcome.message().contains(&call.env["CNI_NETNS"]), "{position}: {outcome:?}");
            refused += 1;
        }
    }
    println!("recorded ADDs of a meshed pod: {refused} refused at the namespace, {passed} without a pod");
    assert!(refused >= 8, "{refused} {passed}");
}

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
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
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
    pods.add("ns", "p", &json!({ "spec": { "containers": [{ "name": "app" }] } }));
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
