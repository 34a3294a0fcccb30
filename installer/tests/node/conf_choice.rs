//! Gybe chooses the same network from a conf directory as containerd and CRI-O: choices recorded from libcni. ocicni,
//! CRI-O's library, which also looks for the plugins' programs, runs in
//! `integration/containerd/tests/runtime/crio_choice.rs`.

use crate::test_node::TestNode;
use gybe_installer::host::libcni::choice::{NoChoice, choose};
use gybe_installer::host::libcni::{LoadError, network};
use gybe_installer::host::observe::runtimes::{DropIns, Runtime};
use gybe_installer::host::observe::{FileFormat, ObserveScope};
use serde_json::Value;
use std::os::unix::fs::symlink;

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
