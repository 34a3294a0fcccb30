//! Calls recorded from containerd, the kubelet and libcni: all of them are replayed.
//!
//! The source of facts is added to the recorded configurations. Findings of STATUS about the machine that runs
//! the test are not kept.

use crate::call::{Pods, meshed};
use crate::program::{Outcome, run_with_own_run_directory};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

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
