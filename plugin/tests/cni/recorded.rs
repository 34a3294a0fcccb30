//! Calls as containerd, kubelet and libcni really made them.

use crate::pods::Pods;
use crate::program::run;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

#[derive(Debug, serde::Deserialize)]
struct Recording {
    calls: Vec<Call>,
}

#[derive(Debug, serde::Deserialize)]
struct Call {
    #[serde(alias = "command")]
    verb: String,
    env: BTreeMap<String, String>,
    stdin: Value,
}

fn recordings() -> Vec<(String, Recording)> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration/vectors/runtime");
    let files =
        fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).filter(|path| path.is_file());
    files
        .filter_map(|path| {
            Some((path.display().to_string(), serde_json::from_slice(&fs::read(path).unwrap()).ok()?))
        })
        .collect()
}

fn arg<'a>(call: &'a Call, key: &str) -> Option<&'a str> {
    let args = call.env.get("CNI_ARGS")?;
    args.split(';').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
}

#[test]
fn every_recorded_call_for_an_unmeshed_pod_succeeds_and_hands_its_result_on() {
    let pods = Pods::new("recorded");
    let (mut adds, mut dels, mut others) = (0, 0, 0);
    for (file, recording) in recordings() {
        for call in &recording.calls {
            if let (Some(namespace), Some(name)) = (arg(call, "K8S_POD_NAMESPACE"), arg(call, "K8S_POD_NAME"))
            {
                let uid = arg(call, "K8S_POD_UID");
                let spec = json!({ "containers": [{ "name": "app" }] });
                pods.holds(namespace, name, &json!({ "metadata": { "uid": uid }, "spec": spec }));
            }
            let mut entry = call.stdin.clone();
            if call.verb == "ADD" || call.verb == "CHECK" {
                entry["facts"] = pods.facts();
            }
            let env = call.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let outcome = run(env, &entry.to_string());
            assert_eq!(outcome.exit, Some(0), "{file}: {call:?}: {outcome:?}");
            match call.verb.as_str() {
                "ADD" => {
                    assert_eq!(outcome.json().as_ref(), call.stdin.get("prevResult"), "{file}");
                    adds += 1;
                }
                "DEL" => {
                    assert_eq!(outcome.stdout, "", "{file}");
                    dels += 1;
                }
                _ => others += 1,
            }
        }
    }
    assert!(adds >= 8 && dels >= 15 && others >= 5, "{adds} ADD, {dels} DEL, {others} others");
}
