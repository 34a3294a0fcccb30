//! What every test here stands on: a node for it, and every test three times; no assertions.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;

use gybe_containerd_tests::generation::program_under_test;
use gybe_containerd_tests::{Chain, Generation, Hold, LostNode, Node, Programs, Sandbox, Trouble, chain};

const STAGE: &str = env!("CARGO_BIN_EXE_gybe-stage");
const RECORDER: &str = env!("CARGO_BIN_EXE_gybe-recorder");
const STRIKER: &str = env!("CARGO_BIN_EXE_gybe-striker");

/// A node with that chain. Its log has the test's name and outlives it.
pub(crate) fn node(generation: Generation, chain: &Chain) -> Node {
    node_with(generation, chain, &[Path::new(RECORDER)])
}

/// A node whose chain ends in Gybe, watched from before and behind.
pub(crate) fn gybe_node(generation: Generation) -> Node {
    gybe_node_with(generation, chain::recorder())
}

/// The same with another entry for the recorder behind.
pub(crate) fn gybe_node_with(generation: Generation, behind: Value) -> Node {
    let chain = Chain::of_reference_plugins(generation);
    let chain = chain.then(chain::recorder()).then(chain::gybe()).then(behind);
    node_of(generation, &chain)
}

/// A node whose pods nobody knows but the node agent, which does not run yet.
pub(crate) fn agents_node(generation: Generation) -> Node {
    node_of(generation, &Chain::of_reference_plugins(generation).then(chain::gybe_asking_the_agent()))
}

/// A node with that chain, in which Gybe may be.
pub(crate) fn node_of(generation: Generation, chain: &Chain) -> Node {
    let plugin = ours("gybe-cni");
    node_with(generation, chain, &[Path::new(RECORDER), Path::new(STRIKER), &plugin])
}

/// A built program of ours.
pub(crate) fn ours(name: &str) -> PathBuf {
    program_under_test(name).unwrap_or_else(|trouble| panic!("{}", told(&trouble)))
}

fn node_with(generation: Generation, chain: &Chain, plugins: &[&Path]) -> Node {
    let programs = Programs { stage: Path::new(STAGE), plugins };
    Node::start(programs, generation, chain, log()).unwrap_or_else(|trouble| panic!("{}", told(&trouble)))
}

/// A trouble with all its causes, in one line.
pub(crate) fn told(trouble: &Trouble) -> String {
    let mut text = trouble.to_string();
    let mut cause = std::error::Error::source(trouble);
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    text
}

fn log() -> PathBuf {
    let thread = thread::current();
    let test = thread.name().unwrap_or("unnamed").replace("::", ".");
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.log"))
}

/// The kubelet asks for a sandbox, and containerd is gone before it is there.
pub(crate) fn killed_during_add(node: Node, hold: &Hold, sandbox: &Sandbox) -> (LostNode, UnixStream) {
    let kubelet = node.connect().unwrap();
    thread::scope(|scope| {
        let adding = scope.spawn(|| kubelet.run(sandbox));
        let plugin = hold.wait().unwrap();
        let lost = node.lose_containerd().unwrap();
        adding.join().unwrap().unwrap_err();
        (lost, plugin)
    })
}

/// A test that is run on each generation.
macro_rules! on_every_generation {
    ($(#[doc = $doc:literal])* fn $name:ident($generation:ident: Generation) $body:block) => {
        mod $name {
            use super::*;

            fn on($generation: Generation) $body

            #[test]
            fn of_1_6() {
                on(Generation::V1_6);
            }

            #[test]
            fn of_1_7() {
                on(Generation::V1_7);
            }

            #[test]
            fn of_2_x() {
                on(Generation::V2);
            }
        }
    };
}
pub(crate) use on_every_generation;

/// No sandbox, and of a pod neither a namespace nor a device nor an address nor a cached result is
/// left on the node.
pub(crate) fn assert_nothing_is_left(node: &Node) {
    assert_eq!(node.cri.list().unwrap(), [""; 0]);
    assert_eq!(entries(node, "/run/netns"), [""; 0]);
    assert_eq!(node.stage().pod_links().unwrap(), [""; 0]);
    assert_eq!(entries(node, "/var/lib/cni/results"), [""; 0]);
    let leases = entries(node, "/var/lib/cni/networks/gybe-test");
    assert!(leases.iter().all(|name| name == "lock" || name.starts_with("last_")), "{leases:?}");
}

/// The names in a directory of the stage, sorted; none when there is no such directory.
pub(crate) fn entries(node: &Node, inside: &str) -> Vec<String> {
    let Ok(found) = fs::read_dir(node.stage().path(inside)) else {
        return Vec::new();
    };
    let names = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}
