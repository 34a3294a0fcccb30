//! A sandbox whose cached result libcni lost in a crash can be deleted.

use std::fs;
use std::path::{Path, PathBuf};

use gybe_containerd_tests::{Generation, Node, Sandbox, manifest};

use crate::fixture::{entries, error_chain, gybe_node, on_every_generation};
use crate::pod::RunningPod;

/// libcni's cached results (`CacheDir`, libcni/api.go).
const RESULTS: &str = "/var/lib/cni/results";

/// The cached results of the only sandbox.
fn cached_results(node: &Node) -> Vec<PathBuf> {
    let files = entries(node, RESULTS).into_iter();
    files.map(|file| node.host().path(RESULTS).join(file)).collect()
}

/// Starts a pod and damages its cached results.
fn pod_with_damaged_result(node: &Node, name: &str, damage: impl Fn(&Path)) -> String {
    let sandbox = Sandbox::injected("shop", name);
    let pod = RunningPod::start(node, &sandbox, &manifest::injected(&sandbox));
    assert!(!cached_results(node).is_empty(), "containerd caches results there");
    cached_results(node).iter().for_each(|file| damage(file));
    pod.id.clone()
}

fn delete(node: &Node, id: &str) {
    node.cri.delete(id).unwrap();
    assert!(node.host().pod_links().unwrap().is_empty(), "a link is left");
}

/// Deletes a sandbox. In older runtimes libcni fails at a file that it cannot read and calls no plugin
/// (<https://github.com/containerd/containerd/issues/8197>); without the file the deletion succeeds.
fn delete_with_damaged_result(node: &Node, id: &str, generation: Generation) {
    if generation != Generation::V2 {
        let refused = node.cri.stop(id).unwrap_err();
        assert!(error_chain(&refused).contains("cached result"), "{}", error_chain(&refused));
        assert!(!error_chain(&refused).contains("gybe-cni"), "{}", error_chain(&refused));
        cached_results(node).iter().for_each(|file| fs::remove_file(file).unwrap());
    }
    delete(node, id);
}

on_every_generation! {
    fn f31_a_sandbox_with_an_empty_truncated_or_missing_cached_result_can_be_deleted(generation: Generation) {
        let node = gybe_node(generation);
        let empty = pod_with_damaged_result(&node, "empty-0", |file| fs::write(file, "").unwrap());
        delete_with_damaged_result(&node, &empty, generation);
        let truncated = pod_with_damaged_result(&node, "truncated-0", |file| {
            let whole = fs::read(file).unwrap();
            fs::write(file, &whole[..whole.len() / 2]).unwrap();
        });
        delete_with_damaged_result(&node, &truncated, generation);
        let missing = pod_with_damaged_result(&node, "missing-0", |file| fs::remove_file(file).unwrap());
        delete(&node, &missing);
    }
}
