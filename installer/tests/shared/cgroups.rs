//! The pods of istio-cni's fake `/proc`: a node that is a container itself, with the kubelet's cgroups below another
//! container's.

use crate::reference;
use gybe_installer::sandboxes::{HostPaths, find};
use gybe_test_support::TestDir;
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

#[test]
fn the_uids_in_the_cgroup_paths_of_a_node_in_a_container_are_found() {
    let root = TestDir::new("shared-cgroups");
    symlink(reference("install/nodeagent-cgroup/cgroupns"), root.join("proc")).unwrap();
    let found = find(&HostPaths { results: root.join("results"), root: root.path().to_owned() });
    let uids: BTreeSet<String> = found.sandboxes.into_iter().filter_map(|sandbox| sandbox.uid).collect();
    let expected = ["863b91d4-4b68-4efa-917f-4b560e3e86aa", "aaaabbbb-cccc-dddd-eeee-ffff00001111"];
    assert_eq!(uids, expected.map(str::to_owned).into());
}
