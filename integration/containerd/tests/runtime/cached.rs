//! What libcni keeps of a living sandbox is lost in a crash: the sandbox can be taken down all the same.

use std::fs;
use std::path::{Path, PathBuf};

use gybe_containerd_tests::{Generation, Node, Sandbox, manifest};

use crate::ground::{entries, gybe_node, on_every_generation, told};
use crate::pod::Pod;

/// Where libcni keeps results (`CacheDir`, libcni/api.go).
const RESULTS: &str = "/var/lib/cni/results";

/// What is kept of the one sandbox there is.
fn kept(node: &Node) -> Vec<PathBuf> {
    let files = entries(node, RESULTS).into_iter();
    files.map(|file| node.stage().path(RESULTS).join(file)).collect()
}

/// A pod, after `harm` was done to what is kept of it.
fn harmed(node: &Node, name: &str, harm: impl Fn(&Path)) -> String {
    let sandbox = Sandbox::injected("shop", name);
    let pod = Pod::start(node, &sandbox, &manifest::injected(&sandbox));
    assert!(!kept(node).is_empty(), "containerd keeps results there");
    kept(node).iter().for_each(|file| harm(file));
    pod.id.clone()
}

fn taken_down(node: &Node, id: &str) {
    node.cri.stop(id).unwrap();
    node.cri.remove(id).unwrap();
    assert!(node.stage().pod_links().unwrap().is_empty(), "a link is left");
}

/// The older runtimes give up over a file they cannot read, by libcni, and call no plugin at all
/// (<https://github.com/containerd/containerd/issues/8197>). With the file removed, all is well.
fn taken_down_sooner_or_later(node: &Node, id: &str, generation: Generation) {
    if generation != Generation::V2 {
        let refused = node.cri.stop(id).unwrap_err();
        assert!(told(&refused).contains("cached result"), "{}", told(&refused));
        assert!(!told(&refused).contains("gybe-cni"), "{}", told(&refused));
        kept(node).iter().for_each(|file| fs::remove_file(file).unwrap());
    }
    taken_down(node, id);
}

on_every_generation! {
    fn f31_a_sandbox_whose_cached_result_is_empty_cut_or_gone_is_taken_down(generation: Generation) {
        let node = gybe_node(generation);
        let empty = harmed(&node, "empty-0", |file| fs::write(file, "").unwrap());
        taken_down_sooner_or_later(&node, &empty, generation);
        let cut = harmed(&node, "cut-0", |file| {
            let whole = fs::read(file).unwrap();
            fs::write(file, &whole[..whole.len() / 2]).unwrap();
        });
        taken_down_sooner_or_later(&node, &cut, generation);
        let gone = harmed(&node, "gone-0", |file| fs::remove_file(file).unwrap());
        taken_down(&node, &gone);
    }
}
