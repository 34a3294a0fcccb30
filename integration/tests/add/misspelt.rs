//! An unknown annotation has no effect; ADD, `verify` and `trace` succeed and warn about it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::{path_of_ours, run};
use serde_json::{Value, json};
use std::fs;

const MISSPELT: &str = "traffic.sidecar.istio.io/excludeOutboundPort";
const SUGGESTION: &str = "did you mean traffic.sidecar.istio.io/excludeOutboundPorts?";

#[test]
fn add_verify_and_trace_succeed_and_warn_about_a_misspelt_annotation() {
    let (directory, namespace) = (PluginDir::new("misspelt"), pod().unwrap());
    let mut manifest: Value = serde_json::from_slice(&fs::read(directory.manifest()).unwrap()).unwrap();
    let correct = PluginCall::add(&namespace, &directory).unwrap().run(&directory, "").unwrap();
    assert_eq!((correct.code, correct.err.contains("is unknown")), (Some(0), false), "{correct:?}");
    manifest["metadata"]["annotations"][MISSPELT] = json!("9090");
    fs::write(directory.manifest(), manifest.to_string()).unwrap();
    let added = PluginCall::add(&namespace, &directory).unwrap().run(&directory, "").unwrap();
    assert_eq!(added.code, Some(0), "{added:?}");
    let warning = added.err.lines().find(|line| line.contains(MISSPELT)).unwrap();
    let warning: Value = serde_json::from_str(warning).unwrap();
    assert!(
        warning["level"] == "warn" && warning["doubt"].as_str().unwrap().ends_with(SUGGESTION),
        "{warning}"
    );
    let (tool, netns) = (path_of_ours("gybe").unwrap(), namespace.path().display().to_string());
    let (tool, manifest) = (tool.to_str().unwrap(), directory.manifest().display().to_string());
    for words in [
        ["verify", "--pod", &manifest, "--netns", &netns].as_slice(),
        &["trace", "--pod", &manifest, "out", "tcp", "10.1.2.3:9090", "--uid", "1000"],
    ] {
        let output = run(tool, words, "").unwrap();
        assert_eq!(output.code, Some(0), "{output:?}");
        assert!(output.err.contains("warning: ") && output.err.contains(SUGGESTION), "{output:?}");
    }
}
