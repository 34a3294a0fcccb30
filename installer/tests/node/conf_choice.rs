//! The network that a runtime chooses from a conf directory: as recorded from libcni, and the same after every
//! single change to any directory. ocicni, CRI-O's library, which also looks for the plugins' programs, runs in
//! `integration/containerd/tests/runtime/crio_choice.rs`.

use crate::test_node::{TestNode, chained, installed, name, uninstalled};
use gybe_installer::host::apply::apply;
use gybe_installer::host::desired::{Confirmed, DesiredState, Install, PutBack, Shape};
use gybe_installer::host::libcni::{LoadError, network};
use gybe_installer::host::libcni::{NoChoice, choose};
use gybe_installer::host::observe::runtimes::{DropIns, Runtime};
use gybe_installer::host::observe::{FileFormat, ObserveScope};
use gybe_installer::host::plan::plan;
use proptest::prelude::*;
use serde_json::Value;
use std::os::unix::fs::symlink;

const NAMES: [&str; 10] = [
    "10-a.conf",
    "10-a.conflist",
    "10-a.json",
    "10-a.conf.conflist",
    "10-a.json.conflist",
    "05-b.conf",
    "20-c.conflist",
    ".conf",
    "10-a.conf5.conf",
    "10-a.conf-5.conf",
];

/// Returns a conf file's content. The names of its network and plugin contain `n`, so that tests can tell files apart.
fn content(kind: u8, n: usize) -> String {
    match kind {
        0 => format!("{{\n  \"name\": \"net{n}\",\n  \"type\": \"p{n}\"\n}}\n"),
        1 => format!("{{\"cniVersion\":\"1.0.0\",\"name\":\"net{n}\",\"plugins\":[{{\"type\":\"p{n}\"}}]}}"),
        2 => format!(
            "{{\n \"plugins\": [\n  {{ \"type\": \"p{n}\" }},\n  {{ \"type\": \"portmap\" }}\n ],\n \"name\": \"net{n}\" }}"
        ),
        3 => format!("{{\"type\":\"p{n}\"}}"),
        4 => format!("{{\"name\":\"net{n}\",\"plugins\":["),
        5 => "{\"name\":\"istio-cni\",\"type\":\"istio-cni\"}".to_owned(),
        _ => format!("{{\"name\":\"net{n}\",\"type\":\"p{n}\",\"plugins\":[{{\"type\":\"q{n}\"}}]}}"),
    }
}

fn loaded_network(node: &TestNode, runtime: Runtime) -> Option<(String, Vec<String>)> {
    let network =
        choose(&node.observe(&ObserveScope::default()).conf, runtime, DropIns::Loaded).ok()?.network;
    let mut plugins = network.plugins;
    plugins.retain(|plugin| plugin != "gybe-cni");
    Some((network.name, plugins))
}

/// Plans and applies until no change is left, and checks the loaded network after each single change.
fn walk(node: &TestNode, desired: &DesiredState) {
    let before = [Runtime::Containerd, Runtime::CriO].map(|runtime| loaded_network(node, runtime));
    for _ in 0..3 {
        let planned = plan(&node.observe(&desired.interest()), desired);
        for change in &planned.changes {
            let performed = apply(std::slice::from_ref(change), &node.directories());
            assert!(performed.failed.is_empty(), "{change}: {:?}", performed.failed);
            let after = [Runtime::Containerd, Runtime::CriO].map(|runtime| loaded_network(node, runtime));
            assert_eq!(
                after,
                before,
                "after: {change}, of {:#?}\n{:#?}",
                planned.changes,
                node.files().keys()
            );
        }
    }
    let last = plan(&node.observe(&desired.interest()), desired);
    assert!(last.changes.is_empty(), "{:#?}", last.changes);
}

fn desired(node: &TestNode, which: u8) -> DesiredState {
    // The plugins that these conf files name do not exist, so the directory must be confirmed by the operator.
    let confirmed = |state| match state {
        DesiredState::Installed(install) => {
            DesiredState::Installed(Install { confirmed: Confirmed::Yes, ..install })
        }
        uninstall @ DesiredState::Uninstalled(_) => uninstall,
    };
    confirmed(match which {
        0 | 1 => chained(&node.root),
        2 => installed(&node.root, Shape::DropIn),
        3 => uninstalled(&node.root, PutBack::Nothing),
        _ => installed(&node.root, Shape::Standalone { file: name("YYY-gybe-cni.conf") }),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_change_leaves_the_loaded_network_as_it_was_except_for_gybes_entry(
        files in prop::collection::btree_map(0..NAMES.len(), 0..7_u8, 1..5),
        states in prop::collection::vec(0..5_u8, 1..4),
    ) {
        let node = TestNode::new();
        for (n, kind) in &files {
            node.put(NAMES[*n], content(*kind, *n));
        }
        let before = node.files();
        // In an empty directory the standalone shape would be the loaded network, as intended, so it is not tested.
        let any = loaded_network(&node, Runtime::CriO).is_some();
        for which in states.into_iter().filter(|which| any || *which < 4) {
            walk(&node, &desired(&node, which));
        }
        walk(&node, &uninstalled(&node.root, PutBack::Nothing));
        prop_assert_eq!(node.files(), before);
    }

    #[test]
    fn f05_a_rewrite_between_any_two_changes_is_kept_and_repaired(
        n in 0..NAMES.len(), kind in 0..3_u8, stop in 0..4_usize, again in 0..3_u8,
    ) {
        let node = TestNode::new();
        node.put(NAMES[n], content(kind, n));
        if loaded_network(&node, Runtime::CriO).is_some() {
            let desired = desired(&node, 0);
            let planned = plan(&node.observe(&desired.interest()), &desired);
            let _ = apply(&planned.changes[..stop.min(planned.changes.len())], &node.directories());
            let newer = content(again, n).replace("portmap", "tuning");
            node.put(NAMES[n], &newer);
            let loads = loaded_network(&node, Runtime::CriO);
            // Planned changes that would undo the primary's later write are refused.
            let _ = apply(&planned.changes[stop.min(planned.changes.len())..], &node.directories());
            prop_assume!(loads.is_some());
            prop_assert_eq!(loaded_network(&node, Runtime::CriO), loads);
            for _ in 0..3 { node.pass(&desired); }
            for _ in 0..3 { node.pass(&uninstalled(&node.root, PutBack::Nothing)); }
            prop_assert_eq!(node.text(NAMES[n]), newer);
        }
    }
}

fn node_with(files: &Value) -> TestNode {
    let node = TestNode::new();
    for (name, file) in files.as_object().unwrap() {
        if file["symlink"] == true {
            let end = node.directories().results.join(name);
            if let Some(content) = file["content"].as_str() {
                std::fs::write(&end, content).unwrap();
            }
            symlink(end, node.conf(name)).unwrap();
        } else {
            node.put(name, file["content"].as_str().unwrap());
        }
    }
    node
}

#[test]
fn the_choices_recorded_from_libcni_are_predicted() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration/vectors/cni/conf-selection.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(cases.len(), 32);
    for case in cases {
        let node = node_with(&case["files"]);
        let observed = node.observe(&ObserveScope::default());
        for (runtime, key) in [(Runtime::Containerd, "containerd"), (Runtime::CriO, "crio")] {
            let (expected, found) = (&case["pick"][key], choose(&observed.conf, runtime, DropIns::Loaded));
            let about = format!("{} by {key}: {found:?}", case["name"]);
            match &found {
                Ok(choice) => {
                    assert_eq!(expected["file"], choice.file.to_string(), "{about}");
                    assert_eq!(expected["name"], choice.network.name, "{about}");
                    assert_eq!(
                        expected["cniVersion"].as_str().unwrap_or(""),
                        choice.network.version,
                        "{about}"
                    );
                    let types: Vec<_> =
                        expected["types"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
                    assert_eq!(types, choice.network.plugins, "{about}");
                }
                Err(NoChoice::Stopped(broken)) => {
                    assert!(expected["error"].is_string(), "{about}");
                    assert_eq!(expected["file"], broken.file.to_string(), "{about}");
                }
                // A dangling link: from inside a container the agent cannot find out what the runtime reads there.
                Err(NoChoice::Unknown(broken)) => {
                    assert_eq!(case["files"][broken.file.to_string()]["content"], Value::Null, "{about}");
                }
                Err(NoChoice::Nothing) => {
                    assert!(expected["error"].is_string() && expected["file"].is_null(), "{about}");
                }
            }
        }
    }
}

#[test]
fn a_plugin_whose_members_have_other_types_than_libcni_requires_is_no_network() {
    // As the reference library 1.3.0 decides.
    for (member, wrong) in [
        (r#""ipam":{"type":"host-local","subnet":5}"#, None),
        (r#""ipam":null,"dns":null,"capabilities":null,"prevResult":null"#, None),
        (r#""dns":{"nameservers":["10.0.0.10"],"search":null}"#, None),
        (r#""Type":null"#, None),
        (r#""prevResult":{}"#, None),
        (r#""ipam":{"type":5}"#, Some("ipam")),
        (r#""IPAM":[]"#, Some("ipam")),
        (r#""dns":{"nameservers":"10.0.0.10"}"#, Some("dns")),
        (r#""dns":{"search":[5]}"#, Some("dns")),
        (r#""dns":{"domain":{}}"#, Some("dns")),
        (r#""dns":{"options":{}},"dns":{}"#, Some("dns")),
        (r#""capabilities":{"portMappings":"true"}"#, Some("capabilities")),
        (r#""name":5"#, Some("name")),
        (r#""prevResult":"""#, Some("prevResult")),
        (r#""cni.dev/valid-attachments":[{"ifname":5}]"#, Some("cni.dev/valid-attachments")),
    ] {
        let text = format!(r#"{{"cniVersion":"1.0.0","type":"bridge",{member}}}"#);
        let found = network(FileFormat::Single, text.as_bytes(), &[]);
        let expected = wrong.map_or(Ok("bridge".to_owned()), |name| Err(LoadError::WrongInPlugin(0, name)));
        assert_eq!(found.map(|network| network.plugins.concat()), expected, "{member}");
    }
}
