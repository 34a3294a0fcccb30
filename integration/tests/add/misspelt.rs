//! An annotation that nobody knows changes nothing and fails nothing, and ADD, `verify` and `trace` warn of it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it did not expect has nothing better to do"
)]

use gybe_integration::plugin_call::{PluginCall, PluginDir, pod};
use gybe_integration::programs::{path_of_ours, run};
use serde_json::{Value, json};
use std::fs;

const MISSPELT: &str = "traffic.sidecar.istio.io/excludeOutboundPort";
const MEANT: &str = "did you mean traffic.sidecar.istio.io/excludeOutboundPorts?";

#[test]
fn a_misspelt_annotation_is_a_warning_of_add_verify_and_trace_and_fails_none_of_them() {
    let (place, namespace) = (PluginDir::new("misspelt"), pod().unwrap());
    let mut manifest: Value = serde_json::from_slice(&fs::read(place.manifest()).unwrap()).unwrap();
    let correct = PluginCall::add(&namespace, &place).unwrap().run(&place, "").unwrap();
    assert_eq!((correct.code, correct.err.contains("is unknown")), (Some(0), false), "{correct:?}");
    manifest["metadata"]["annotations"][MISSPELT] = json!("9090");
    fs::write(place.manifest(), manifest.to_string()).unwrap();
    let added = PluginCall::add(&namespace, &place).unwrap().run(&place, "").unwrap();
    assert_eq!(added.code, Some(0), "{added:?}");
    let warning = added.err.lines().find(|line| line.contains(MISSPELT)).unwrap();
    let warning: Value = serde_json::from_str(warning).unwrap();
    assert!(warning["level"] == "warn" && warning["doubt"].as_str().unwrap().ends_with(MEANT), "{warning}");
    let (tool, netns) = (path_of_ours("gybe").unwrap(), namespace.path().display().to_string());
    let (tool, manifest) = (tool.to_str().unwrap(), place.manifest().display().to_string());
    for words in [
        ["verify", "--pod", &manifest, "--netns", &netns].as_slice(),
        &["trace", "--pod", &manifest, "out", "tcp", "10.1.2.3:9090", "--uid", "1000"],
    ] {
        let told = run(tool, words, "").unwrap();
        assert_eq!(told.code, Some(0), "{told:?}");
        assert!(told.err.contains("warning: ") && told.err.contains(MEANT), "{told:?}");
    }
}
