//! Reference files of other projects: conf directories before and after istio-cni's installer ran, and manifests as
//! Istio's injector writes them, and its fake `/proc`.
//!
//! They are not in this repository: GYBE_SHARED names their directory.

#![cfg(test)]

mod conf_files;
mod injected_manifests;
#[path = "../node/test_node.rs"]
#[allow(dead_code, reason = "shared with the tests of another target")]
mod test_node;

use gybe_installer::host::conflist::entry::EntryLayout;
use gybe_installer::sandboxes::{HostPaths, find};
use gybe_test_support::TestDir;
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Returns the path of a file or directory of the reference material.
pub(crate) fn reference(path: &str) -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let root = std::env::var_os("GYBE_SHARED").map_or(default, PathBuf::from);
    let path = root.join("vectors").join(path);
    assert!(
        path.exists(),
        "{} is missing; set GYBE_SHARED to the directory of the reference material",
        path.display()
    );
    path
}

/// Reads a file of the reference material about installs.
pub(crate) fn shared(path: &str) -> Vec<u8> {
    std::fs::read(reference("install").join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn text(path: &str) -> String {
    String::from_utf8(shared(path)).unwrap()
}

pub(crate) fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// Returns istio-cni's result with Gybe's entry in place of istio-cni's.
pub(crate) fn with_gybes_entry(golden: &[u8]) -> Value {
    let mut value = json(golden);
    let ours = json(&test_node::entry("info").print(&EntryLayout::OneLine));
    for plugin in value["plugins"].as_array_mut().unwrap() {
        if plugin["type"] == "istio-cni" {
            *plugin = ours.clone();
        }
    }
    value
}

/// Removes the names and versions, which istio-cni invents for a converted `.conf` and Gybe keeps.
pub(crate) fn without_names_and_versions(mut value: Value) -> Value {
    let members = value.as_object_mut().unwrap();
    members.remove("name");
    members.remove("cniVersion");
    for plugin in members["plugins"].as_array_mut().unwrap() {
        plugin.as_object_mut().unwrap().remove("cniVersion");
    }
    value
}

#[test]
fn the_uids_in_the_cgroup_paths_of_a_node_in_a_container_are_found() {
    let root = TestDir::new("shared-cgroups");
    symlink(reference("install/nodeagent-cgroup/cgroupns"), root.join("proc")).unwrap();
    let found = find(&HostPaths { results: root.join("results"), root: root.path().to_owned() });
    let uids: BTreeSet<String> = found.sandboxes.into_iter().filter_map(|sandbox| sandbox.uid).collect();
    let expected = ["863b91d4-4b68-4efa-917f-4b560e3e86aa", "aaaabbbb-cccc-dddd-eeee-ffff00001111"];
    assert_eq!(uids, expected.map(str::to_owned).into());
}
