//! Nodes for the tests, and the macro that runs a test on each generation of containerd.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use serde_json::Value;

use gybe_containerd_tests::conflist::NETWORK;
use gybe_containerd_tests::node::remove_logs;
use gybe_containerd_tests::program_under_test;
use gybe_containerd_tests::{
    Conflist, Generation, HarnessError, Node, NodeWithoutContainerd, PausePoint, Programs, Sandbox,
    SimulatedHost, conflist,
};

const HOST_INIT: &str = env!("CARGO_BIN_EXE_gybe-host-init");
const RECORDER: &str = env!("CARGO_BIN_EXE_gybe-recorder");
const CRASH_INJECTOR: &str = env!("CARGO_BIN_EXE_gybe-crash-injector");

/// Starts a node with this conflist. Its log file is named after the test and stays after it.
pub(crate) fn node(generation: Generation, conflist: &Conflist) -> Node {
    start_node(generation, conflist, &[Path::new(RECORDER)])
}

/// Starts a node with Gybe between two recorder plugins.
pub(crate) fn gybe_node(generation: Generation) -> Node {
    gybe_node_with(generation, conflist::recorder())
}

/// Starts a node with Gybe between a recorder plugin and the plugin `after`.
pub(crate) fn gybe_node_with(generation: Generation, after: Value) -> Node {
    let conflist = Conflist::reference_plugins(generation);
    let conflist =
        conflist.with_plugin(conflist::recorder()).with_plugin(conflist::gybe()).with_plugin(after);
    node_with_gybe(generation, &conflist)
}

/// Starts a node on which Gybe queries the node agent, which does not run yet.
pub(crate) fn node_with_agent_facts(generation: Generation) -> Node {
    node_with_gybe(
        generation,
        &Conflist::reference_plugins(generation).with_plugin(conflist::gybe_with_agent()),
    )
}

/// Starts a node with this conflist and the plugins that it may name: recorder, crash injector, Gybe.
pub(crate) fn node_with_gybe(generation: Generation, conflist: &Conflist) -> Node {
    let plugin = program("gybe-cni");
    start_node(generation, conflist, &[Path::new(RECORDER), Path::new(CRASH_INJECTOR), &plugin])
}

/// Returns the path of a built program.
pub(crate) fn program(name: &str) -> PathBuf {
    program_under_test(name).unwrap_or_else(|error| panic!("{}", error_chain(&error)))
}

fn start_node(generation: Generation, conflist: &Conflist, plugins: &[&Path]) -> Node {
    let programs = Programs { host_init: Path::new(HOST_INIT), plugins, runc: None };
    Node::start(programs, generation, conflist, log())
        .unwrap_or_else(|error| panic!("{}", error_chain(&error)))
}

/// Starts a host without a container runtime, and removes the logs of an earlier run of this test.
pub(crate) fn host_without_runtime() -> SimulatedHost {
    remove_logs(&log());
    SimulatedHost::start(Path::new(HOST_INIT)).unwrap_or_else(|error| panic!("{}", error_chain(&error)))
}

/// Returns an error with all its causes in one line.
pub(crate) fn error_chain(error: &HarnessError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

pub(crate) fn log() -> PathBuf {
    let thread = thread::current();
    let test = thread.name().unwrap_or("unnamed").replace("::", ".");
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.log"))
}

/// Waits until no other test starts a node's worth of sandboxes at once, and keeps the turn until the result is dropped.
/// With several such tests at the same time the kernel's one queue for IPv6 addresses takes longer for duplicate address
/// detection than the five seconds that the plugin `bridge` waits.
pub(crate) fn turn_of_many_sandboxes() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills containerd while a plugin pauses in the ADD of a sandbox. Returns the plugin's connection.
pub(crate) fn kill_containerd_during_add(
    node: Node,
    pause_point: &PausePoint,
    sandbox: &Sandbox,
) -> (NodeWithoutContainerd, UnixStream) {
    let kubelet = node.connect().unwrap();
    thread::scope(|scope| {
        let adding = scope.spawn(|| kubelet.run(sandbox));
        let plugin = pause_point.wait().unwrap();
        let killed = node.kill_containerd().unwrap();
        adding.join().unwrap().unwrap_err();
        (killed, plugin)
    })
}

/// Defines one test for each generation of containerd.
macro_rules! on_every_generation {
    ($(#[doc = $doc:literal])* fn $name:ident($generation:ident: Generation) $body:block) => {
        mod $name {
            use super::*;

            fn run_on($generation: Generation) $body

            #[test]
            fn on_1_6() {
                run_on(Generation::V1_6);
            }

            #[test]
            fn on_1_7() {
                run_on(Generation::V1_7);
            }

            #[test]
            fn on_2_x() {
                run_on(Generation::V2);
            }
        }
    };
}
pub(crate) use on_every_generation;

/// Asserts that the node has no sandbox, and no network namespace, link, address lease or cached result of one.
pub(crate) fn assert_no_sandbox_is_left(node: &Node) {
    assert_eq!(node.cri.list().unwrap(), [""; 0]);
    assert_eq!(entries(node, "/run/netns"), [""; 0]);
    assert_eq!(node.host().pod_links().unwrap(), [""; 0]);
    assert_eq!(entries(node, "/var/lib/cni/results"), [""; 0]);
    assert_eq!(leases(node.host()), [""; 0]);
}

/// Returns the addresses that host-local has assigned to pods.
pub(crate) fn leases(host: &SimulatedHost) -> Vec<String> {
    let Ok(found) = fs::read_dir(host.path("/var/lib/cni/networks").join(NETWORK)) else {
        return Vec::new();
    };
    let names = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "lock" && !name.starts_with("last_")).collect()
}

/// Returns the sorted names in a directory of the node; none when it does not exist.
pub(crate) fn entries(node: &Node, directory: &str) -> Vec<String> {
    let Ok(found) = fs::read_dir(node.host().path(directory)) else {
        return Vec::new();
    };
    let names = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}
