//! The keys of the configuration are those of the table in docs/CONFIGURE.md, and DEL succeeds with configurations
//! of older releases and with results that a crash truncated.

use crate::{environment, run, run_at};
use gybe_plugin::conf::unknown_keys;
use gybe_test_support::{TestDir, install};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const VERSIONS: [&str; 8] = ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Configurations of every release of Gybe and istio-cni, and one of a future release.
fn old_entries() -> Vec<(String, Value)> {
    let entries: Map<String, Value> = serde_json::from_str(include_str!("old_entries.json")).unwrap();
    entries.into_iter().collect()
}

/// Calls DEL as runtimes do on stop, on removal, and after a failed ADD (docs/RULES.md, section 6).
fn assert_torn_down(entry: &Value, label: &str) {
    let result = json!({ "cniVersion": entry["cniVersion"], "ips": [], "dns": {} });
    for (netns, prev_result) in
        [("/nonexistent", Some(&result)), ("", None), ("/nonexistent", None), ("", Some(&Value::Null))]
    {
        let mut entry = entry.clone();
        if let Some(prev_result) = prev_result {
            entry["prevResult"] = prev_result.clone();
        }
        let env = [
            ("CNI_COMMAND", "DEL"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0"),
        ];
        let outcome = run(env, &entry.to_string());
        assert_eq!((outcome.exit, outcome.stdout.as_str()), (Some(0), ""), "{label}: {outcome:?}");
    }
}

#[test]
fn f32_del_succeeds_with_the_configuration_of_every_release() {
    let entries = old_entries();
    assert!(entries.len() >= 7, "{}", entries.len());
    for (release, entry) in entries {
        for version in VERSIONS {
            let mut entry = entry.clone();
            entry["cniVersion"] = version.into();
            assert_torn_down(&entry, &format!("{release} of {version:?}"));
        }
        let mut undeclared = entry;
        undeclared.as_object_mut().unwrap().remove("cniVersion");
        assert_torn_down(&undeclared, &format!("{release} without a version"));
    }
}

/// An older runtime passes the whole list, with its name and version.
#[test]
fn f32_del_succeeds_with_a_whole_list_as_configuration() {
    for (release, entry) in old_entries() {
        let whole = json!({ "cniVersion": "0.4.0", "name": "k8s-pod-network", "plugins": [entry] });
        assert_torn_down(&whole, &format!("{release} in its list"));
    }
}

#[test]
fn f31_del_succeeds_with_a_truncated_cached_result() {
    let (_, entry) = old_entries().into_iter().find(|(release, _)| release == "gybe-0.1").unwrap();
    let result = json!({ "cniVersion": "1.0.0", "interfaces": [{ "name": "eth0" }], "ips": [], "dns": {} });
    let whole = result.to_string();
    // A runtime may pass the truncated file as text.
    for end in 0..whole.len() {
        let mut entry = entry.clone();
        entry["prevResult"] = serde_json::from_str(&whole[..end]).unwrap_or_else(|_| whole[..end].into());
        let env =
            [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0"), ("CNI_PATH", "/x")];
        let outcome = run(env, &entry.to_string());
        assert_eq!((outcome.exit, outcome.stdout.as_str()), (Some(0), ""), "{end}: {outcome:?}");
    }
}

/// istio-cni's agent deletes its program when it is uninstalled. gybe-cni replaces it under that name, and must
/// answer every verb for the sandboxes of before.
#[test]
fn f29_under_istio_cnis_name_the_plugin_answers_for_istio_cnis_sandboxes() {
    let directory = TestDir::new("stand-in");
    let program = directory.join("istio-cni");
    install(std::path::Path::new(env!("CARGO_BIN_EXE_gybe-cni")), &program);
    let call = |verb: &str, entry: &Value| {
        let pod = "IgnoreUnknown=1;K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=dns";
        run_at(&program, environment(verb, pod), &entry.to_string())
    };
    for (release, entry) in old_entries().into_iter().filter(|(release, _)| release.contains("istio-cni")) {
        let mut entry = entry;
        entry["cniVersion"] = "1.0.0".into();
        entry["type"] = "istio-cni".into();
        assert_eq!(call("DEL", &entry).exit, Some(0), "{release}");
        assert!(call("VERSION", &entry).stdout.contains("supportedVersions"), "{release}");
        // istio-cni's agent may have restored its entry: the ADD then calls gybe-cni, and an excluded pod passes.
        entry["exclude_namespaces"] = json!(["kube-system"]);
        entry["prevResult"] = json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.0.0.1/24" }] });
        let is_ambient = entry["ambient_enabled"] == true;
        for verb in ["ADD", "CHECK"] {
            let outcome = call(verb, &entry);
            assert_eq!(outcome.exit, Some(i32::from(is_ambient)), "{release}: {verb}: {outcome:?}");
        }
    }
}

const TABLE: &str = include_str!("../../../docs/CONFIGURE.md");
const READERS: [&str; 3] = [
    include_str!("../../src/conf.rs"),
    include_str!("../../src/conf/ambient.rs"),
    include_str!("../../src/conf/istio_keys.rs"),
];

/// The keys in the table's first column.
fn documented() -> BTreeSet<&'static str> {
    let (_, section) = TABLE.split_once("## 3. The plugin").unwrap();
    let (section, _) = section.split_once("### Where the plugin").unwrap();
    section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

/// The literal keys in calls of `ConfReader`, without the key that contains them.
fn read() -> BTreeSet<&'static str> {
    let calls = READERS.iter().flat_map(|reader| reader.split("keys.").skip(1));
    let calls = calls.filter_map(|call| call.split_once("(\""));
    calls
        .filter(|(method, _)| method.chars().all(|c| c.is_ascii_alphabetic() || c == '_'))
        .map(|(_, rest)| rest.split('"').next().unwrap())
        .collect()
}

#[test]
fn exactly_the_keys_that_are_read_are_documented() {
    let documented: BTreeSet<&str> =
        documented().into_iter().map(|key| key.split('.').next_back().unwrap()).collect();
    assert!(read().len() > 10, "{:?}", read());
    assert_eq!(documented, read());
}

#[test]
fn every_documented_key_is_known() {
    let mut entry = Map::new();
    for key in documented() {
        match key.split_once('.') {
            Some((outer, inner)) => entry[outer][inner] = Value::Null,
            None => drop(entry.insert(key.to_owned(), json!({}))),
        }
    }
    assert_eq!(unknown_keys(&entry), [""; 0]);
    entry.insert("backened".to_owned(), Value::Null);
    assert_eq!(unknown_keys(&entry), ["backened"]);
}
